"""Trainings of JAX, recorded as they run; `make test-jax` installs it and runs these."""

from __future__ import annotations

import importlib.util
import io
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
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


def printed_here(script: str, *words: str) -> tuple[str, str]:
    """What a script prints that runs in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [script, *words])
        runpy.run_path(str(HERE / f"{script}.py"), run_name="__main__")
    return out.getvalue(), err.getvalue()


def recorded_here(folder: Path, script: str, *words: str, **options: str) -> tuple[str, str]:
    """The same, recorded."""
    from lockstep.core.manifest import Options
    from lockstep.store.directory import RunDirectory
    from lockstep_frameworks.jax.environment import packages
    from lockstep_frameworks.jax.tap import Tap
    from lockstep_frameworks.recording import FrameworkRecording

    chosen = Options(**options)
    of_command = RunDirectory.create(folder, [script, *words], chosen, force=False)
    of_command.started()
    recording = FrameworkRecording(folder, chosen, packages(), "JAX")
    tap = Tap(recording)
    recording.ended = tap.remove
    tap.install()
    try:
        printed = printed_here(script, *words)
        tap.finish()
    finally:
        recording.finish()
        tap.remove()
    of_command.finish(exit_code=0)
    assert not recording.failure, recording.failure
    return printed


@pytest.fixture(scope="session")
def record_here() -> Callable[..., tuple[str, str]]:
    """Record a script in this process into a folder, with options of a recording."""
    return recorded_here


@pytest.fixture(scope="session")
def trained_here(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Record a training in this process, each once: it takes no start, and what is compiled is kept."""
    folder = tmp_path_factory.mktemp("jax-here")

    @cache
    def record(script: str, *words: str) -> Recorded:
        path = folder / "-".join((script, *words)).replace(" ", "-")
        return Recorded(path, *recorded_here(path, script, *words))

    return record


@pytest.fixture(scope="session")
def bare_here() -> Callable[..., str]:
    """Run a training in this process that is not recorded, each once; returns what it prints."""
    return cache(lambda script, *words: printed_here(script, *words)[0])


@pytest.fixture(scope="session")
def bare() -> Callable[..., str]:
    """Run a training that is not recorded, each once; returns what it prints."""

    @cache
    def run(script: str, *others: str, **environment: str) -> str:
        done = ran(str(HERE / f"{script}.py"), *others, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
