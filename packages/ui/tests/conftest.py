"""One server for all tests of the pages, over runs that part, that are damaged and that come and go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_pages import Served, serving

from lockstep.testing.fixtures import FaultyPair
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import MadeTraining


@pytest.fixture(scope="session")
def served(
    programs: Path, tmp_path_factory: pytest.TempPathFactory, lockstep_faulty_pair: FaultyPair
) -> Iterator[Served]:
    """Two runs that part, one in a folder below, and a damaged one whose name is markup."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(lockstep_faulty_pair.reference, folder / "reference")
    shutil.copytree(lockstep_faulty_pair.candidate, folder / "below" / "candidate")
    damaged = write_recording(folder / "<b>damaged", MadeTraining())
    (damaged / "manifest.json").write_text("{")
    with serving(folder, programs=programs) as server:
        yield server
