"""That this file is here puts its folder on the path: tests import the helpers beside it.

What holds for every test is in `lockstep.testing.suite`, which the settings of pytest load.
"""
