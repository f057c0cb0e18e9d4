"""`lockstep replay`: recorded operators run again, alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from lockstep.cli import options
from lockstep.cli.progress_bar import progress_bar
from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.exit_codes import code_of
from lockstep.core.progress import Progress
from lockstep.core.text import shell_line
from lockstep.replay.imported import import_of
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.replays import Replays
from lockstep.report.json_text import enveloped, json_text
from lockstep.report.rerun_results import refusals_json
from lockstep.store.reader import Recording, open_recording
from lockstep.store.record_command import new_place, program
from lockstep.wings.replay.chosen_calls import (
    AtOrigin,
    Chosen,
    all_calls,
    at_origin,
    calls_at,
    check_whole,
)
from lockstep.wings.replay.module_verb import Asked, replay_modules
from lockstep.wings.replay.replayed_call import ReplayedCall, call_json, not_run_again
from lockstep.wings.replay.screen import render_all, render_sites, render_smaller, render_story
from lockstep.wings.replay.smaller_inputs import SmallerInputs, smaller_inputs, smaller_json
from lockstep.wings.replay.story import Story, story_of
from lockstep.wings.replay.written_test import tested, write_test


@click.command()
@click.argument("recording", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path), required=False)
@options.site("Run these calls again")
@click.option(
    "--module", "module", metavar="PATTERN",
    help="Run a module's forward again, call after call, each on what those before it gave.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Run every operator and every update again.")
@options.step
@options.rank
@click.option("--device", default="", help="Where to run them, as in cuda:0.  [default: cpu]")
@click.option("--dtype", default="", help="In which dtype, as in bfloat16.  [default: as recorded]")
@click.option(
    "--emulate", "emulation", metavar="DEVICE", default="",
    help="As another device would; record --help lists them.",
)  # fmt: skip
@click.option(
    "--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="How often."
)
@options.limit("With --all and --module: print at most so many calls.")
@click.option(
    "--write-test", "folder", type=click.Path(path_type=Path),
    help="Write a stand-alone test of the call that is furthest off into this new folder.",
)  # fmt: skip
@click.option(
    "--import", "imports", metavar="MODULE:ATTR", multiple=True,
    help="Import this custom autograd function, which runs your code, and run calls of it again too; repeatable.",
)  # fmt: skip
@click.option(
    "--shrink", is_flag=True,
    help="Look for smaller inputs on which that call still fails; with --write-test the test is on them.",
)  # fmt: skip
@click.option(
    "--shrink-seconds", type=click.FloatRange(min=0.0, min_open=True), default=60.0, show_default=True,
    help="How long to look for them.",
)  # fmt: skip
@options.as_json
@options.memory_bytes("Memory that re-runs may take; what takes more is not run again.")
def replay(
    recording: Path,
    candidate: Path | None,
    site: str | None,
    module: str | None,
    every: bool,
    step: int | None,
    rank: str | None,
    device: str,
    dtype: str,
    emulation: str,
    repeat: int,
    limit: int,
    folder: Path | None,
    imports: tuple[str, ...],
    shrink: bool,
    shrink_seconds: float,
    as_json: bool,
    memory_bytes: int,
) -> int:
    """Run recorded operators again, alone, on their recorded inputs, forward and backward.

    Without --site and --all the origin is run again that `compare RECORDING CANDIDATE` names, RECORDING being the
    reference. What was recorded and what each re-run gives is held against the same operator in double precision;
    allowed is what a sound kernel may be off. Inputs are laid in memory as they were, and dropout drops the same. With
    --all no error accumulates from one operator to the next: each gets the inputs that were recorded. The recording
    must hold whole tensors (`record --save tensors`).

    --module runs a whole module again with its context: its recorded calls in their order, from what entered it, so
    that what accumulates is seen. Its result is held against the same chain in double precision, each call alone too.

    A custom autograd function is run again only where --import names it: importing runs your code, in a process that
    may not write, start others or reach the network (with --device or --write-test in this one). What it gives is held
    against the same function in double precision: that shows a device's error, not that of its formula.

    At an origin the candidate's results are held against the reference's call too, where the two call something else,
    and what that says stands below.

    Exit code 0 if all is sound, at an origin if that explains it; 1 if something is beyond what is allowed; 2 if
    nothing could be run again.

    \b
    lockstep replay ref npu
    lockstep replay ref npu --device npu:0 --repeat 5
    lockstep replay ref npu --write-test proof --shrink
    lockstep replay ref --all --device cuda
    lockstep replay ref --site 'h.3.*' --dtype bfloat16
    lockstep replay npu --module h.3.attn --device npu:0
    """
    if folder is not None and folder.exists():
        raise OutputExistsError(f"{folder}: is there already; give another folder")
    if sum((every, site is not None, module is not None)) > 1:
        raise UsageError("--all, --site and --module: give one of them")
    if module is not None and (dtype or shrink or repeat > 1):
        raise UsageError(
            "--module: leave out --dtype, --shrink and --repeat, which are for one operator"
        )
    if shrink and dtype:
        raise UsageError("--shrink and --dtype: inputs are made smaller in their recorded dtypes")
    runs = [open_recording(path) for path in (recording, candidate) if path is not None]
    wanted = [import_of(text) for text in imports]
    replays = Replays(device, dtype, emulation, memory_bytes=memory_bytes, imports=wanted)
    replays.bring(here=folder is not None)
    given: dict[str, object] = {
        "--site": site, "--module": module, "--step": step, "--rank": rank, "--device": device, "--dtype": dtype,
        "--emulate": emulation, "--import": imports,
    }  # fmt: skip
    if module is not None:
        asked = Asked(module, step, rank, limit, folder, as_json, given)
        return replay_modules(dict(zip(_names(runs), runs, strict=True)), asked, replays)
    origin, chosen = None, list[Chosen]()
    with progress_bar("replaying") as progress:
        if site is None and not every:
            origin = _at_origin(runs, memory_bytes)
            chosen = list(origin.calls)
        else:
            for run, name in zip(runs, _names(runs), strict=True):
                chosen += _chosen(run, name, site, step=step, rank=rank)
        emulated = {
            name: run.manifest.options.emulate or ""
            for name, run in zip(_names(runs), runs, strict=True)
        }
        done = _replayed(chosen, replays, repeat, emulated, progress)
        story = None if origin is None else story_of(origin, done)
        smaller = None
        if shrink:
            progress("on smaller inputs", 0, 1)
            smaller = smaller_inputs(tested(done, story), done, replays, shrink_seconds)
    context = _Context(replays.name, origin, story, smaller)
    if as_json:
        click.echo(json_text(_json(done, context)))
    else:
        _print(done, context, every=every, limit=limit)
        if folder is None and _can_be_written(done, context):
            again = _again(runs, given, every=every, shrink=shrink)
            click.echo(f"\nWhat next: write a stand-alone test of it\n  {again}")
    if folder is not None:
        instead = "" if origin is None else origin.instead
        one = tested(done, story)
        written = write_test(
            folder, one, _run_of(one, runs), story, instead, smaller=smaller, replays=replays
        )
        click.echo(written, err=as_json)
    for named in wanted:
        if not any(named.means(call.call.site.op) for call in done):
            click.echo(f"--import {named}: no call that was chosen is one of it", err=True)
    looked = any(one.held for one in done)
    beyond = any(one.worst > 1.0 for one in done)
    differs = beyond if context.story is None else not context.story.explained
    return code_of(differs=differs and looked, looked=looked)


@dataclass(frozen=True, slots=True)
class _Context:
    """What stands beside the results of calls."""

    machine: str
    origin: AtOrigin | None
    story: Story | None
    smaller: SmallerInputs | None


def _print(done: list[ReplayedCall], context: _Context, *, every: bool, limit: int) -> None:
    if context.origin is not None:
        instead = (
            context.origin.instead and f"\n  what it computes instead: {context.origin.instead}"
        )
        click.echo(f"{context.origin.said}{instead}\n")
    draw = partial(render_all, limit=limit) if every else render_sites
    click.echo(draw(done, context.machine).plain)
    if context.story is not None:
        click.echo(f"\n{render_story(context.story).plain}")
    if context.smaller is not None:
        click.echo(f"\n{render_smaller(context.smaller).plain}")


def _can_be_written(done: list[ReplayedCall], context: _Context) -> bool:
    if context.story is not None:
        return context.story.tested is not None
    return any(one.worst > 1.0 for one in done)


def _again(runs: list[Recording], given: Mapping[str, object], *, every: bool, shrink: bool) -> str:
    """The same command, with a test that is written."""
    words = [*program(), "replay", *(str(run.path) for run in runs), *(["--all"] if every else [])]
    for name, value in given.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [word for one in values if one not in (None, "") for word in (name, str(one))]
    words += ["--shrink"] if shrink else []
    place = new_place(runs[-1].path.with_name("proof"))
    return shell_line([*words, "--write-test", str(place)])


def _at_origin(runs: list[Recording], memory_bytes: int) -> AtOrigin:
    if len(runs) < 2:
        raise UsageError(
            f"{runs[0].path}: which operators? give --site SITE, --all, or a second recording, of which the origin is"
            " run again"
        )
    return at_origin(*runs, memory_bytes=memory_bytes)


def _run_of(one: ReplayedCall, runs: list[Recording]) -> Recording:
    return runs[0] if one.chosen.run == "reference" else runs[-1]


def _names(runs: list[Recording]) -> tuple[str, ...]:
    return ("reference", "candidate") if len(runs) == 2 else ("",)


def _chosen(
    run: Recording, name: str, site: str | None, *, step: int | None, rank: str | None
) -> list[Chosen]:
    if site is not None:
        return calls_at(run, name, site, step=step, rank=rank)
    found = list(all_calls(run, name, step=step, rank=rank))
    if not found:
        raise UsageError(f"{run.path}: holds no operator; record with --level api --save tensors")
    check_whole(run, [one.call for one in found])
    return found


def _replayed(
    chosen: Iterable[Chosen],
    replays: Replays,
    repeat: int,
    emulated: Mapping[str, str],
    progress: Progress,
) -> list[ReplayedCall]:
    calls = list(chosen)
    done = []
    for number, one in enumerate(calls):
        progress(str(one.call.site), number, len(calls))
        same = replays.is_like(one.call, emulated[one.run])
        try:
            results = replays.again(one.call, repeat=repeat, like=one.like)
        except (CannotReplay, MemoryError) as error:
            done.append(ReplayedCall(one, (), str(error) or "it takes too much memory", same))
        else:
            done.append(ReplayedCall(one, tuple(results), "", same))
    return done


def _json(done: list[ReplayedCall], context: _Context) -> dict[str, object]:
    origin, story = context.origin, context.story
    values = {
        "machine": context.machine,
        "compared": None if origin is None else origin.said,
        "computes_instead": (origin.instead or None) if origin is not None else None,
        "story": None if story is None else story.words,
        "explained": None if story is None else story.explained,
        "held": sum(len(one.held) for one in done),
        "beyond": sum(one.worst > 1.0 for one in done),
        "not_run_again": refusals_json(not_run_again(done)),
        "smaller_inputs": smaller_json(context.smaller),
        "calls": [call_json(one) for one in done],
    }
    return enveloped(values)
