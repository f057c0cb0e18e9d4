"""How the tests of Lockstep and of its members run: the same examples each time, in short or all, with quick programs.

A plug-in of pytest, which Lockstep's own settings load for every test (`-p lockstep.testing.suite`). It is no part of
what plug-ins of others may use.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from lockstep.testing.warm.launch import serving

# Before torch and polars are loaded: as many threads as cores in each of as many processes wait for each other more
# than they compute. What threads change is tested by tests that ask for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POLARS_MAX_THREADS", "1")

pytest_plugins = ["lockstep.testing.fixtures"]

_MARKERS = (
    "cold: starts Python as a user does, not from the warm one: the start is what is tested",
    "exhaustive: runs in `make test-all` only; what it protects is tested in short by a test beside it",
    "sampled(n): each n-th case runs in `make test`, every one in `make test-all`",
)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


# Started in the background, as by `nohup`, a process ignores these, and so does all that it starts: no test of Ctrl-C
# would end.
for _number in ("SIGINT", "SIGQUIT", "SIGHUP"):
    _signal = getattr(signal, _number, None)
    if _signal is not None and signal.getsignal(_signal) is signal.SIG_IGN:
        signal.signal(
            _signal, signal.default_int_handler if _number == "SIGINT" else signal.SIG_DFL
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--every-way` runs all (`make test-all`), and in every combination what else is tested in a third of them."""
    parser.addoption("--every-way", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marks that tests may have."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Of `-n auto` one process more than cores: many tests wait for a process that they have started."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (cores or 1) + 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is left to `make test-all`, unless it is asked for by its name."""
    if config.getoption("--every-way") or any("::" in one for one in config.args):
        return
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    turns: Counter[str] = Counter()
    for item in items:
        (kept if _runs_in_short(item, turns) else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


def _runs_in_short(item: pytest.Item, turns: Counter[str]) -> bool:
    """Whether a test is among those of `make test`; of sampled ones each n-th, counted in `turns`."""
    sampled = item.get_closest_marker("sampled")
    if sampled is None:
        return item.get_closest_marker("exhaustive") is None
    name = item.nodeid.partition("[")[0]
    turns[name] += 1
    return bool(turns[name] % sampled.args[0] == 1)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a `python`, a `torchrun` and a `lockstep` that start at once."""
    folder = tmp_path_factory.mktemp("programs")
    with serving(folder):
        yield folder


@pytest.fixture(params=["core", "nothing"])
def python_without_members(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A Python that has the core and no member, or neither, and every package that these need."""
    major, minor = sys.version_info[:2]
    environment = tmp_path / "environment"
    packages = environment / "lib" / f"python{major}.{minor}" / "site-packages"
    packages.mkdir(parents=True)
    (environment / "bin").mkdir()
    program = environment / "bin" / "python"
    program.symlink_to(Path(sys.executable).resolve())
    (environment / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    # As lines of a `.pth` file, in which those of the folders named there count for nothing.
    places = [place for place in sys.path if "site-packages" in place]
    core = [str(Path(__file__).parents[2])] if request.param == "core" else []
    (packages / "others.pth").write_text("\n".join([*core, *places]) + "\n")
    return program


@pytest.fixture(scope="module", autouse=True)
def frozen_heap() -> None:
    """What is loaded by now is no test's: a recording looks through all objects for modules that live already.

    Nor is the first call of torch's math library, which may come out otherwise on several threads.
    """
    if "torch" in sys.modules:
        from lockstep.devices.vector_math import prepare_vector_math

        prepare_vector_math()
    gc.collect()
    gc.freeze()
