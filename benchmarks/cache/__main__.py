"""`make bench-cache`: how fast samples come from the cache, beside LMDB, diskcache, Ray's object store and plain files.

All contenders are measured in turn, round after round in one process, and medians are given: what else the machine
does meets all of them.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

BATCH, ROUNDS = 32, 5
SIZES = {"12 KB": ((3, 32, 32), 2000), "600 KB": ((3, 224, 224), 320)}
WHAT = (
    f"Microseconds a sample from the second epoch on, fetched in batches of {BATCH}, then also stacked to a batch; and "
    "samples a second of a DataLoader with two workers."
)
FIRST = (
    "Epochs with the cache beside one without it: the first puts samples there, the second compares them, "
    "the third takes them from there."
)
MARK = "<!-- bench-cache -->"


def seconds(work: Callable[[], object]) -> float:
    """How long some work takes, without Python's own collections in it."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    finally:
        gc.enable()


def batches_of(dataset: Any, order: list[int]) -> Iterator[list[Any]]:
    """Samples as DataLoader's own process fetches them."""
    whole = getattr(dataset, "__getitems__", None)
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        yield whole(some) if whole else [dataset[index] for index in some]


def fetch(dataset: Any, order: list[int]) -> None:
    for _ in batches_of(dataset, order):
        pass


def fetch_and_stack(dataset: Any, order: list[int]) -> None:
    for batch in batches_of(dataset, order):
        torch.stack([picture for picture, _ in batch])


def load(dataset: Any, workers: int) -> None:
    for _ in DataLoader(dataset, BATCH, num_workers=workers):
        pass


def in_turn(works: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The median time of each, measured in turn."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: statistics.median(found) for name, found in times.items()}


def hits(folder: Path, address: str) -> list[str]:
    """Microseconds a sample from the second epoch on, for each size and contender."""
    from contenders import Files, contenders

    lines = []
    for size, (shape, length) in SIZES.items():
        below = Files(folder / f"files-{length}", shape, length)
        made: dict[str, Dataset[Any]] = {}
        for name, make in contenders(below, folder / f"peers-{length}", address).items():
            try:
                made[name] = make()
            except ImportError:
                print(f"{name}: not installed here", file=sys.stderr)
        order = torch.randperm(length, generator=torch.Generator().manual_seed(1)).tolist()
        for dataset in list(made.values()) * 2:  # the second time compares, in the cache
            fetch(dataset, order)
        alone = in_turn({name: partial(fetch, one, order) for name, one in made.items()})
        stacked = in_turn(
            {name: partial(fetch_and_stack, one, order) for name, one in made.items()}
        )
        forked = {name: one for name, one in made.items() if name != "Ray"}
        loaded = in_turn({name: partial(load, one, 2) for name, one in forked.items()}, 3)
        for name in made:
            in_workers = f"{length / loaded[name]:,.0f}" if name in loaded else "-"
            figures = f"{alone[name] / length * 1e6:.1f} | {stacked[name] / length * 1e6:.1f}"
            lines.append(f"| {size} | {name} | {figures} | {in_workers} |")
    return lines


def first_epochs(folder: Path, address: str) -> list[str]:
    """The first epochs with the cache beside one without, of samples that are read and of such that are computed."""
    from contenders import Files, Transformed

    lines = []
    for size, (shape, length) in SIZES.items():
        files = Files(folder / f"files-{length}", shape, length)
        for name, plain in (("read from files", files), ("computed", Transformed(files, 2.0))):
            found: dict[str, list[float]] = {"without": [], "first": [], "second": [], "third": []}
            for _ in range(ROUNDS):
                found["without"].append(seconds(partial(load, plain, 0)))
                cached = in_a_session(plain, address, f"{size} {name}")
                for which in ("first", "second", "third"):
                    found[which].append(seconds(partial(load, cached, 0)))
            medians = {which: statistics.median(times) for which, times in found.items()}
            ratios = " | ".join(
                f"{medians[which] / medians['without']:.2f}"
                for which in ("first", "second", "third")
            )
            lines.append(
                f"| {size} | {name} | {medians['without'] / length * 1e6:.0f} | {ratios} |"
            )
    return lines


def in_a_session(plain: Any, address: str, session: str) -> Any:
    """The data set with an empty session of this name."""
    from lockstep.core.errors import UsageError
    from lockstep_cache import CachedDataset
    from lockstep_cache import messages as m
    from lockstep_cache.client import asked
    from lockstep_cache.places import address_of

    with suppress(UsageError):
        asked(address_of(address), m.Destroy(session), m.Made)
    return CachedDataset(plain, address=address, session=session)


def training(folder: Path, address: str) -> list[str]:
    """A training whose preprocessing dominates: seconds of its epochs, with the cache and without, and its losses."""
    from contenders import Files, Transformed

    from lockstep_cache import CachedDataset

    plain = Transformed(Files(folder / "files-320", (3, 224, 224), 320), 4.0)
    plain.below.length = 128

    def epochs(dataset: Any, workers: int) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 7, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(), torch.nn.Linear(8, 10),
        )  # fmt: skip
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses: list[float] = []

        def epoch() -> None:
            for pictures, labels in DataLoader(dataset, 16, shuffle=True, num_workers=workers):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(pictures), labels % 10)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())

        return [seconds(epoch) for _ in range(4)], losses

    lines = []
    for workers in (0, 2):
        without, expected = epochs(plain, workers)
        cached = CachedDataset(plain, address=address, session=f"training {workers}")
        with_it, losses = epochs(cached, workers)
        later = statistics.mean(without) / statistics.mean(with_it[2:])
        lines.append(
            f"| {workers} | {statistics.mean(without):.2f} | {with_it[0]:.2f} | {statistics.mean(with_it[2:]):.2f} "
            f"| {later:.1f} | {'bitwise equal' if losses == expected else 'DIFFERENT'} |"
        )
    return lines


def report(folder: Path, address: str, only: str) -> Iterator[str]:
    """The page's lines, as they are measured."""
    load = f"load before: {os.getloadavg()[0]:.1f}"
    yield f"Torch {torch.__version__}, one thread, {os.cpu_count()} cores, {load}. {WHAT}\n"
    if only in ("", "hits"):
        yield "| sample | from | µs | µs, stacked | samples/s, 2 workers |\n|---|---|---:|---:|---:|"
        yield from hits(folder, address)
    if only in ("", "first"):
        yield f"\n{FIRST}\n"
        yield "| sample | is | µs without | first / without | second / without | third / without |"
        yield "|---|---|---:|---:|---:|---:|"
        yield from first_epochs(folder, address)
    if only in ("", "training"):
        yield "\nA small network, trained on pictures that take long to make; seconds an epoch:\n"
        yield "| workers | without | first with | later with | times as fast | losses |\n|---|---:|---:|---:|---:|---|"
        yield from training(folder, address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="A folder in which peers are installed.")
    parser.add_argument("--docs", type=Path, help="Write the tables into this page.")
    parser.add_argument("--only", choices=("hits", "first", "training"), default="")
    chosen = parser.parse_args()
    if chosen.peers:
        sys.path.append(str(chosen.peers))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name:
        address = f"{name}/socket"
        cache = [sys.executable, "-m", "lockstep", "cache"]
        subprocess.run(
            [*cache, "start", "--memory", "2GB", "--address", address],
            check=True,
            stdout=sys.stderr,
        )
        try:
            lines = []
            for line in report(Path(name), address, chosen.only):
                print(line, flush=True)
                lines.append(line)
        finally:
            subprocess.run([*cache, "stop", "--address", address], check=False)
    if chosen.docs:
        text = "\n".join(lines)
        page = chosen.docs.read_text()
        before, _, rest = page.partition(MARK)
        behind = rest.partition(MARK)[2]
        chosen.docs.write_text(f"{before}{MARK}\n{text}\n{MARK}{behind}")


if __name__ == "__main__":
    main()
