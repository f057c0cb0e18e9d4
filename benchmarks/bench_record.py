"""`make bench`: what recording costs on a GPT-2 step, and how fast two recordings compare.

Bare and recorded steps are interleaved in one process; every figure is the median over the rounds, with the minimum
beside it, and every ratio is of figures of the same run. The comparison's throughput stands beside that of `torch.dot`
over two cold arrays, which is what reading both tensors once costs.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import lockstep

SAVES = ("stats", "sketch", "tensors")


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--level", default="api", choices=("module", "api", "aten"))
    options = parser.parse_args()
    print(
        f"GPT-2 {options.layers} x {options.width}, batch 4 x 128, AdamW; level {options.level};"
        f" torch {torch.__version__}, {torch.get_num_threads()} threads, {os.cpu_count()} cores,"
        f" {platform.machine()}, {options.rounds} rounds"
    )
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as directory:
        measure_record(Path(directory), options)
        measure_compare(Path(directory))


def measure_record(directory: Path, options: argparse.Namespace) -> None:
    """Time bare and recorded steps in turn."""
    step = make_step(options.layers, options.width)
    step()
    bare: list[float] = []
    busy: dict[str, list[float]] = {save: [] for save in SAVES}
    closed: dict[str, list[float]] = {save: [] for save in SAVES}
    for _ in range(options.rounds):
        for save in SAVES:
            bare.append(seconds(step))
            target = directory / save
            shutil.rmtree(target, ignore_errors=True)
            recording = lockstep.record(target, steps=1, save=save, level=options.level)
            recording.start()
            start = time.perf_counter()
            step()
            busy[save].append(time.perf_counter() - start)
            recording.stop()
            closed[save].append(time.perf_counter() - start)
    base = statistics.median(bare)
    print(f"\n{'':10} {'step s':>8} {'min':>7} {'ratio':>6} {'closed s':>9} {'MB on disk':>11}")
    print(f"{'bare':10} {base:8.3f} {min(bare):7.3f} {1:6.2f}")
    for save in SAVES:
        size = sum(file.stat().st_size for file in (directory / save).rglob("*") if file.is_file())
        median = statistics.median(busy[save])
        print(
            f"{save:10} {median:8.3f} {min(busy[save]):7.3f} {median / base:6.2f}"
            f" {statistics.median(closed[save]):9.3f} {size / 1e6:11.1f}"
        )


def measure_compare(directory: Path) -> None:
    """Time comparing two recordings of each weight, files in the page cache."""
    left, right = torch.randn(2, 64 << 20).unbind()
    speed = (
        2
        * left.nbytes
        / statistics.median(seconds(lambda: torch.dot(left, right)) for _ in range(5))
    )
    print(
        f"\n{'compare':10} {'s':>8} {'GB/s':>7} {'of torch.dot':>13}   torch.dot {speed / 1e9:.1f} GB/s"
    )
    for save in SAVES:
        other = directory / f"{save}-other"
        shutil.copytree(directory / save, other)
        _perturb_digests(other)
        work = partial(lockstep.compare_recordings, directory / save, other)
        times = [seconds(work) for _ in range(3)]
        median = statistics.median(times)
        size = sum(file.stat().st_size for file in other.rglob("*.safetensors")) * 2
        rate = size / median
        text = f"{rate / 1e9:7.2f} {rate / speed:12.1%}" if size else f"{'-':>7} {'-':>12}"
        print(f"{save:10} {median:8.3f} {text}")


def _perturb_digests(recording: Path) -> None:
    """Make every digest of a recording differ, so that a comparison has to measure every pair."""
    import polars as pl

    for file in recording.glob("rank*/contents-*.parquet"):
        frame = pl.read_parquet(file).with_columns(pl.col("digest").str.replace("^.", "x"))
        frame.write_parquet(file)


def make_step(layers: int, width: int) -> Callable[[], None]:
    """A training step of a GPT-2 with random weights on random tokens."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=width, n_head=6, n_positions=128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, model.config.vocab_size, (4, 128))

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
