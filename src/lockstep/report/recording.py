"""Drawing one recording: its set-up, its sites as a tree, and the records of chosen sites. Opens no tensor."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator
from typing import Any

from lockstep.core.errors import SIGNALLED
from lockstep.core.manifest import RunManifest
from lockstep.core.process import how_started, rank_number
from lockstep.core.records import STATISTICS, Call, Statistics, TensorRecord
from lockstep.core.selection import RankSelection, StepSelection, is_rank, is_step
from lockstep.report.json_text import enveloped, finite
from lockstep.store.reader import RankRecording, Recording


def render_recording(
    recording: Recording,
    *,
    step: int | StepSelection | None = None,
    rank: str | RankSelection | None = None,
) -> str:
    """Return text about the whole recording: set-up, steps, gaps, then the sites as a tree."""
    lines = [*_setup_lines(recording)]
    for name, item in recording.ranks.items():
        if is_rank(rank, name):
            lines += ["", *_rank_lines(item), *_start_lines(recording, name), ""]
            first = next(iter(item.steps), None) if step is None else None
            shown = [one for one in item.steps if first in (None, one) and is_step(step, one)]
            for number in shown:
                lines += _tree_lines(item, number)
    return "\n".join(lines)


def render_calls(calls: list[Call]) -> str:
    """Text about single calls: arguments, call stack, and every record with its statistics."""
    return "\n\n".join("\n".join(_call_lines(call)) for call in calls)


def recording_json(
    recording: Recording,
    calls: list[Call] | None,
    *,
    step: int | StepSelection | None,
    rank: str | RankSelection | None,
) -> dict[str, Any]:
    """The same as JSON values; with `calls` their records, else the sites."""
    ranks = {name: item for name, item in recording.ranks.items() if is_rank(rank, name)}
    value: dict[str, Any] = enveloped(
        {
            "path": str(recording.path),
            "manifest": dataclasses.asdict(recording.manifest),
            "missing": list(recording.missing),
            "ranks": {
                name: finite(dataclasses.asdict(item.manifest)) for name, item in ranks.items()
            },
        }
    )
    if calls is not None:
        value["calls"] = [_call_json(call) for call in calls]
    else:
        value["sites"] = [
            {"rank": name, **row}
            for name, item in ranks.items()
            for row in item.call_table.sort("call_id")
            .select("step", "phase", "kind", "module", "module_class", "op", "call", "recomputed")
            .iter_rows(named=True)
            if is_step(step, row["step"])
        ]
    return value


# --- the set-up ------------------------------------------------------------------------------------------------------


def _setup_lines(recording: Recording) -> Iterator[str]:
    manifest = recording.manifest
    size = sum(file.stat().st_size for file in recording.path.rglob("*") if file.is_file())
    if recording.is_of_another_tool:
        yield f"{recording.path}: written by another tool, {size / 1e6:.2f} MB"
        yield from (f"  MISSING {sentence}" for sentence in recording.missing)
        return
    yield f"{recording.path}: {' '.join(manifest.command)}  ({_end_of(manifest)})"
    yield f"  made {manifest.created} by Lockstep {manifest.version} in {manifest.cwd}, {size / 1e6:.2f} MB"
    options = manifest.options
    yield f"  recorded level {options.level}, saving {options.save}, steps {options.steps}"
    if options.calibrate:
        yield "  calibration: every result was rounded at random"
    if options.redact:
        yield "  redacted: paths, names of user and host, and the command were left out"
    if options.emulate:
        yield f"  on an emulated device: {options.emulate}"
    if manifest.git:
        changed = " with changes" if manifest.git.get("changes") else ""
        yield f"  git {manifest.git.get('commit', '')[:12]}{changed}"
    for sentence in recording.missing:
        yield f"  MISSING {sentence}"


def _end_of(manifest: RunManifest) -> str:
    code = manifest.exit_code
    if code is None:
        complete = manifest.state == "complete"
        return "recorded from inside the script" if complete else "still running or cut off"
    number = code - SIGNALLED
    name = f", {signal.Signals(number).name}" if number in signal.valid_signals() else ""
    return f"exit code {code}{name}"


def _rank_lines(rank: RankRecording) -> Iterator[str]:
    manifest = rank.manifest
    versions = {"Python": manifest.python, **manifest.packages}
    software = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield f"{rank.name} of {manifest.world_size}{': ' * bool(software)}{software}"
    if manifest.devices or manifest.platform:
        yield f"  devices {', '.join(manifest.devices)}; {_pairs(manifest.platform)}"
    for name in ("asked", "numerics", "seeds", "mixed_precision", "distributed", "environment"):
        values = getattr(manifest, name)
        if values:
            yield f"  {name.replace('_', ' ')}: {_pairs(values)}"
    for setup in manifest.optimizers:
        if setup.step == manifest.optimizers[0].step:
            for group in setup.groups:
                yield f"  optimizer {setup.index} {setup.name}: {_pairs(group)}"
    for item in manifest.steps:
        state = "complete" if item.complete else "incomplete"
        skipped = ", update skipped by the gradient scaler" if item.skipped else ""
        yield f"  step {item.index}: {item.calls} calls, {state}{skipped}"
    records, contents = rank.record_count, rank.content_count
    yield f"  {records} tensor records of {contents} distinct contents, {len(rank.module_table)} modules"
    for gap in manifest.not_seen:
        yield f"  NOT SEEN {gap.what}: {gap.reason}" + (
            f" ({gap.count} times)" if gap.count > 1 else ""
        )
    for event in manifest.events:
        yield f"  EVENT step {event.step}: {event.kind}, {event.detail}"


def _start_lines(recording: Recording, name: str) -> Iterator[str]:
    """How a process was started, where several have its rank."""
    several = sum(rank_number(other) == rank_number(name) for other in recording.ranks) > 1
    if several and (started := how_started(recording.ranks[name].manifest)):
        yield f"  started as {started}"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items() if value is not None)


# --- the tree --------------------------------------------------------------------------------------------------------


def _tree_lines(rank: RankRecording, number: int) -> Iterator[str]:
    calls = rank.calls(number)
    known = {call.id for call in calls}
    children: dict[int, list[Call]] = {}
    for call in calls:
        children.setdefault(call.parent if call.parent in known else -1, []).append(call)
    yield f"step {number}, in order of time:"
    waiting = [(call, 1) for call in reversed(children.get(-1, []))]
    while waiting:
        call, depth = waiting.pop()
        yield f"{'  ' * min(depth, _DEEPEST)}{_branch(call)}"
        waiting.extend((inside, depth + 1) for inside in reversed(children.get(call.id, [])))


_DEEPEST = 50
"""Calls that lie deeper are indented no further."""


def _branch(call: Call) -> str:
    mark = " (recomputed)" if call.recomputed else ""
    name = call.site.module or "(model)"
    where = (
        f"{name} [{call.site.op}]"
        if call.kind.value == "module"
        else f"{call.site.op} #{call.site.call}"
    )
    if call.kind.value not in ("module", "operator"):
        named = ", ".join(dict.fromkeys(record.name.split("|")[0] for record in call.records))
        where = f"{call.kind.value}: {named} [{call.site.op}]"
    return f"{where}{mark}{_shapes(call)}"


def _shapes(call: Call) -> str:
    made = [
        record
        for record in call.records
        if record.role.value in ("output", "loss") and record.site.phase.value != "backward"
    ]
    if not made:
        return ""
    text = ", ".join(_kind(record) for record in made[:3])
    return f" -> {text}" + (", ..." if len(made) > 3 else "")


def _kind(record: TensorRecord) -> str:
    return f"{record.dtype}{list(record.shape)}"


# --- single calls ----------------------------------------------------------------------------------------------------


def _call_lines(call: Call) -> Iterator[str]:
    mark = ", recomputed" if call.recomputed else ""
    yield f"{call.rank} step {call.step}: {call.site}{mark}"
    if call.module_class and call.module_class != call.site.op:
        yield f"  in a {call.module_class}"
    if call.arguments:
        yield f"  arguments: {_pairs(call.arguments)}"
    for frame in call.stack[:8]:
        yield f"  at {frame} in {frame.function}"
    for record in call.records:
        again = f" (again, {record.occurrence})" if record.occurrence else ""
        place = f"{record.site.phase.value:9} {record.role.value:11} {record.index:<2}"
        yield f"  {place} {record.name}{again}: {_kind(record)}"
        yield f"      {_numbers(record)}"


def _numbers(record: TensorRecord) -> str:
    content, statistics = record.content, record.statistics
    if statistics is None:
        return content.note or "no numbers"
    known = {name: getattr(statistics, name) for name in ("minimum", "maximum", "mean", "norm")}
    text = "  ".join(f"{name} {value:.6g}" for name, value in known.items())
    for one in STATISTICS:
        if one.kind is int and (count := getattr(statistics, one.name)):
            text += f"  {one.heading.lower()} {count}"
    kept = "  saved whole" if content.loader is not None else ""
    return f"{text}  digest {(content.digest or '-')[:12]}{kept}"


def _call_json(call: Call) -> dict[str, Any]:
    return {
        "rank": call.rank,
        "step": call.step,
        "kind": call.kind.value,
        "phase": call.site.phase.value,
        "module": call.site.module,
        "module_class": call.module_class,
        "op": call.site.op,
        "call": call.site.call,
        "recomputed": call.recomputed,
        "arguments": finite(call.arguments),
        "stack": [dataclasses.asdict(frame) for frame in call.stack],
        "records": [_record_json(record) for record in call.records],
    }


def _record_json(record: TensorRecord) -> dict[str, Any]:
    return {
        "phase": record.site.phase.value,
        "role": record.role.value,
        "index": record.index,
        "name": record.name,
        "occurrence": record.occurrence,
        "content": record.content.id,
        "dtype": record.dtype,
        "shape": list(record.shape),
        "device": record.content.device,
        "digest": record.digest,
        "statistics": _statistics_json(record.statistics),
        "saved": record.content.loader is not None,
        "note": record.content.note,
    }


def _statistics_json(statistics: Statistics | None) -> dict[str, Any] | None:
    return None if statistics is None else finite(dataclasses.asdict(statistics))
