"""Trainings of TensorFlow, recorded as they run.

TensorFlow is no part of `make test`: `make test-frameworks` installs it and runs these.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import lockstep
from lockstep.core.finding import Comparison

TRAINING = str(Path(__file__).with_name("tensorflow_training.py"))
REPLICAS = str(Path(__file__).with_name("tensorflow_replicas.py"))
FORKS = str(Path(__file__).with_name("forked_trainings.py"))
SESSION = str(Path(__file__).with_name("session_training.py"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take minutes, and TensorFlow."""
    here = [one for one in items if Path(__file__).parent in one.path.parents]
    without = importlib.util.find_spec("tensorflow") is None
    for item in here:
        item.add_marker(pytest.mark.exhaustive)
        item.add_marker(pytest.mark.skipif(without, reason="make test-frameworks has TensorFlow"))


@dataclass(frozen=True)
class Recorded:
    """A training that was recorded."""

    path: Path
    printed: str
    said: str

    @property
    def weights(self) -> str:
        """Digest of the weights that it ended with."""
        return self.printed.split()[-1]


def ran(*command: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    few = {"OMP_NUM_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, **few}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def command_of(*words: str) -> list[str]:
    """The script of a model and its arguments; that of replicas takes no model."""
    if words[0] == "replicas":
        return [REPLICAS, *words[1:]]
    return [SESSION if words[0].startswith("session") else TRAINING, *words]


Bare = Callable[..., str]


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """What a script's words come after to run in a fork of a process that has imported TensorFlow."""
    place = str(tmp_path_factory.mktemp("forks") / "socket")
    serving = subprocess.Popen([sys.executable, FORKS, "serve", place], stdout=subprocess.PIPE)
    assert serving.stdout is not None
    assert serving.stdout.readline() == b"ready\n"
    yield ["-S", FORKS, "run", place]
    serving.kill()
    serving.wait()
    serving.stdout.close()


@pytest.fixture(scope="session")
def bare_weights(forks: list[str]) -> Bare:
    """Digest of the weights of a training that is not recorded."""
    return cache(lambda *words: ran(*forks, *command_of(*words)).stdout.split()[-1])


Trained = Callable[..., Recorded]


def recorded(path: Path, *words: str, command: list[str]) -> Recorded:
    """Record a command; options of `record` come first."""
    options = [word for word in words if word.startswith("--")]
    done = ran(
        "-m", "lockstep", "record", "-o", str(path), *options, "--", sys.executable, *command
    )
    return Recorded(path, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, forks: list[str]) -> Trained:
    """Record a training by its model, mode and fault, each once; options of `record` come first."""
    folder = tmp_path_factory.mktemp("tensorflow")

    @cache
    def record(*words: str) -> Recorded:
        others = [word for word in words if not word.startswith("--")]
        path = folder / "-".join(words).replace("--", "")
        return recorded(path, *words, command=[*forks, *command_of(*others)])

    return record


def compared(reference: Recorded, candidate: Recorded) -> Comparison:
    """What comparing two of them finds."""
    return lockstep.compare_recordings(reference.path, candidate.path)
