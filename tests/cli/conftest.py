"""The place in which the tests of the command line run real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from workplace import Workplace


@pytest.fixture
def workplace(tmp_path: Path, request: pytest.FixtureRequest) -> Workplace:
    """A directory with the tiny training in it."""
    cold = request.node.get_closest_marker("cold")
    return Workplace(tmp_path / "work", None if cold else request.getfixturevalue("programs"))
