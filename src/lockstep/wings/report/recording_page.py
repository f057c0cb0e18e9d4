"""The page of one recording: its loss and norms over steps, what it was fed, and every tensor with its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from lockstep.core.records import TensorRecord
from lockstep.core.redaction import REDACTED
from lockstep.core.site import CallKind
from lockstep.core.text import shell_line
from lockstep.reading import record_table
from lockstep.report.page import (
    Card,
    Chart,
    Columns,
    Command,
    Commands,
    Grid,
    HeatMap,
    Kind,
    Line,
    Metric,
    Page,
    Rows,
    Scatter,
    Selected,
    Sentences,
    Subject,
    Table,
    TableColumn,
    Tree,
    Verdict,
    Work,
)
from lockstep.report.page import TextColumn as PageText
from lockstep.report.page.island import trimmed
from lockstep.report.page.page import Block, Column, Text
from lockstep.store.reader import Recording
from lockstep.wings.report.comparison_types import TextColumn

KINDS = (
    Kind("not finite", "origin", "fault", 6),
    Kind("loss", "better", "setup", 5),
    Kind("gradient", "inherited", "noise", 4),
    Kind("parameter", "data", "noise", 3),
    Kind("state", "uniform", "noise", 2),
    Kind("batch", "decision", "noise", 2),
    Kind("activation", "noise", "noise", 1),
)
_KIND_OF_ROLE = {
    "loss": "loss", "param_grad": "gradient", "grad_input": "gradient", "grad_output": "gradient",
    "param": "parameter", "param_after": "parameter", "buffer": "parameter", "state": "state",
    "state_after": "state", "input": "activation", "output": "activation",
}  # fmt: skip

_NUMBERS = ("norm", "mean", "minimum", "maximum", "nan_count", "inf_count", "zero_count")
_COLUMNS = (
    "rank", "step", "phase", "module", "op", "call", "role", "index", "name", "dtype", "shape", "note", "kind",
    *_NUMBERS,
)  # fmt: skip

LARGEST_ROWS = 300_000
_LARGEST_BATCH = 1 << 22
"""Elements of a tensor of the batch that is drawn."""

_CELLS = (64, 128)
"""Rows and columns of the picture of a batch."""


def recording_page(recording: Recording) -> Page:
    """Compose the page of one recording.

    Raises
    ------
    CorruptError
        If a file of it is damaged.
    """
    table = record_table(recording, columns=_COLUMNS)
    shown = table.head(LARGEST_ROWS)
    kinds = _kinds(shown)
    name = Path(recording.path).name or str(recording.path)
    left_out = (
        f"{len(table) - len(shown)} more tensors are not listed. "
        if len(table) > len(shown)
        else ""
    )
    work = Work(
        Tree("Modules", classes=_classes(recording), empty="No module was recorded."),
        Scatter(
            "Numbers over execution order",
            tuple(Metric(one, one.replace("_", " ")) for one in _NUMBERS),
            empty="Nothing to plot: no tensor was recorded.",
        ),
        Table("Tensors", _TABLE, note=left_out, empty="No tensor was recorded."),
        Selected("Selected tensor"),
    )
    return Page(
        title=f"{name} · Lockstep",
        areas=(
            _verdict(recording, table, kinds),
            _over_steps(recording, table),
            work,
            _more(recording),
        ),
        subjects=(Subject("recording", name),),
        about=_about(recording),
        rows=_rows(shown, kinds),
    )


_TABLE = (
    TableColumn("kind", "kind", "kind"),
    TableColumn("when", "step", "when"),
    TableColumn("module / operator", "module", "site"),
    TableColumn("role", "role"),
    TableColumn("tensor", "tensor"),
    TableColumn("norm", "norm", "number"),
    TableColumn("mean", "mean", "number"),
    TableColumn("min", "minimum", "number", shown=False),
    TableColumn("max", "maximum", "number", shown=False),
    TableColumn("NaN", "nan_count", "number", shown=False),
    TableColumn("inf", "inf_count", "number", shown=False),
    TableColumn("zeros", "zero_count", "number", shown=False),
    TableColumn("dtype", "dtype", shown=False),
    TableColumn("shape", "shape", shown=False),
    TableColumn("rank", "rank", shown=False),
)


def _kinds(table: pl.DataFrame) -> list[str]:
    """The kind of every row; one that is not finite before all."""
    broken = table.select(
        (pl.col("nan_count").fill_null(0) + pl.col("inf_count").fill_null(0)) > 0
    ).to_series()
    return [
        "not finite"
        if bad
        else "batch"
        if phase == "data"
        else _KIND_OF_ROLE.get(role, "activation")
        for bad, phase, role in zip(broken, table["phase"], table["role"], strict=True)
    ]


def _rows(table: pl.DataFrame, kinds: list[str]) -> Rows:
    shapes = [str(list(one)) for one in table["shape"]]
    texts: dict[str, Sequence[str] | pl.Series] = {
        "rank": table["rank"], "phase": table["phase"], "module": table["module"], "operator": table["op"],
        "role": table["role"], "tensor": table["name"], "dtype": table["dtype"], "reason": table["note"],
        "shape": shapes, "kind": kinds, "source": [""] * len(kinds),
    }  # fmt: skip
    columns: dict[str, Column] = {name: _text(values) for name, values in texts.items()}
    for name in ("step", "call", "index"):
        columns[name] = table[name].to_numpy().astype(np.int32)
    for name in _NUMBERS:
        columns[name] = trimmed(table[name].cast(pl.Float64).fill_null(float("nan")).to_numpy())
    broken = [row for row, kind in enumerate(kinds) if kind == "not finite"]
    first = next((row for row, kind in enumerate(kinds) if kind == "loss"), 0 if kinds else -1)
    return Rows(
        columns, KINDS, marked=broken[:1], selected=broken[0] if broken else first,
        value="norm", unit="norm", scaled=False,
    )  # fmt: skip


def _text(values: Sequence[str] | pl.Series) -> PageText:
    found = TextColumn.of(values)
    return PageText(found.codes, found.names)


def _verdict(recording: Recording, table: pl.DataFrame, kinds: list[str]) -> Verdict:
    steps = sorted({step for rank in recording.ranks.values() for step in rank.steps})
    broken = kinds.count("not finite")
    first = kinds.index("not finite") if broken else -1
    sentence: Text = (
        f"{len(steps)} step{'s'[: len(steps) != 1]} with {len(table)} tensors were recorded."
    )
    facts: list[tuple[str, Text]] = [("Saved", recording.manifest.options.save)]
    if broken:
        where = f"{table['module'][first] or 'the model'} / {table['op'][first]}"
        facts.insert(
            0,
            (
                "Not finite",
                f"{broken} tensors, the first at step {table['step'][first]} in {where}",
            ),
        )
    trained = {rank.manifest.trained for rank in recording.ranks.values() if rank.manifest.trained}
    if trained:
        facts.append(("Trained", f"{', '.join(map(str, sorted(trained)))} steps in all"))
    if recording.manifest.exit_code:
        facts.append(("Ended", f"the command ended with exit code {recording.manifest.exit_code}"))
    path = str(recording.path)
    commands = Commands(
        (
            Command("See it in the terminal", shell_line(["lockstep", "show", path])),
            Command("Check every operator of it", shell_line(["lockstep", "audit", path])),
        )
    )
    colour, icon = ("fault", "origin") if broken else ("equal", "data")
    return Verdict(
        "fault" if colour == "fault" else "equal", icon, "Recording",
        f"{len(recording.ranks)} rank{'s'[: len(recording.ranks) != 1]}", sentence, facts=facts, commands=commands,
    )  # fmt: skip


def _over_steps(recording: Recording, table: pl.DataFrame) -> Card:
    """Loss, and the norm of all gradients and of all parameters."""
    losses = table.filter(pl.col("role") == "loss")
    charts: list[Block] = []
    later = [
        (one.step, one.value) for rank in list(recording.ranks.values())[:1] for one in rank.losses
    ]
    if len(losses):
        charts.append(
            _chart(
                "Loss",
                [(step, mean) for step, mean in losses.select("step", "mean").iter_rows()] + later,
            )
        )
    for title, role, kind in (
        ("Norm of all gradients", "param_grad", "gradient"), ("Norm of all parameters", "param_after", "optimizer"),
    ):  # fmt: skip
        norms = (
            table.filter((pl.col("role") == role) & (pl.col("kind") == kind))
            .group_by("step", maintain_order=True)
            .agg((pl.col("norm") ** 2).sum().sqrt())
        )
        if len(norms):
            charts.append(_chart(title, list(norms.iter_rows())))
    empty = Sentences((), empty="No loss, gradient or parameter was recorded.")
    return Card("Over steps", charts or [empty])


def _chart(title: str, points: Sequence[tuple[int, float | None]]) -> Chart:
    ordered = sorted(dict(points).items())
    values = np.array(
        [np.nan if value is None else value for _, value in ordered], dtype=np.float64
    )
    return Chart(
        title,
        np.array([step for step, _ in ordered], dtype=np.float64),
        (Line(title, values),),
        "step",
    )


def _more(recording: Recording) -> Columns:
    manifest = recording.manifest
    first = next(iter(recording.ranks.values()), None)
    setup: list[tuple[str, str]] = []
    if first is not None:
        setup += [*first.manifest.packages.items(), *first.manifest.numerics.items()]
        setup += [("device", ", ".join(first.manifest.devices))]
    command = shell_line(manifest.command) if manifest.command not in ([], [REDACTED]) else ""
    said = [*recording.missing, *(f"not recorded: {one}" for one in recording.unrecorded)]
    return Columns(
        "What was recorded",
        (
            Card("The first batch", list(_batch(recording))),
            Card("Set-up", (Grid(("what", "value"), setup),)),
            Card("Not seen", (Sentences(said, empty="Nothing is known to be missing."),)),
            Card("The run", (Commands((Command("How it was run", command),), "How it was run"),) if command else ()),
        ),
    )  # fmt: skip


def _batch(recording: Recording) -> Iterator[Block]:
    """The tensors that the first step was fed, as pictures where they were kept whole."""
    rank = next(iter(recording.ranks.values()), None)
    steps = rank.steps if rank is not None else ()
    records = [
        record
        for call in (rank.calls(steps[0], kind=CallKind.DATA) if rank is not None and steps else ())
        for record in call.records
    ]
    if not records:
        yield Sentences((), empty="No batch was recorded.")
    for record in records[:4]:
        title = f"{record.name} {record.dtype} {list(record.shape)}"
        picture = _picture(record)
        yield (
            picture
            if picture is not None
            else Sentences(("Its numbers stand in the table below.",), title)
        )


def _picture(record: TensorRecord) -> HeatMap | None:
    """Every so many-th element of a tensor, the last axis across."""
    content = record.content
    if content.loader is None or not 0 < content.numel <= _LARGEST_BATCH:
        return None
    values = np.asarray(record.load())
    if values.dtype.kind not in "fiub":
        return None
    flat = values.reshape(-1, values.shape[-1] if values.ndim else 1).astype(np.float64)
    down, across = (max(1, -(-size // most)) for size, most in zip(flat.shape, _CELLS, strict=True))
    cells = flat[::down, ::across]
    thinned = f", every {down}. row and {across}. column" if down * across > 1 else ""
    return HeatMap(
        f"{record.name} {record.dtype}", cells.shape[0], cells.shape[1], trimmed(cells.ravel(), 8),
        f"axes {list(record.shape)}, the last one across{thinned}", signed=bool((cells < 0).any()),
    )  # fmt: skip


def _classes(recording: Recording) -> dict[str, str]:
    """By path, class, size and set-up of every module; the first rank's."""
    found: dict[str, str] = {}
    for rank in list(recording.ranks.values())[:1]:
        for row in rank.module_table.iter_rows(named=True):
            size = f", {row['parameters']} parameters" if row["parameters"] else ""
            found[row["module"]] = f"{row['module_class']}{size} {row['settings']}"
    return found


def _about(recording: Recording) -> str:
    first = next(iter(recording.ranks.values()), None)
    version = first.manifest.packages.get("torch", "") if first is not None else ""
    return f"torch {version}" if version else ""
