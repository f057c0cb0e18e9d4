"""Run a command and record its training, without changing a line of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lockstep.cli import options as shared
from lockstep.cli.elsewhere import runs_elsewhere
from lockstep.cli.notices import say, tell
from lockstep.cli.options import recording_at
from lockstep.cli.own_course import course_place, record_own_course
from lockstep.commands.record_again import record_again
from lockstep.core.errors import ExitCode, UsageError
from lockstep.core.manifest import BATCHES_LEFT_OUT, SOURCES_LEFT_OUT, WHOLE_BYTES, Options
from lockstep.core.selection import StepSelection, parse_ranks
from lockstep.core.text import listed, spans
from lockstep.core.unmatched import unmatched_sentence
from lockstep.core.windows import Windows
from lockstep.devices.emulation.profiles import device_of, parse_profile, profile_table
from lockstep.launch import Ended, is_left_running, launch
from lockstep.store.kept_windows import kept_windows
from lockstep.store.leftovers import drop_empty
from lockstep.store.reader import Recording, open_recording
from lockstep.store.uploading import uploaded
from lockstep.store.urls import url_of


def _show_devices(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """`--emulate help` lists the devices and ends."""
    if value == "help":
        click.echo(profile_table())
        context.exit()
    return value


_DEVICES = "\b\nEmulated devices; several are joined by +, as in npu-fp16+ftz:\n" + profile_table()


@runs_elsewhere(records=("--output",))
@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=_DEVICES,
)
@shared.option(
    "--output", "directory", required=True, form=shared.PATH, words="The folder of the recording."
)
@shared.option("--steps", default="0:2")
@click.option(
    "--windows",
    default="",
    metavar="STEPS",
    help="Record these steps, and keep the whole state at the start of each range, as in 0:2,1000:1002 or every=1000.",
)
@click.option(
    "--start-from",
    "source",
    type=click.Path(path_type=Path),
    help="Record the windows of this recording, and set its state at the start of each.",
)
@click.option(
    "--keep-course",
    is_flag=True,
    help="With --start-from: run COMMAND twice, for the windows and then, to its end, on its own course.",
)
@shared.inputs_of
@shared.ranks
@shared.option("--level", words="With aten: also every ATen operator.")
@shared.option("--save", default="program")
@shared.only
@click.option(
    "--skip",
    multiple=True,
    metavar="PATTERN",
    help="Leave out these module paths or operators. Repeatable.",
)
@click.option(
    "--max-bytes", type=shared.Size(), help="Stop recording at this size on disk, as in 8GB."
)
@click.option(
    "--whole-bytes",
    type=shared.Size(),
    default=WHOLE_BYTES,
    help="With --save program, keep this much of whole tensors of each rank, and sketches of the rest.  [default: 2GB]",
)
@shared.memory("If it is full, the training waits for the disk.")
@shared.option(
    "--seed",
    words="It seeds Python, NumPy and torch, and turns on deterministic algorithms.  [default: untouched]",
)
@shared.option(
    "--emulate",
    is_eager=True,
    callback=_show_devices,
    words="The names are below.",
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Round every result at random, for compare --calibration.",
)
@click.option(
    "--compile-eager",
    is_flag=True,
    help="Run compiled code eagerly, so that the operators inside are seen.",
)
@click.option(
    "--redact",
    is_flag=True,
    help="Keep no path, no name of user or host, and no command, so that you can give it to others.",
)
@shared.option("--max-steps", words="Recorded steps count too; the end is recorded.")
@click.option("--no-shuffle", is_flag=True, help="Disable shuffling, whatever the script asks.")
@click.option("--no-dropout", is_flag=True, help="Disable dropout, whatever the script asks.")
@click.option(
    "--no-step-log",
    is_flag=True,
    help="Keep no row of each step of the whole training (loss, learning rates, batch digest).",
)
@click.option("--exit-after", is_flag=True, help="Stop the command after the last chosen step.")
@shared.force
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def record(
    directory: Path,
    steps: str,
    windows: str,
    source: Path | None,
    keep_course: bool,
    inputs_of: Path | None,
    ranks: str,
    level: str,
    save: str,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    max_bytes: int | None,
    whole_bytes: int,
    memory_bytes: int,
    seed: int | None,
    emulate: str,
    calibrate: bool,
    compile_eager: bool,
    redact: bool,
    max_steps: int | None,
    no_shuffle: bool,
    no_dropout: bool,
    no_step_log: bool,
    exit_after: bool,
    force: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND and record its training. You change no line of it.

    COMMAND is whatever starts Python: `python train.py`, `python -m pkg`, `bash train.sh`,
    `torchrun ...`. Lockstep records the first two steps, or those of --steps; then the training
    runs on at full speed.

    Output and exit code are those of COMMAND. The exit code is 2 if COMMAND did not fail and
    nothing was recorded.

    \b
    lockstep record -o ref -- python train.py --epochs 1
    lockstep record -o ref --steps 10,20 --save tensors -- torchrun --nproc_per_node 2 train.py
    lockstep record -o ref --windows 0:2,1000:1002 -- python train.py
    lockstep record -o cand --start-from ref -- python train.py
    lockstep record -o cand --start-from ref --keep-course -- python train.py
    """
    chosen = _windows(windows, source, redact=redact)
    steps = chosen.steps if chosen is not None else steps
    selection = StepSelection.parse(steps)
    parse_ranks(ranks)
    if max_steps is not None and not any(step in selection for step in range(max_steps)):
        raise UsageError(f"--max-steps {max_steps} ends the training before --steps {steps}")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: command not found; give the command as you would type it, after --"
        )
    options = Options(
        steps, ranks, level, save, list(only), list(skip), max_bytes, seed, exit_after,
        emulate, calibrate, memory_bytes, compile_eager, redact,
        no_shuffle=no_shuffle, no_dropout=no_dropout, max_steps=max_steps,
        whole_bytes=whole_bytes,
        states_at="" if chosen is None else chosen.starts,
        set_from="" if source is None else str(source.absolute()),
        step_log=not no_step_log, inputs_of=recording_at(inputs_of),
    )  # fmt: skip
    course: Path | None = None
    if keep_course:
        course = course_place(directory, source, options, force=force)
        options = replace(options, exit_after=True)
    device = device_of(options)
    if device:
        parse_profile(device)
    url, uploading = url_of(directory), None
    if url:
        uploading = click.get_current_context().with_resource(uploaded(url, force=force))
        directory = uploading.place
    was_there = directory.exists()
    recorded = run_recorded(command, directory.absolute(), options, force=force)
    code, recording = recorded.ended.code, recorded.recording
    for gap in recording.manifest.not_seen:
        say(f"not recorded: {gap.what}: {gap.reason}")
    if recorded.ended.why_nothing:
        failed = f"the command ended with exit code {code}; " if code else ""
        gone = code and not was_there and _is_removed(directory)
        removed = f"; {url or _short(directory)}, which is empty, was removed" if gone else ""
        say(f"nothing was recorded: {failed}{recorded.ended.why_nothing}{removed}")
        return code if recorded.ended.as_asked else code or ExitCode.FAILED
    for name, rank in recording.ranks.items():
        if max_steps is not None and rank.manifest.ended_by == f"--max-steps {max_steps}":
            say(f"{name}: the training was ended after step {max_steps - 1}, as --max-steps asks")
    for sentence in (*_windows_without_state(recording), *_left_out_sources(recording)):
        say(sentence)
    if uploading is not None:
        uploading.finish()  # the next line says that all is there
    say(f"recorded {_what(recording)} in {url or _short(directory)}")
    problems = _unmatched_patterns(recording)
    if problems and not code:
        raise UsageError("; ".join(problems))
    for problem in problems:
        say(problem)
    if course is None or source is None or code:
        return code
    return record_own_course(command, recording, course, source, force=force)


def _windows(windows: str, source: Path | None, *, redact: bool) -> Windows | None:
    """The windows that are asked for; None where none are."""
    given = click.get_current_context().get_parameter_source("steps")
    names = [
        name
        for name, is_given in (
            ("--steps", given is ParameterSource.COMMANDLINE),
            ("--windows", bool(windows)),
            ("--start-from", source is not None),
        )
        if is_given
    ]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} both say which steps are recorded; give one")
    if source is not None and redact:
        raise UsageError(
            "--redact keeps no path, and --start-from notes one; leave out one of the two"
        )
    if source is not None:
        return kept_windows(open_recording(source))
    return Windows.parse(windows) if windows else None


def _windows_without_state(recording: Recording) -> Iterator[str]:
    """Sentences on windows that did not begin, and on states that could not be set."""
    for name, rank in recording.ranks.items():
        begun = {one.step for one in rank.manifest.windows}
        asked = StepSelection.parse(recording.manifest.options.states_at or "0")
        missing = [start for start, stop, _ in asked.ranges if stop is not None]
        behind = [str(start) for start in missing if start not in begun]
        if recording.manifest.options.states_at and behind:
            trained = rank.manifest.trained
            ended = "" if trained is None else f": the training had {trained} steps"
            yield f"{name}: no window began at step {listed(behind)}{ended}"
        for one in rank.manifest.windows:
            if one.source and not one.is_set:
                yield f"{name}: step {one.step} does not begin with the state of {one.source}: {one.not_set[-1]}"
            elif one.not_set:
                yield f"{name}: step {one.step}: not set: {listed(one.not_set)}"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A command that has ended, and its recording."""

    ended: Ended
    recording: Recording


def run_recorded(command: Sequence[str], directory: Path, options: Options, **how: Any) -> Recorded:
    """Run as `lockstep.launch.launch`, print its notices, and open the recording."""
    ended = launch(command, directory, options, hear=tell, **how)
    return Recorded(ended, open_recording(directory))


def _is_removed(directory: Path) -> bool:
    """Remove a directory that holds nothing, unless a process that the command left behind may train into it."""
    return not is_left_running(directory.absolute()) and drop_empty(directory)


def _what(recording: Recording) -> str:
    ranks = []
    for name, rank in recording.ranks.items():
        complete = spans(rank.complete_steps)
        cut = [f"{step} (incomplete)" for step in rank.steps if step not in rank.complete_steps]
        steps = ", ".join([*([complete] if complete else []), *cut])
        early = ", stopped early" if rank.manifest.stopped_because else ""
        ranks.append(f"{name} steps {steps or 'none'}{early}")
    size_bytes = sum(file.stat().st_size for file in recording.path.rglob("*") if file.is_file())
    return f"{'; '.join(ranks)} ({size_bytes / 1e6:.1f} MB)"


def _unmatched_patterns(recording: Recording) -> list[str]:
    """One sentence for each pattern that matched nothing in any rank, with the nearest names."""
    ranks = [rank.manifest.unmatched for rank in recording.ranks.values()]
    sentences = []
    for pattern, near in ranks[0].items():
        if all(pattern in rank for rank in ranks):
            sentences.append(unmatched_sentence(pattern, near, "the recorded steps"))
    return sentences


def _left_out_sources(recording: Recording) -> Iterator[str]:
    """Sentences on what `--save program` did not keep whole, with the command that would."""
    ranks = recording.ranks.items()
    gaps = [(name, gap) for name, rank in ranks for gap in rank.manifest.not_seen]
    for name, gap in gaps:
        if gap.what == BATCHES_LEFT_OUT:
            yield f"{name}: {gap.what} are not kept whole: {gap.reason}"
    left_out = [(name, gap) for name, gap in gaps if gap.what == SOURCES_LEFT_OUT]
    if any(gap.whole_bytes for _, gap in left_out):
        most = max(gap.whole_bytes or 0 for _, gap in left_out)
        options = recording.manifest.options
        again = record_again(
            recording, steps=options.steps, save="program", word="program", whole_bytes=most,
            only=options.only, exit_after=options.exit_after,
        )  # fmt: skip
        for name, gap in left_out:
            yield f"{name}: {gap.what} are not all kept whole: {gap.reason}"
        yield f"to keep all of them: {again.line}"


def _short(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
