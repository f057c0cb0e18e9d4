"""Dumps that other tools really wrote, unpacked once."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def probe_dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mindstudio-probe 26.2.0 wrote of a toy transformer: `golden_X`, and `bad_X` with one wrong operator."""
    folder = tmp_path_factory.mktemp("mindstudio-probe")
    with tarfile.open(Path(__file__).with_name("mindstudio-probe.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder
