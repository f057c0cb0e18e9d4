"""Trainings of JAX, recorded as they run; `make test-jax` installs it and runs these."""

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

HERE = Path(__file__).parent
NEEDS = ("jax", "flax", "optax", "equinox")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take minutes, and JAX with the libraries on it."""
    without = any(importlib.util.find_spec(one) is None for one in NEEDS)
    for item in (one for one in items if HERE in one.path.parents):
        item.add_marker(pytest.mark.exhaustive)
        item.add_marker(pytest.mark.skipif(without, reason="make test-jax has JAX"))


@dataclass(frozen=True)
class Recorded:
    """A training that was recorded."""

    path: Path
    printed: str
    said: str


def ran(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that has ended."""
    few = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, **few, **environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes share what JAX has compiled, which is most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.getbasetemp().parent / "jax-compiled"
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


@pytest.fixture(scope="session")
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command to its end."""
    return ran


Trained = Callable[..., Recorded]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Record a training by its script, mode and fault, each once; options of `record` come first."""
    folder = tmp_path_factory.mktemp("jax")

    @cache
    def record(*words: str, **environment: str) -> Recorded:
        options = [word for word in words if word.startswith("--")]
        script, *others = (word for word in words if not word.startswith("--"))
        path = folder / "-".join((*words, *environment.values())).replace("--", "").replace("/", "")
        done = ran(
            "-m", "lockstep", "record", "-o", str(path), *options, "--", sys.executable,
            str(HERE / f"{script}.py"), *others, **environment,
        )  # fmt: skip
        return Recorded(path, done.stdout, done.stderr)

    return record


@pytest.fixture(scope="session")
def bare() -> Callable[..., str]:
    """Run a training that is not recorded, each once; returns what it prints."""

    @cache
    def run(script: str, *others: str, **environment: str) -> str:
        done = ran(str(HERE / f"{script}.py"), *others, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
