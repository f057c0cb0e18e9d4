"""The stock clients against a server whose models run in a Ray cluster: the tests of the embedded engine, once more."""

from test_serve_clients import *  # noqa: F403

# Nothing of these is the engine's; the exchange takes its time here, and has a test of its own.
del test_a_taken_port_is_said  # noqa: F821
del test_exchanging_a_model_under_load_loses_no_request  # noqa: F821
