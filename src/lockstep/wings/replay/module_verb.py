"""`lockstep replay --module`: a whole module with its context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from lockstep.cli.progress_bar import progress_bar
from lockstep.core.exit_codes import code_of
from lockstep.core.records import Call
from lockstep.core.text import shell_line
from lockstep.replay.replays import Replays
from lockstep.report.json_text import enveloped, json_text
from lockstep.store.reader import Recording
from lockstep.store.record_command import new_place, program
from lockstep.wings.replay.module_screen import render_module
from lockstep.wings.replay.replayed_module import (
    ReplayedModule,
    module_call,
    module_json,
    replayed_module,
)
from lockstep.wings.replay.written_test import write_module_test


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of modules.

    Parameters
    ----------
    pattern, step, rank
        Which.
    limit
        How many calls are printed.
    folder
        Where a test is written; None for none.
    as_json
        Whether values are printed as JSON.
    given
        Options of the command line as they were given, to be repeated.
    """

    pattern: str
    step: int | None
    rank: str | None
    limit: int
    folder: Path | None
    as_json: bool
    given: Mapping[str, object]


def replay_modules(runs: Mapping[str, Recording], asked: Asked, replays: Replays) -> int:
    """Run a module again in each recording, say what came of it, and return the exit code."""
    done = []
    with progress_bar("replaying") as progress:
        for name, run in runs.items():
            module = module_call(run, asked.pattern, step=asked.step, rank=asked.rank)
            emulation = run.manifest.options.emulate or ""
            done.append(replayed_module(module, name, emulation, replays, progress))
    if asked.as_json:
        modules = [module_json(one) for one in done]
        click.echo(json_text(enveloped({"machine": replays.name, "modules": modules})))
    else:
        pages = [render_module(one, replays.name, limit=asked.limit).plain for one in done]
        click.echo("\n\n".join(pages))
    one = _furthest(done)
    if asked.folder is not None:
        run = runs[one.run]
        click.echo(write_module_test(asked.folder, one, run), err=asked.as_json)
    elif one.worst > 1.0 and not asked.as_json:
        click.echo(f"\nWhat next: write a stand-alone test of it\n  {_again(runs, asked)}")
    elif one.off_alone and not asked.as_json:
        line = _of_one_call(runs[one.run], one.off_alone[0].call, asked)
        click.echo(f"\nWhat next: write a stand-alone test of the call that is off\n  {line}")
    looked = any(one.looked or any(call.held for call in one.alone) for one in done)
    beyond = any(one.worst > 1.0 or one.off_alone for one in done)
    return code_of(differs=beyond and looked, looked=looked)


def _furthest(done: Sequence[ReplayedModule]) -> ReplayedModule:
    return max(done, key=lambda one: (one.worst, one is done[-1]))


def _of_one_call(run: Recording, call: Call, asked: Asked) -> str:
    """The command that writes a test of one call."""
    given = {name: value for name, value in asked.given.items() if name != "--module"}
    given |= {"--site": str(call.site), "--step": call.step, "--rank": call.rank}
    place = new_place(run.path.with_name("proof"))
    return shell_line(
        [*program(), "replay", str(run.path), *_words(given), "--write-test", str(place)]
    )


def _again(runs: Mapping[str, Recording], asked: Asked) -> str:
    """The same command, with a test that is written."""
    words = [*program(), "replay", *(str(run.path) for run in runs.values())]
    place = new_place(list(runs.values())[-1].path.with_name("proof"))
    return shell_line([*words, *_words(asked.given), "--write-test", str(place)])


def _words(given: Mapping[str, object]) -> list[str]:
    """Options as they were given; those of several values once for each."""
    pairs = [
        (name, one)
        for name, value in given.items()
        for one in (value if isinstance(value, tuple) else (value,))
    ]
    return [word for name, one in pairs if one not in (None, "") for word in (name, str(one))]
