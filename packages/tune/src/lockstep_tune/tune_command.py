"""`lockstep tune`: settings that make a training faster and leave its numbers."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from lockstep import options
from lockstep.errors import ExitCode, LockstepError, OutputExistsError, UsageError
from lockstep.options import TrainingCommand, training_command
from lockstep.page import write_page
from lockstep.terminal import json_text, say, shell_line
from lockstep_tune.bottlenecks import bottlenecks
from lockstep_tune.choosing import left_out, named_first, worth_trying
from lockstep_tune.edits import edits
from lockstep_tune.journal import Journal
from lockstep_tune.places import short_place
from lockstep_tune.profile_run import profile_command, steps_of
from lockstep_tune.rewrites import read_rewrites
from lockstep_tune.settings import OwnKnob, read_choices, settings_text
from lockstep_tune.trials import INTERRUPTED
from lockstep_tune.tune_page import PAGE, tune_page
from lockstep_tune.tune_screen import Answer, as_values, headline, noise_words, render
from lockstep_tune.tuned_run import RunFailedError, TimedRun, check_command
from lockstep_tune.tuned_trials import TunedTrials
from lockstep_tune.tuning import Candidate, Search, Tried, candidates

SETTINGS, LOG, VALUES, DIFF = "tuned.yaml", "tune.jsonl", "tune.json", "edit.diff"


@click.command(cls=TrainingCommand)
@options.option(
    "--output", default=Path("tuned"),
    words="A folder: the settings, the page, the edit, and a log from which an interrupted search goes on.",
)  # fmt: skip
@click.option(
    "--knobs", type=click.Path(path_type=Path), metavar="FILE",
    help="Try the knobs of this YAML file, with their values, and your own.  [default: all that fit the training]",
)  # fmt: skip
@click.option(
    "--edits", "diff", type=click.Path(path_type=Path), metavar="DIFF",
    help="Try each hunk of a unified diff alone, on a copy of the current folder.",
)  # fmt: skip
@options.option(
    "--accept",
    words="Try other precisions too, and keep one if it is the same everywhere and losses and gradients are off by"
    " at most this share (relative L2), as in 0.02.",
)  # fmt: skip
@options.option(
    "--budget", "limit_s", form=options.Duration(), default="30m", old=["--time"],
    words="after it no run begins; as in 90s, 30m or 2h.",
)  # fmt: skip
@options.option("--steps", default="3:13", words="These steps are timed in each run.")
@options.option("--repeat", default=3, words="Time each knob with N pairs of runs, 2 or more.")
@options.option("--seed", default=None, words="For a script that does not fix one.")
@options.limit
@options.as_json
def tune(
    output: Path,
    knobs: Path | None,
    diff: Path | None,
    accept: float | None,
    limit_s: float,
    steps: str,
    repeat: int,
    seed: int | None,
    limit: int,
    as_json: bool,
) -> int:
    """Find settings that make the training of COMMAND faster and leave its numbers as they are.

    You change no line of the script. Lockstep tries one knob after the other, first those for what
    `lockstep profile` names: threads, data loading, kernels of the optimizer, torch.compile and
    more. It records two steps with each faster
    knob and compares them: noise may differ, a fault rejects the knob. Then pairs of runs, in
    turns, measure how much faster it is.

    DIR/tuned.yaml holds the kept knobs, for `lockstep run-tuned`; an edit of the script is beside
    it.

    Exit code 0 when the search is done, 2 if the training cannot be timed, or does not repeat
    itself.

    \b
    lockstep tune -- python train.py
    lockstep tune --accept 0.02 --budget 1h -- python train.py
    lockstep tune --edits rewrites.diff -- python train.py
    lockstep tune --knobs mine.yaml -o tuned -- torchrun --nproc_per_node 2 train.py
    lockstep run-tuned tuned/tuned.yaml -- python train.py
    """
    command = training_command()
    check_command(command)
    if repeat < 2:
        raise UsageError("--repeat 1 tells no interval; give 2 or more")
    wanted, own = read_choices(knobs) if knobs is not None else ({}, ())
    rewrites = read_rewrites(diff, Path.cwd()) if diff is not None else ()
    output = _folder(output)
    subject = [*command, f"--steps {steps}", f"--accept {accept}", f"--seed {seed}"]
    journal = Journal(output / LOG, [*subject, *map(_content, own), *map(repr, rewrites)], "tune")
    until_s = time.monotonic() + limit_s

    def choose(told: TimedRun, first: Sequence[str]) -> tuple[list[Candidate], dict[str, str]]:
        if knobs is not None or diff is not None:
            return candidates(wanted, own, rewrites), {}
        accepts = accept is not None
        values = named_first(worth_trying(told, accepts_precision=accepts), first)
        return candidates(values, own, rewrites), left_out(told, accepts_precision=accepts)

    with tempfile.TemporaryDirectory(prefix="lockstep-tune-") as name:
        trials = TunedTrials(command, steps_of(steps), accept, seed, Path(name))
        profiles = (
            []
            if knobs is not None or diff is not None
            else [_profiling(command, steps, Path(name))]
        )
        answer = _answer(trials, journal, choose, profiles, repeat=repeat, until_s=until_s)
    _write(answer, output, command)
    if as_json:
        click.echo(json_text(as_values(answer)))
    else:
        click.echo(render(answer, limit=limit).plain.rstrip("\n"))
        if answer.tuned.settings.knobs or answer.tuned.settings.own:
            click.echo(f"\nwrote {output / SETTINGS}; apply it with\n  {_apply(output, command)}")
        click.echo(f"\nwrote {output / PAGE}")
    return ExitCode.AGREES


def _answer(
    trials: TunedTrials,
    journal: Journal,
    choose: Callable[[TimedRun, Sequence[str]], tuple[list[Candidate], dict[str, str]]],
    profiles: Sequence[Callable[[], list[dict[str, Any]]]],
    *,
    repeat: int,
    until_s: float,
) -> Answer:
    """Search, and say what the edit is."""
    try:
        told = trials.told()
    except RunFailedError as error:
        raise UsageError(f"the training cannot be timed as it is: {error}") from error
    known = {name: value for one in journal.entries for name, value in one.items()}

    def once(name: str, look: Callable[[], Any]) -> Any:
        """What an earlier search has noted, or is found now, where the time allows it."""
        if name not in known and time.monotonic() <= until_s:
            known[name] = look()
            journal.add({name: known[name]})
        return known.get(name)

    once("repeats", trials.check_repeats)
    noise = once("noise", lambda: trials.noise(told.step_s))
    if noise is not None:
        say(noise_words(noise))
    named = next((once("named", look) for look in profiles), None) or []
    for sentence in named:
        say(f"profile names {sentence['what']}")
    search = Search(trials, journal, repeat=repeat, until_s=until_s, told=_tell)
    wanted, left = choose(told, [name for one in named for name in one["knobs"]])
    tuned = search.run(wanted)
    return Answer(tuned, told, *edits(tuned.settings, told.uses), left, noise)


def _profiling(
    command: Sequence[str], steps: str, place: Path
) -> Callable[[], list[dict[str, Any]]]:
    """Return how to find what slows the training most, with the knobs that may cure it."""

    def look() -> list[dict[str, Any]]:
        try:
            end = steps_of(steps)[1]
            found = profile_command(command, place / "profile", steps, end, stdout=sys.stderr)
        except LockstepError:
            return []  # the knobs are tried in their own order
        if found.code in INTERRUPTED:
            raise click.Abort
        slowest = max(found.ranks, key=lambda one: one.step_us)
        return [
            {"what": f"{one.what} at {short_place(one.place)}: up to {one.share:.0%}", "knobs": one.knobs}
            for one in bottlenecks(slowest)
            if one.knobs
        ]  # fmt: skip

    return look


def _content(knob: OwnKnob) -> str:
    """A knob with what its file holds: a log of another one tells nothing of it."""
    held = Path(knob.python).read_bytes() if knob.python else b""
    return f"{knob.name}: {hashlib.sha256(repr(knob).encode() + held).hexdigest()[:16]}"


def _folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExistsError(f"{folder}: cannot be made ({error.strerror or error})") from error
    if any(folder.iterdir()) and not (folder / LOG).exists():
        raise OutputExistsError(
            f"{folder} is there and holds no log of a search; give another name"
        )
    return folder


def _write(answer: Answer, output: Path, command: Sequence[str]) -> None:
    line = shell_line(command)
    about = [headline(answer), f"found by lockstep tune -- {line}"]
    (output / SETTINGS).write_text(settings_text(answer.tuned.settings, about), encoding="utf-8")
    (output / VALUES).write_text(json_text(as_values(answer)), encoding="utf-8")
    (output / DIFF).write_text(answer.diff, encoding="utf-8")
    write_page(tune_page(answer, line, _apply(output, command)), output / PAGE)


def _apply(output: Path, command: Sequence[str]) -> str:
    return shell_line(["lockstep", "run-tuned", str(output / SETTINGS), "--", *command])


def _tell(tried: Tried, known: bool) -> None:
    again = " (known from the log)" if known else ""
    say(f"{tried.name}: {tried.verdict.value}{again}: {tried.speed or tried.words}")
