"""Recordings to compare: real ones with whole tensors, and real rows multiplied into many."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import polars as pl
import torch
import trainings
from bench import Size, bytes_below

import lockstep
from lockstep.store import schema
from lockstep.store.reader import open_recording
from lockstep.store.writer import RankWriter

NOISE = "reorder"
"""Emulated device of the noisy candidates: it sums in another order, so that nearly every tensor differs by noise."""


def record_steps(path: Path, size: Size, *, save: str, steps: int, emulate: str = "") -> None:
    """Record the first steps of a GPT-2; the same training each time."""
    step = trainings.gpt2(size)
    torch.manual_seed(1)
    with lockstep.record(path, model=step.model, steps=f"0:{steps}", save=save, emulate=emulate):
        for _ in range(steps):
            step()


def steps_for(size: Size, total_bytes: int, scratch: Path) -> int:
    """How many steps of whole tensors fill that many bytes on disk."""
    record_steps(scratch, size, save="tensors", steps=2)
    step_bytes = bytes_below(scratch) / 2
    shutil.rmtree(scratch)
    return max(1, math.ceil(total_bytes / step_bytes))


def copy_with_other_digests(source: Path, target: Path) -> None:
    """Copy a recording and change every digest, so that a comparison has to measure every pair."""
    shutil.copytree(source, target)
    for file in target.glob("rank*/contents-*.parquet"):
        frame = pl.read_parquet(file).with_columns(pl.col("digest").str.replace("^.", "x"))
        frame.write_parquet(file)
    for manifest in target.glob("rank*/manifest.json"):
        value = json.loads(manifest.read_text())
        del value["files"], value["digest"]  # they would tell of what was changed here
        manifest.write_text(json.dumps(value))


def read_once(*paths: Path) -> None:
    """Bring every file of these recordings into the page cache."""
    for path in paths:
        for file in path.rglob("*"):
            if file.is_file():
                with file.open("rb") as stream:
                    while stream.read(16 << 20):
                        pass


def multiplied(source: Path, target: Path, records: int) -> int:
    """Write a recording of at least `records` tensor records: step 0 of a recording, then its step 1 again and again.

    Every copy has numbers and digests of its own, as if the training had gone on.

    Parameters
    ----------
    source
        A recording of two steps, without whole tensors.
    target
        Where to; must not exist.

    Returns
    -------
    int
        How many tensor records it holds.
    """
    rank = open_recording(source).ranks["rank0"]
    tables = {name: _table(rank.path, name) for name in ("calls", "records", "contents")}
    (target / rank.name).mkdir(parents=True)
    shutil.copy(source / schema.MANIFEST, target / schema.MANIFEST)
    writer = RankWriter(target / rank.name)
    for number, frames in rank.stacks.items():
        writer.add_stack(number, frames)
    for row in rank.module_table.rows():
        writer.add_module(row)
    written, step = _add_copy(writer, tables, 0), 0
    while written < records:
        step += 1
        written += _add_copy(writer, tables, step)
    first, second = rank.manifest.steps
    steps = [first, *(replace(second, index=number) for number in range(1, step + 1))]
    writer.write_manifest(asdict(replace(rank.manifest, steps=steps)))
    writer.close()
    if writer.failure:
        raise RuntimeError(writer.failure)
    return written


def _table(rank: Path, name: str) -> pl.DataFrame:
    return pl.concat(pl.read_parquet(file) for file in sorted(rank.glob(f"{name}-*.parquet")))


def _add_copy(writer: RankWriter, tables: dict[str, pl.DataFrame], step: int) -> int:
    """Add step 0 as it is, or step 1 as any later one; returns how many records it has."""
    calls = tables["calls"].filter(pl.col("step") == min(step, 1))
    records = tables["records"].filter(pl.col("call_id").is_in(calls["call_id"].to_list()))
    contents = tables["contents"].filter(
        pl.col("content").is_in(records["content"].unique().to_list())
    )
    shift = {
        column: step * (int(tables[name][column].max()) + 1)  # type: ignore[arg-type]
        for name, column in (("calls", "call_id"), ("records", "sequence"), ("contents", "content"))
    }
    shifted = [pl.col(name) + shift[name] for name in ("call_id", "sequence")]
    parent = pl.when(pl.col("parent") >= 0).then(pl.col("parent") + shift["call_id"]).otherwise(-1)
    number = pl.lit(step, dtype=schema.CALLS["step"]).alias("step")
    for row in calls.with_columns(*shifted, parent.alias("parent"), number).rows():
        writer.add_call(row)
    content = pl.col("content") + shift["content"]
    salted = pl.concat_str(pl.lit(f"{step:08x}"), pl.col("digest").str.slice(8)).alias("digest")
    for row in contents.with_columns(content, *([salted] if step else [])).rows():
        writer.add_content(row)
    for row in records.with_columns(*shifted, content).rows():
        writer.add_record(row)
    return records.height
