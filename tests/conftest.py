"""What holds for every test: property tests draw the same examples each time, so that CI says the same twice."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--every-way` tests in every combination what else is tested in a third of them."""
    parser.addoption("--every-way", action="store_true")
