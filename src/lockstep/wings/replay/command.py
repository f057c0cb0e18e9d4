"""`lockstep replay`: recorded operators run again, alone."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.cli import options
from lockstep.replay.imported import import_of
from lockstep.replay.replays import Replays
from lockstep.store.reader import open_recording
from lockstep.wings.replay.asked import Asked
from lockstep.wings.replay.calls_verb import exit_code, replay_calls, say_unmet
from lockstep.wings.replay.module_verb import replay_modules


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
    given: dict[str, object] = {
        "--site": site, "--module": module, "--step": step, "--rank": rank, "--device": device, "--dtype": dtype,
        "--emulate": emulation, "--import": imports,
    }  # fmt: skip
    asked = Asked(
        site, module, every, step, rank, repeat, limit, folder, shrink_seconds if shrink else None, as_json, given,
    )  # fmt: skip
    asked.check(dtype)
    runs = [open_recording(path) for path in (recording, candidate) if path is not None]
    wanted = [import_of(text) for text in imports]
    replays = Replays(device, dtype, emulation, memory_bytes=memory_bytes, imports=wanted)
    replays.bring(here=folder is not None)
    if module is not None:
        return replay_modules(runs, module, asked, replays)
    found = replay_calls(runs, asked, replays, memory_bytes)
    say_unmet(wanted, found)
    return exit_code(found)
