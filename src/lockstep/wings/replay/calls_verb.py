"""`lockstep replay` of single operators and updates: those at an origin, at a site, or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import click

from lockstep.cli.progress_bar import progress_bar
from lockstep.core.errors import UsageError, code_of
from lockstep.core.progress import Progress
from lockstep.replay.calls.imported import Import
from lockstep.report.json_text import enveloped, json_text
from lockstep.report.rerun_results import refusals_json
from lockstep.store.reader import Recording
from lockstep.wings.replay.asked import Asked, named
from lockstep.wings.replay.chosen_calls import (
    AtOrigin,
    Chosen,
    all_calls,
    at_origin,
    calls_at,
    check_whole,
)
from lockstep.wings.replay.replayed_call import ReplayedCall, call_json, not_run_again, replayed
from lockstep.wings.replay.replays import Replays
from lockstep.wings.replay.screen import render_all, render_sites, render_smaller, render_story
from lockstep.wings.replay.smaller_inputs import SmallerInputs, smaller_inputs, smaller_json
from lockstep.wings.replay.story import Story, story_of
from lockstep.wings.replay.written_test import tested, write_test


@dataclass(frozen=True, slots=True)
class Found:
    """The results of re-runs, with their context.

    machine: Where they were run.
    calls: Each.
    origin, story: What comparing named, and what the re-runs say of it; None where no origin was asked for.
    smaller: Smaller inputs on which one still fails; None where they were not looked for.
    """

    machine: str
    calls: list[ReplayedCall]
    origin: AtOrigin | None
    story: Story | None
    smaller: SmallerInputs | None

    @property
    def looked(self) -> bool:
        """Whether anything was held against double precision."""
        return any(one.held for one in self.calls)

    @property
    def beyond(self) -> int:
        """Calls that are beyond what is allowed."""
        return sum(one.worst > 1.0 for one in self.calls)

    @property
    def differs(self) -> bool:
        """Whether something is off; at an origin, whether that is left unexplained."""
        return bool(self.beyond) if self.story is None else not self.story.explained

    @property
    def can_be_written(self) -> bool:
        """Whether there is something that a test of it would show."""
        if self.story is None:
            return bool(self.beyond)
        return self.story.tested is not None and not self.story.cannot_show


def replay_calls(
    runs: Sequence[Recording], asked: Asked, replays: Replays, memory_bytes: int
) -> Found:
    """Run calls again, say what came of it, and write a test where one is asked for."""
    with progress_bar("replaying") as progress:
        found = _found(runs, asked, replays, memory_bytes, progress)
    if asked.as_json:
        click.echo(json_text(_json(found)))
    else:
        _print(found, asked)
        if asked.folder is None and found.can_be_written:
            click.echo(f"\nWhat next: write a stand-alone test of it\n  {asked.again(runs)}")
    if asked.folder is not None:
        click.echo(_written(found, runs, asked, replays), err=asked.as_json)
    return found


def say_unmet(wanted: Sequence[Import], found: Found) -> None:
    """Say which functions that were to be imported none of the calls is one of."""
    for one in wanted:
        if not any(one.means(call.call.site.op) for call in found.calls):
            click.echo(f"--import {one}: no call that was chosen is one of it", err=True)


def exit_code(found: Found) -> int:
    """As the verb ends."""
    return code_of(differs=found.differs and found.looked, looked=found.looked)


def _found(
    runs: Sequence[Recording],
    asked: Asked,
    replays: Replays,
    memory_bytes: int,
    progress: Progress,
) -> Found:
    origin = _at_origin(runs, memory_bytes) if asked.at_origin else None
    chosen = list(origin.calls) if origin is not None else _chosen(runs, asked)
    emulated = {name: run.manifest.options.emulate or "" for name, run in named(runs).items()}
    done = []
    for number, one in enumerate(chosen):
        progress(str(one.call.site), number, len(chosen))
        done.append(replayed(one, emulated[one.run], replays, asked.repeat))
    story = None if origin is None else story_of(origin, done)
    smaller = None
    if asked.shrink_seconds is not None:
        progress("on smaller inputs", 0, 1)
        smaller = smaller_inputs(tested(done, story), done, replays, asked.shrink_seconds)
    return Found(replays.name, done, origin, story, smaller)


def _at_origin(runs: Sequence[Recording], memory_bytes: int) -> AtOrigin:
    if len(runs) < 2:
        raise UsageError(
            f"{runs[0].path}: which operators? give --only PATTERN, --whole, or a second recording, whose"
            " origin is run again"
        )
    return at_origin(*runs, memory_bytes=memory_bytes)


def _chosen(runs: Sequence[Recording], asked: Asked) -> list[Chosen]:
    found = []
    for name, run in named(runs).items():
        if asked.only:
            each = [
                calls_at(run, name, one, step=asked.step, rank=asked.rank) for one in asked.only
            ]
            found += list({id(one.call): one for calls in each for one in calls}.values())
            continue
        calls = list(all_calls(run, name, step=asked.step, rank=asked.rank))
        if not calls:
            raise UsageError(
                f"{run.path}: holds no operator; record with --level api --save tensors"
            )
        check_whole(run, [one.call for one in calls])
        found += calls
    return found


def _print(found: Found, asked: Asked) -> None:
    origin = found.origin
    if origin is not None:
        instead = origin.instead and f"\n  what it computes instead: {origin.instead}"
        click.echo(f"{origin.said}{instead}\n")
    known = origin is not None and bool(origin.instead)
    draw = (
        partial(render_all, limit=asked.limit)
        if asked.every
        else partial(render_sites, known=known)
    )
    click.echo(draw(found.calls, found.machine).plain)
    if found.story is not None:
        click.echo(f"\n{render_story(found.story).plain}")
    if found.smaller is not None:
        click.echo(f"\n{render_smaller(found.smaller).plain}")


def _written(found: Found, runs: Sequence[Recording], asked: Asked, replays: Replays) -> str:
    """Write a test, and say so."""
    assert asked.folder is not None
    one = tested(found.calls, found.story)
    run = runs[0] if one.chosen.run == "reference" else runs[-1]
    instead = "" if found.origin is None else found.origin.instead
    return write_test(
        asked.folder, one, run, found.story, instead, smaller=found.smaller, replays=replays
    )


def _json(found: Found) -> dict[str, object]:
    origin, story = found.origin, found.story
    return enveloped(
        {
            "machine": found.machine,
            "compared": None if origin is None else origin.said,
            "computes_instead": (origin.instead or None) if origin is not None else None,
            "story": None if story is None else story.words,
            "explained": None if story is None else story.explained,
            "held": sum(len(one.held) for one in found.calls),
            "beyond": found.beyond,
            "not_run_again": refusals_json(not_run_again(found.calls)),
            "smaller_inputs": smaller_json(found.smaller),
            "calls": [call_json(one) for one in found.calls],
        }
    )
