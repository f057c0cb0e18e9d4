"""Run a command and record its training, without changing a line of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import click

from lockstep.capture.environment import environment_for
from lockstep.capture.options import LEVELS, SAVES, StepSelection, matches, nearest_names, parse_ranks
from lockstep.core.errors import UsageError
from lockstep.core.manifest import Options
from lockstep.store.run import RunDirectory


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("-o", "--output", "directory", required=True, type=click.Path(path_type=Path), help="Where the recording goes.")
@click.option("--steps", default="0:2", show_default=True, help="Steps to record: 0, 0:3, 10,20.")
@click.option("--ranks", default="", help="Ranks to record: 0 or 0,2.  [default: all]")
@click.option("--level", type=click.Choice(LEVELS), default="api", show_default=True, help="How deep to look.")
@click.option("--save", type=click.Choice(SAVES), default="sketch", show_default=True, help="What to keep of a tensor.")
@click.option("--only", multiple=True, metavar="PATTERN", help="Record only these module paths or operators.")
@click.option("--skip", multiple=True, metavar="PATTERN", help="Leave out these module paths or operators.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Stop recording beyond so many bytes on disk.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Fix all random numbers, ask for determinism.")
@click.option("--exit-after", is_flag=True, help="End the command after the last chosen step.")
@click.option("--force", is_flag=True, help="Replace a recording that is there.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record(
    directory: Path,
    steps: str,
    ranks: str,
    level: str,
    save: str,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    max_bytes: int | None,
    seed: int | None,
    exit_after: bool,
    force: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND and record its training into a directory, without changing a line of it.

    Works on whatever starts Python: `python train.py`, `python -m pkg`, `bash train.sh`, `torchrun ...`. By default the
    first two steps are recorded; then the training runs on at full speed. The command's output and exit code pass
    through.

    \b
    lockstep record -o ref -- python train.py --epochs 1
    lockstep record -o ref --steps 10,20 --save tensors -- torchrun --nproc_per_node 2 train.py
    """
    StepSelection.parse(steps)
    parse_ranks(ranks)
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: command not found; give the command as you would type it, after --")
    directory = directory.absolute()
    options = Options(steps, ranks, level, save, list(only), list(skip), max_bytes, seed, exit_after)
    run = RunDirectory.create(directory, list(command), options, force=force)
    code = _run(list(command), environment_for(directory, options))
    run.finish(exit_code=code)
    _say_what_was_recorded(directory, options)
    return code


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the command as if it had been typed alone: its signals, output and exit code."""
    process = subprocess.Popen(command, env=environment)

    def forward(number: int, frame: FrameType | None) -> None:
        # A terminal has sent the signal to the command as well; a `kill` has reached only us.
        if number != signal.SIGINT or not _in_terminal_foreground():
            process.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        code = process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _in_terminal_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _say_what_was_recorded(directory: Path, options: Options) -> None:
    """One line on stderr: what there is now, or why there is nothing."""
    lines = []
    for path in sorted(directory.glob("rank*/manifest.json")):
        manifest = json.loads(path.read_bytes())
        steps = [step["index"] for step in manifest["steps"]]
        why = f", stopped early: {manifest['stopped_because']}" if manifest["stopped_because"] else ""
        cut = ", cut off" if manifest["state"] != "complete" else ""
        lines.append(f"{manifest['rank']} steps {', '.join(map(str, steps)) or 'none'}{cut}{why}")
    if not lines:
        print(
            "lockstep: nothing was recorded: no Python process of the command imported torch, built an optimizer and ran a"
            f" chosen step ({options.steps}); for other loops use lockstep.record() in the script",
            file=sys.stderr,
        )
        return
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    print(f"lockstep: recorded {'; '.join(lines)} ({size / 1e6:.1f} MB) in {_short(directory)}", file=sys.stderr)
    _check_patterns(directory, options)


def _check_patterns(directory: Path, options: Options) -> None:
    """Say which pattern matched nothing, with the nearest names.

    Raises
    ------
    UsageError
        If a pattern of --only matched no module and no operator.
    """
    from lockstep.store.reader import open_recording  # noqa: PLC0415 - loads polars, needed with patterns only

    if not (options.only or options.skip):
        return
    sites: set[tuple[str, str]] = set()
    for rank in open_recording(directory).ranks.values():
        sites |= set(rank.call_table.select("module", "op").iter_rows())
        sites |= {(module, "") for module in rank.module_table["module"].to_list()}
    for pattern in (*options.only, *options.skip):
        if not any(matches(pattern, module, op) for module, op in sites):
            near = nearest_names(pattern, {name for site in sites for name in site if name})
            hint = f"; nearest: {', '.join(near)}" if near else ""
            print(f"lockstep: pattern {pattern!r} matches no module and no recorded operator{hint}", file=sys.stderr)


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
