"""`lockstep replay --module`: a whole module with its context."""

from __future__ import annotations

from collections.abc import Sequence

import click

from lockstep.cli.progress_bar import progress_bar
from lockstep.core.errors import code_of
from lockstep.core.records import Call
from lockstep.report.json_text import enveloped, json_text
from lockstep.store.reader import Recording
from lockstep.wings.replay.asked import Asked, named, with_test, words_of
from lockstep.wings.replay.module_screen import render_module
from lockstep.wings.replay.replayed_module import (
    ReplayedModule,
    module_call,
    module_json,
    replayed_module,
)
from lockstep.wings.replay.replays import Replays
from lockstep.wings.replay.written_test import write_module_test


def replay_modules(runs: Sequence[Recording], pattern: str, asked: Asked, replays: Replays) -> int:
    """Run a module again in each recording, say what came of it, and return the exit code."""
    done, by_name = [], named(runs)
    with progress_bar("replaying") as progress:
        for name, run in by_name.items():
            module = module_call(run, pattern, step=asked.step, rank=asked.rank)
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
        click.echo(write_module_test(asked.folder, one, by_name[one.run]), err=asked.as_json)
    elif one.worst > 1.0 and not asked.as_json:
        click.echo(f"\nWhat next: write a stand-alone test of it\n  {asked.again(runs)}")
    elif one.off_alone and not asked.as_json:
        line = _of_one_call(by_name[one.run], one.off_alone[0].call, asked)
        click.echo(f"\nWhat next: write a stand-alone test of the call that is off\n  {line}")
    looked = any(one.looked or any(call.held for call in one.alone) for one in done)
    beyond = any(one.worst > 1.0 or one.off_alone for one in done)
    return code_of(differs=beyond and looked, looked=looked)


def _furthest(done: Sequence[ReplayedModule]) -> ReplayedModule:
    return max(done, key=lambda one: (one.worst, one is done[-1]))


def _of_one_call(run: Recording, call: Call, asked: Asked) -> str:
    """The command that writes a test of one call."""
    given = {name: value for name, value in asked.given.items() if name != "--module"}
    given |= {"--only": str(call.site), "--steps": call.step, "--ranks": call.rank}
    return with_test([run], words_of(given))
