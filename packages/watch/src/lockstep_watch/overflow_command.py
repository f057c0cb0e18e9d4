"""`lockstep overflow`: the operator that makes the first NaN or inf out of finite numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import click

from lockstep import options
from lockstep.errors import UsageError, code_of
from lockstep.launch import Ended, WrittenStep
from lockstep.options import TrainingCommand, runs_elsewhere, training_command
from lockstep.recordings import Options, Source, sources_of
from lockstep.terminal import counted, enveloped, json_text, printable, say, tell
from lockstep_watch.observed import Memory, ObservedStep, largest_magnitude
from lockstep_watch.places import own_streams
from lockstep_watch.running import end_soon, watch_training, what_is_missing

_MOST_TAKEN = 4


@dataclass(slots=True)
class _Found:
    """What came of it: sources with their rank and step, and what a gradient scaler did."""

    sources: list[tuple[str, int, Source]] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    scales: list[float] = field(default_factory=list)
    stopped: bool = False


@runs_elsewhere()
@click.command(cls=TrainingCommand)
@click.option(
    "--hits", type=click.IntRange(min=1), default=1, show_default=True, help="Report the first N."
)
@options.option("--only", multiple=True)
@click.option(
    "--stop", is_flag=True, help="End the training, with exit code 0, after these reports."
)
@options.as_json
def overflow(hits: int, only: tuple[str, ...], stop: bool, as_json: bool) -> int:
    """Run a training and name the operator that makes the first NaN or inf out of finite numbers.

    Lockstep looks at forward, backward, clipping and the optimizer. An inf that your script writes
    on purpose, as into an attention mask, does not count, nor a value that reaches no loss,
    gradient or update. Steps that a GradScaler skips are counted, not reported.

    Exit code 0 if there is none, 1 if there is one, 2 if nothing could be looked at or the training
    failed.

    \b
    lockstep overflow -- python train.py
    lockstep overflow --hits 5 -- torchrun --nproc_per_node 2 train.py
    """
    command = training_command()
    if not command:
        raise UsageError("give the training's command after --")
    found = _Found()

    def look(written: WrittenStep) -> None:
        step = ObservedStep(written.rank, written.name, written.number, Memory())
        found.steps[written.name] = found.steps.get(written.name, 0) + 1
        found.skipped += step.is_skipped
        if step.loss_scale is not None:
            found.scales.append(step.loss_scale)
        for source in sources_of(step):
            if len(found.sources) < hits:
                found.sources.append((written.name, written.number, source))
                say(_first_line(written.name, written.number, source))
        if stop and len(found.sources) >= hits and not found.stopped:
            found.stopped = True
            say(f"the training is asked to end after step {end_soon(written)} (--stop)")

    recorded = Options(steps="0:", save="stats", only=list(only))
    ended = watch_training(
        command, recorded, look, tell, may_end=stop, **own_streams(as_json=as_json)
    )
    click.echo(json_text(enveloped(_values(found, ended))) if as_json else _text(found, ended))
    looked = bool(found.steps) and not (ended.code or ended.unwritten)
    return code_of(differs=bool(found.sources), looked=looked)


def _first_line(rank: str, step: int, source: Source) -> str:
    return printable(
        f"step {step}, {rank}: {source.words} out of {source.call.site}, {source.part.value}"
    )


def _text(found: _Found, ended: Ended) -> str:
    lines = [_headline(found)]
    for rank, step, source in found.sources:
        lines += ["", *(printable(line) for line in _story(rank, step, source))]
    scale = _scale_line(found)
    if scale:
        lines += ["", scale]
    return "\n".join([*lines, *what_is_missing(ended)])


def _headline(found: _Found) -> str:
    steps = counted(max(found.steps.values(), default=0), "step")
    skipped = f"; a gradient scaler skipped {found.skipped}" if found.skipped else ""
    if not found.sources:
        return f"no operator makes a NaN or an inf that does harm in {steps}{skipped}"
    rank, step, source = found.sources[0]
    return printable(
        f"OVERFLOW in step {step}, {rank}, {source.part.value}: {source.call.site}{skipped}"
    )


def _story(rank: str, step: int, source: Source) -> list[str]:
    made = source.made
    lines = [f"{source.call.site}  {source.call.source}".rstrip()]
    lines.append(
        f"  step {step}, {rank}, {source.part.value}: {made.role.value} {made.name} holds {source.words}"
    )
    for record in source.taken[:_MOST_TAKEN]:
        largest = largest_magnitude(record)
        if largest is not None and record is not made:
            size = f"largest magnitude {largest:.4g}"
            lines.append(
                f"  from {record.role.value} {record.name}: finite, {size} ({record.content.dtype})"
            )
    if not source.reads:
        lines.append("  what went in was not recorded: it is the first that is seen of it")
    return lines


def _scale_line(found: _Found) -> str:
    if not found.scales:
        return ""
    last = found.scales[-1]
    told = f"loss scale: {found.scales[0]:g} at first, {last:g} at last"
    if last < 1.0:
        told += (
            " - below 1, which no overflow of sound gradients asks for: something makes NaN or inf in every step, or"
            " the numbers do not fit the dtype at all"
        )
    return told


def _values(found: _Found, ended: Ended) -> dict[str, Any]:
    return {
        "overflow": bool(found.sources),
        "steps": found.steps,
        "skipped": found.skipped,
        "loss_scales": found.scales,
        "found": [
            {
                "rank": rank, "step": step, "site": str(one.call.site), "part": one.part.value,
                "role": one.made.role.value, "name": one.made.name, "holds": one.words,
                "source": one.call.source,
            }
            for rank, step, one in found.sources
        ],
        "exit_code": ended.code,
        "not_written": ended.unwritten,
    }  # fmt: skip
