"""`lockstep replay`: recorded operators run again, alone."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.cli import options
from lockstep.cli.comparing import opened_in
from lockstep.core.selection import RankSelection, StepSelection
from lockstep.replay.calls.imported import import_of
from lockstep.wings.replay.asked import Asked
from lockstep.wings.replay.calls_verb import exit_code, replay_calls, say_unmet
from lockstep.wings.replay.module_verb import replay_modules
from lockstep.wings.replay.replays import Replays


@click.command()
@click.argument("recording", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path), required=False)
@options.option(
    "--only", multiple=True, old=["--site"], words="A site as compare prints it works too."
)
@click.option(
    "--module", "module", metavar="PATTERN",
    help="Run a module's forward again as one chain: each call gets the result of the call before it.",
)  # fmt: skip
@click.option(
    "--whole", "every", cls=options.Option, old=["--all"], is_flag=True,
    help="Run every operator and every update again.",
)  # fmt: skip
@options.option("--steps", default="", old=["--step"], words="[default: all]")
@options.ranks
@options.option("--device", default="", words="[default: cpu]")
@click.option(
    "--dtype", default="", help="Run in this dtype, as in bfloat16.  [default: as recorded]"
)
@options.option("--emulate", "emulation")
@options.option("--repeat", default=1)
@options.option("--limit", words="With --whole and --module.")
@click.option(
    "--write-test", "folder", type=options.PATH_HERE,
    help="Write a stand-alone test of the call that is furthest off into this new folder.",
)  # fmt: skip
@click.option(
    "--import", "imports", metavar="MODULE:ATTR", multiple=True,
    help="Import this custom autograd function, and run its calls again too. This runs your code. Repeatable.",
)  # fmt: skip
@click.option(
    "--shrink", is_flag=True,
    help="Look for smaller inputs on which that call still fails; --write-test then uses them.",
)  # fmt: skip
@click.option(
    "--shrink-seconds", type=click.FloatRange(min=0.0, min_open=True), default=60.0, show_default=True,
    help="Look for smaller inputs for at most this many seconds.",
)  # fmt: skip
@options.as_json
@options.forms
@options.memory("Calls that need more are not run again.")
def replay(
    recording: Path,
    candidate: Path | None,
    only: tuple[str, ...],
    module: str | None,
    every: bool,
    steps: str,
    ranks: str,
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
    forms: tuple[str, ...],
    memory_bytes: int,
) -> int:
    """Run recorded operators again, alone, on their recorded inputs, forward and backward.

    With two recordings and neither --only nor --whole, Lockstep runs the origin that `compare
    RECORDING CANDIDATE` names; RECORDING is the reference. It compares the recorded results and
    each re-run with the same operator in double precision. "Allowed" is the largest error of a
    correct kernel. If the two runs call different operators or settings at the origin, Lockstep
    also compares the candidate's results with the reference's call.

    --whole runs every operator on its own recorded inputs, so errors do not add up. --module runs a
    module's recorded calls in order, each on the results of those before it, so you see how errors
    add up.

    The recordings must hold whole tensors (`record --save tensors`). Custom autograd functions run
    only with --import, because importing runs your code. They are compared with the same function
    in double precision: this shows an error of the device, not of the formula.

    Exit code 0 if all results are sound, or if the re-run explains the origin; 1 if a result is off
    by more than allowed; 2 if nothing could be run again.

    \b
    lockstep replay ref npu
    lockstep replay ref npu --device npu:0 --repeat 5
    lockstep replay ref npu --write-test proof --shrink
    lockstep replay ref --whole --device cuda
    lockstep replay ref --only 'h.3.*' --dtype bfloat16
    lockstep replay npu --module h.3.attn --device npu:0
    """
    given: dict[str, object] = {
        "--only": only, "--module": module, "--steps": steps, "--ranks": ranks, "--device": device, "--dtype": dtype,
        "--emulate": emulation, "--import": imports, "--format": forms,
    }  # fmt: skip
    chosen = StepSelection.parse(steps) if steps else None
    asked = Asked(
        only, module, every, chosen, RankSelection.parse(ranks), repeat,
        limit, folder, shrink_seconds if shrink else None, as_json, given,
    )  # fmt: skip
    asked.check(dtype)
    runs = opened_in(forms, recording, candidate)
    wanted = [import_of(text) for text in imports]
    replays = Replays(device, dtype, emulation, memory_bytes=memory_bytes, imports=wanted)
    replays.bring(here=folder is not None)
    if module is not None:
        return replay_modules(runs, module, asked, replays)
    found = replay_calls(runs, asked, replays, memory_bytes)
    say_unmet(wanted, found)
    return exit_code(found)
