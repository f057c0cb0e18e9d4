"""Trainings of MindSpore, recorded as they run; `make test-frameworks` installs it and runs these."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

TRAINING = str(Path(__file__).with_name("mindspore_training.py"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take minutes, and MindSpore."""
    here = [one for one in items if Path(__file__).parent in one.path.parents]
    without = importlib.util.find_spec("mindspore") is None
    for item in here:
        item.add_marker(pytest.mark.exhaustive)
        item.add_marker(pytest.mark.skipif(without, reason="make test-frameworks has MindSpore"))


@dataclass(frozen=True)
class Recorded:
    """A training that was recorded."""

    path: Path
    printed: str
    said: str


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )


Trained = Callable[..., Recorded]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Record a training by its mode and fault, each once; options of `record` come first."""
    folder = tmp_path_factory.mktemp("mindspore")

    @cache
    def record(*words: str) -> Recorded:
        options = [word for word in words if word.startswith("--")]
        others = [word for word in words if not word.startswith("--")]
        path = folder / "-".join(words).replace("--", "")
        done = ran(
            "-m", "lockstep", "record", "-o", str(path), *options, "--", sys.executable, TRAINING, *others
        )  # fmt: skip
        return Recorded(path, done.stdout, done.stderr)

    return record


@pytest.fixture(scope="session")
def bare_weights() -> str:
    """Digest of the parameters of the sound training, not recorded."""
    return ran(TRAINING, "functional").stdout.split()[-1]
