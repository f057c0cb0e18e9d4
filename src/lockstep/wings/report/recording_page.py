"""The page of one recording: its loss and norms over steps, what it was fed, and every tensor with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from lockstep.commands.record_again import command_line
from lockstep.core.records import HEADINGS
from lockstep.reading.record_tables import record_table
from lockstep.reading.recorded_series import Series
from lockstep.report.page import (
    Card,
    Chart,
    Columns,
    Command,
    Commands,
    Facts,
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
from lockstep.wings.report.batch_blocks import batch_blocks
from lockstep.wings.report.comparison_types import Floats, TextColumn
from lockstep.wings.report.recording_data import gather_recording
from lockstep.wings.report.recording_types import RecordingData
from lockstep.wings.report.value_blocks import value_details

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

_SHOWN = ("norm", "mean")
_NUMBERS = (*_SHOWN, *(one for one in HEADINGS if one not in _SHOWN))
_COLUMNS = (
    "rank", "step", "phase", "module", "op", "call", "role", "index", "name", "dtype", "shape", "note", "kind",
    *_NUMBERS,
)  # fmt: skip

LARGEST_ROWS = 300_000


def recording_page(recording: Recording) -> Page:
    """Compose the page of one recording. Raises CorruptError if a file of it is damaged."""
    data = gather_recording(recording)
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
        Tree("Modules", classes=_classes(data), empty="No module was recorded."),
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
            _over_steps(data),
            work,
            Card("The first batch", [*chain(*map(batch_blocks, data.batch))] or [_NO_BATCH]),
            _more(data),
        ),
        subjects=(Subject("recording", name),),
        about=_about(recording),
        rows=_rows(shown, kinds, data),
    )


_TABLE = (
    TableColumn("kind", "kind", "kind"),
    TableColumn("when", "step", "when"),
    TableColumn("module / operator", "module", "site"),
    TableColumn("role", "role"),
    TableColumn("tensor", "tensor"),
    *(TableColumn(HEADINGS[one], one, "number", shown=one in _SHOWN) for one in _NUMBERS),
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


def _rows(table: pl.DataFrame, kinds: list[str], data: RecordingData) -> Rows:
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
    columns["std"] = trimmed(_deviation(table))
    broken = [row for row, kind in enumerate(kinds) if kind == "not finite"]
    first = next((row for row, kind in enumerate(kinds) if kind == "loss"), 0 if kinds else -1)
    return Rows(
        columns, KINDS, marked=broken[:1], selected=broken[0] if broken else first,
        details=value_details(table, data.values), value="norm", unit="norm", scaled=False,
    )  # fmt: skip


def _deviation(table: pl.DataFrame) -> Floats:
    """Standard deviation of the finite elements, from their norm and mean."""
    finite = pl.col("shape").list.eval(pl.element().product()).list.first().fill_null(1)
    count = finite - pl.col("nan_count").fill_null(0) - pl.col("inf_count").fill_null(0)
    variance = pl.col("norm") ** 2 / count - pl.col("mean") ** 2
    found = table.select(variance.clip(lower_bound=0).sqrt().cast(pl.Float64)).to_series()
    return found.fill_null(float("nan")).to_numpy()


def _text(values: Sequence[str] | pl.Series) -> PageText:
    found = TextColumn.of(values)
    return PageText(found.codes, found.names)


def _verdict(recording: Recording, table: pl.DataFrame, kinds: list[str]) -> Verdict:
    steps = sorted({step for rank in recording.ranks.values() for step in rank.steps})
    broken = kinds.count("not finite")
    first = kinds.index("not finite") if broken else -1
    sentence, lede = "Nothing was recorded.", "; ".join(recording.missing)
    if len(table):
        count = f"{len(steps)} step{'s'[: len(steps) != 1]}"
        sentence, lede = f"{count} with {len(table)} tensors were recorded.", ""
    facts: list[tuple[str, Text]] = [("Saved", _saved(recording))]
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
    next_ones = [Command("See it in the terminal", command_line("show", path))]
    if len(table):
        line = command_line("audit", path)
        next_ones.append(Command("Check every operator of it", line))
    colour, icon = ("fault", "origin") if broken else ("equal", "data")
    return Verdict(
        "fault" if colour == "fault" else "equal", icon, "Recording",
        f"{len(recording.ranks)} rank{'s'[: len(recording.ranks) != 1]}", sentence, lede, facts,
        commands=Commands(next_ones),
    )  # fmt: skip


def _saved(recording: Recording) -> str:
    saved = recording.manifest.options.save
    if recording.has_whole_calls:
        return saved
    return f"{saved}: how values lie is told by smallest, largest, mean and deviation; --save tensors has them all"


def _over_steps(data: RecordingData) -> Card:
    """Loss, learning rates, and the norms of all gradients and parameters: a chart each, a curve per rank."""
    series: dict[str, list[Series]] = {}
    for one in (*data.losses, *data.scalars):
        series.setdefault(one.quantity, []).append(one)
    charts: list[Block] = [_chart(name, found) for name, found in series.items()]
    empty = Sentences((), empty="No loss, gradient or parameter was recorded.")
    return Card("Over steps", charts or [empty])


def _chart(name: str, series: Sequence[Series]) -> Chart:
    """Curves over the steps of all ranks; where a rank has no number there is a gap."""
    steps = sorted({int(step) for one in series for step in one.steps})
    lines = []
    for one in series:
        values = dict(zip(one.steps.tolist(), one.values.tolist(), strict=True))
        known = np.array([values.get(step, np.nan) for step in steps], dtype=np.float64)
        lines.append(Line(f"{one.rank}{one.when}", known, dashed=one.is_later))
    return Chart(_capital(name), np.array(steps, dtype=np.float64), lines, "step")


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _more(data: RecordingData) -> Columns:
    command = data.run.command
    run = (
        (Commands((Command(f"In {data.run.path}", command),), "How it was run"),) if command else ()
    )
    groups: dict[str, list[str]] = {}
    for one in data.facts:
        groups.setdefault(one.group, []).append(f"{one.name} {one.value}")
    facts = [(group, " · ".join(known)) for group, known in groups.items()]
    return Columns(
        "What was recorded",
        (
            Card("Set-up", (Facts(facts),)),
            Card(
                "Not seen", (Sentences(data.missing, empty="Nothing is known to be missing."), *run)
            ),
        ),
    )


_NO_BATCH = Sentences((), empty="No batch was recorded.")


def _classes(data: RecordingData) -> dict[str, str]:
    """By path, class, size and set-up of every module."""
    return {
        one.path: f"{one.module_class}, {one.parameters_inside} parameters {one.settings}"
        for one in data.modules
    }


def _about(recording: Recording) -> str:
    first = next(iter(recording.ranks.values()), None)
    version = first.manifest.packages.get("torch", "") if first is not None else ""
    return f"torch {version}" if version else ""
