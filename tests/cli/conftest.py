"""The place in which the tests of the command line run real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from workplace import Workplace


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    """A directory with the tiny training in it."""
    return Workplace(tmp_path / "work")
