"""Beside mindstudio-probe: the same GPT-2 step recorded and compared by both, in turn.

Every tool and setting has a process of its own that waits while another one works; the peer's are those of an
environment that holds it and sees our torch.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType

import recordings
from bench import AtLeast, AtMost, Bench, Row, Size, bytes_below, ratio_row
from children import compare_command, measured
from faults.environment import PACKAGE, installed, packages_in

_WARM_UP = 3


@dataclass(frozen=True)
class Setting:
    """A tool and what it is asked to record."""

    tool: str
    task: str = ""
    level: str = ""

    def __str__(self) -> str:
        name = PACKAGE if self.tool == "msprobe" else self.tool
        return " ".join(part for part in (name, self.task, self.level) if part)


BARE = Setting("bare")
STATS, SKETCH, TENSORS = (
    Setting("lockstep", save, "api") for save in ("stats", "sketch", "tensors")
)
PEER_STATISTICS = [Setting("msprobe", "statistics", level) for level in ("L1", "mix")]
PEER_TENSORS = [Setting("msprobe", "tensor", level) for level in ("L1", "mix")]
SETTINGS = [BARE, STATS, SKETCH, TENSORS, *PEER_STATISTICS, *PEER_TENSORS]


@dataclass
class Taken:
    """What one setting took: an entry a round."""

    free_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)
    written_bytes: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)


class Worker:
    """A process of `peer_worker.py`."""

    def __init__(self, python: Path, setting: Setting, size: Size, log: Path) -> None:
        script = str(Path(__file__).with_name("peer_worker.py"))
        what = [setting.tool, setting.task, setting.level, json.dumps(asdict(size))]
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), script, *what],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def record(self, path: Path | str, emulated: str = "") -> tuple[float, float]:
        """Record one step; seconds until the training went on, and until everything was written.

        No path is a bare step.

        Raises
        ------
        RuntimeError
            If the process died; the message holds what it printed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(path), emulated]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"recording failed:\n{self._log.read_text()[-4000:]}")
        free_s, wall_s = json.loads(answer)
        return free_s, wall_s


def rows(bench: Bench, environment: Path) -> Iterator[Row]:
    """Record with every setting in turn, then compare the whole tensors of both tools."""
    pythons = {"msprobe": installed(environment)}
    packages = ", ".join(f"{name} {number}" for name, number in packages_in(environment).items())
    print(f"installed in {environment}: {packages}")
    taken = _recorded(bench, pythons)
    bare = taken[BARE].wall_s
    yield Row("bare step", "s", statistics.median(bare), min(bare))
    for setting in (*PEER_STATISTICS, STATS, SKETCH):
        yield ratio_row(f"{setting}: until the training goes on", taken[setting].free_s, bare)
    yield from _tensor_rows(taken, bare)
    yield from _compare_rows(bench, pythons)


def _recorded(bench: Bench, pythons: Mapping[str, Path]) -> dict[Setting, Taken]:
    taken = {setting: Taken() for setting in SETTINGS}
    with ExitStack() as stack:
        workers = {
            setting: stack.enter_context(_worker(bench, pythons, setting, str(number)))
            for number, setting in enumerate(SETTINGS)
        }
        for worker in workers.values():
            for _ in range(_WARM_UP):
                worker.record("")
        for _ in range(bench.rounds):
            for number, (setting, worker) in enumerate(workers.items()):
                target = bench.directory / f"recorded-{number}"
                free_s, wall_s = worker.record(target)
                taken[setting].free_s.append(free_s)
                taken[setting].wall_s.append(wall_s)
                taken[setting].written_bytes.append(bytes_below(target))
                taken[setting].files.append(sum(file.is_file() for file in target.rglob("*")))
                shutil.rmtree(target, ignore_errors=True)
    return taken


def _worker(bench: Bench, pythons: Mapping[str, Path], setting: Setting, name: str) -> Worker:
    python = pythons.get(setting.tool, Path(sys.executable))
    return Worker(python, setting, bench.size, bench.directory / f"log-{name}")


def _tensor_rows(taken: Mapping[Setting, Taken], bare: list[float]) -> Iterator[Row]:
    for setting in (*PEER_TENSORS, TENSORS):
        yield ratio_row(f"{setting}: until the training goes on", taken[setting].free_s, bare)
    for setting in (*PEER_TENSORS, TENSORS):
        walls = taken[setting].wall_s
        yield Row(f"{setting}: until all is written", "s", statistics.median(walls), min(walls))
    for setting in (*PEER_TENSORS, TENSORS):
        written = statistics.median(taken[setting].written_bytes)
        note = f"{statistics.median(taken[setting].files):.0f} files"
        yield Row(f"{setting}: on disk", "MB", written / 1e6, None, None, note)
    peer, ours = taken[PEER_TENSORS[0]], taken[TENSORS]
    walls = [statistics.median(one.wall_s) for one in (peer, ours)]
    least = min(peer.wall_s) / min(ours.wall_s)
    yield Row(
        "until all is written, the peer's L1 over ours", "x", walls[0] / walls[1], least, AtLeast(6)
    )
    sizes = [statistics.median(one.written_bytes) for one in (peer, ours)]
    yield Row("on disk, of the peer's L1", "%", 100 * sizes[1] / sizes[0], None, AtMost(50))


def _compare_rows(bench: Bench, pythons: Mapping[str, Path]) -> Iterator[Row]:
    """The first step of two fresh trainings, the second one on a device that sums in another order."""
    sides = {}
    for setting in (PEER_TENSORS[0], TENSORS):
        for side, emulated in (("reference", ""), ("candidate", recordings.NOISE)):
            name = f"{setting.tool}-{side}"
            with _worker(bench, pythons, setting, name) as worker:
                worker.record(bench.directory / name, emulated)
            sides[setting.tool, side] = bench.directory / name
    recordings.read_once(*sides.values())
    peer: list[float] = []
    ours: dict[str, list[float]] = {name: [] for name in _RULES}
    for number in range(min(bench.rounds, 3)):
        output = bench.directory / f"output-{number}"
        peer.append(_peer_compare(pythons["msprobe"], sides, output))
        for name, options in _RULES.items():
            pair = sides["lockstep", "reference"], sides["lockstep", "candidate"]
            ours[name].append(measured(compare_command(*pair, *options), allowed=(0, 1)).wall_s)
    for path in sides.values():
        shutil.rmtree(path)
    yield Row(f"{PACKAGE} compare, a process", "s", statistics.median(peer), min(peer))
    for name, walls in ours.items():
        yield Row(name, "s", statistics.median(walls), min(walls))
        ratio, best = statistics.median(peer) / statistics.median(walls), min(peer) / min(walls)
        yield Row("the peer's wall over it", "x", ratio, best, AtLeast(20))


_RULES = {
    "lockstep compare --judge fixed, a process": ("--judge", "fixed"),
    "lockstep compare, a process, operators re-run": (),
}
"""Thresholds over all metrics, as the peer has them; and what Lockstep does when nothing else is asked for."""


def _peer_compare(python: Path, sides: Mapping[tuple[str, str], Path], output: Path) -> float:
    """Wall seconds of the peer's command; its table is looked for, since it ends with 0 in any case."""
    command = [
        str(python.with_name("msprobe")), "compare", "-tp", str(sides["msprobe", "candidate"] / "step0"),
        "-gp", str(sides["msprobe", "reference"] / "step0"), "-o", str(output),
    ]  # fmt: skip
    used = measured(command)
    if not list(output.rglob("compare_result*")):
        raise RuntimeError(f"the peer's comparison wrote no table:\n{used.output}")
    shutil.rmtree(output)
    return used.wall_s
