"""`lockstep bisect`: the switch that changes a training's numbers."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lockstep.cli import options
from lockstep.cli.notices import say, tell
from lockstep.cli.training_behind import TrainingBehind, training_command
from lockstep.comparison import compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.exit_codes import ExitCode
from lockstep.core.finding import Verdict
from lockstep.core.manifest import Options
from lockstep.core.text import shell_line
from lockstep.launch import launch
from lockstep.report.comparison.verdict_words import headline, lines_below
from lockstep.report.json_text import enveloped, json_text
from lockstep.report.paragraphs import Page, add_line, add_paragraph, counted
from lockstep.store.reader import Recording, open_recording
from lockstep.wings.tune.bisecting import Found, Outcome, Trial, TrialLog, first_that_differs
from lockstep.wings.tune.switches import ADDS, BACKENDS, State


class _Command(TrainingBehind):
    usage = "REFERENCE -- COMMAND..."


@click.command(cls=_Command)
@click.argument("reference", type=click.Path(path_type=Path))
@options.option(
    "--output", default=None,
    words="A log with a line for each trial, from which an interrupted search goes on.",
)  # fmt: skip
@options.option("--keep")
@options.option("--format", "form", default="")
@options.as_json
def bisect(
    reference: Path, output: Path | None, keep: Path | None, form: str, as_json: bool
) -> int:
    """Find the switch that makes the numbers of COMMAND differ from those of a recording.

    COMMAND is recorded in one state after the other, of the steps that REFERENCE has, and compared with it each time:
    noise is no difference. Half of what is left is ruled out by each trial.

    It tries what torch.compile does: no compiler, graphs alone (eager), backward traced ahead (aot_eager),
    decompositions, inductor.

    Exit code 1 if a switch is found, 0 if the numbers agree as they are, 2 if no switch explains the difference.

    \b
    lockstep record -o ref -- python train.py
    lockstep bisect ref -- python train.py --compile
    """
    command = training_command()
    if not command:
        raise UsageError("give the training's command after --")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: command not found; give the command as you would type it, after --"
        )
    opened = open_recording(reference, form=form)
    streams: dict[str, Any] = {"stdout": sys.stderr}
    with tempfile.TemporaryDirectory(prefix="lockstep-bisect-") as name:
        place = Path(name) if keep is None else keep.absolute()
        place.mkdir(parents=True, exist_ok=True)
        trials = Trials(opened, command, place, streams)
        log = TrialLog(output, [str(reference.absolute()), *command], trials.run, _tell)
        found = first_that_differs(BACKENDS, log)
    if as_json:
        click.echo(json_text(_as_values(found, log.trials)))
    else:
        click.echo(_render(found, log.trials, reference, command).plain.rstrip("\n"))
    if found.first is not None:
        return ExitCode.DIFFERS
    return ExitCode.AGREES if found.agrees_throughout else ExitCode.FAILED


class Trials:
    """Runs the command in a state, records it as the reference was, and compares the two.

    Parameters
    ----------
    reference
        What it is compared with.
    command
        What is run.
    place
        Where recordings go.
    streams
        As `lockstep.launch.launch` takes them.
    """

    def __init__(
        self, reference: Recording, command: Sequence[str], place: Path, streams: dict[str, Any]
    ) -> None:
        self._reference, self._command = reference, command
        self._place, self._streams = place, streams
        known = reference.manifest.options
        self._options: Options = dataclasses.replace(
            known, calibrate=False, emulate="", redact=False, compile_eager=False
        )
        self._count = 0

    def run(self, state: State) -> tuple[Outcome, str]:
        """What comparing says of a state, in a sentence."""
        folder = self._place / f"trial{self._count}"
        self._count += 1
        ended = launch(
            self._command, folder, self._options, force=True, hear=tell,
            adjust=lambda environment: _changed(environment, state), **self._streams,
        )  # fmt: skip
        if ended.code:
            return Outcome.UNTOLD, f"the command ended with exit code {ended.code}"
        if ended.why_nothing:
            return Outcome.UNTOLD, f"nothing was recorded: {ended.why_nothing}"
        compared = compare_recordings(self._reference, open_recording(folder))
        words = ": ".join([headline(compared), *lines_below(compared)[:1]])
        if compared.verdict is Verdict.INCOMPARABLE:
            return Outcome.UNTOLD, words
        differs = compared.verdict is Verdict.DIVERGED
        return Outcome.DIFFERS if differs else Outcome.AGREES, words


def _changed(environment: dict[str, str], state: State) -> dict[str, str]:
    changed = {**environment, **{k: v for k, v in state.environment.items() if v is not None}}
    for name, value in state.environment.items():
        if value is None:
            changed.pop(name, None)
    return changed


def _tell(trial: Trial, known: bool) -> None:
    again = " (known from the log)" if known else ""
    say(f"{trial.switch}, {trial.state}: {trial.outcome.value}{again}: {trial.words}")


def _render(found: Found, trials: Sequence[Trial], reference: Path, command: Sequence[str]) -> Page:
    text = Page()
    add_paragraph(text, _headline(found), first="")
    for trial in trials:
        words = trial.words if trial.outcome is Outcome.UNTOLD else trial.words.partition(": ")[0]
        add_paragraph(
            text, f"{trial.state}: {trial.outcome.value}: {words}", indent="    ", first="  "
        )
    add_line(text, f"  {counted(len(trials), 'trial')}")
    if found.first is not None and found.before is not None:
        state = next(one for one in found.ladder.states if one.name == found.before.state)
        variables = [f"{name}={value}" for name, value in state.environment.items()]
        add_line(text, "")
        add_line(text, "What next: run it in the last state that agrees")
        add_line(text, f"  {shell_line(['env', *variables, *command])}")
    return text


def _headline(found: Found) -> str:
    name = found.ladder.name
    if found.first is not None and found.before is not None:
        span = f" or {' or '.join(one.state for one in found.between)}" if found.between else ""
        words = ADDS.get(found.first.state, "")
        cause = f": {words}" if words else ""
        return (
            f"FOUND: {name}: {found.before.state} agrees, {found.first.state}{span} differs{cause}"
        )
    if found.agrees_throughout:
        return f"AGREE: the command agrees with the reference as it is; there is nothing to search in {name}"
    if found.untold is not None:
        return f"NOT TOLD: {found.untold.state} could not be compared: {found.untold.words}"
    return (
        f"NOT FOUND: the numbers differ with {found.ladder.states[0].name} too, so {name} is not the cause;"
        " compare the recordings to see where they part"
    )


def _as_values(found: Found, trials: Sequence[Trial]) -> dict[str, Any]:
    return enveloped(
        {
            "headline": _headline(found),
            "switch": found.ladder.name,
            "agrees": None if found.before is None else found.before.state,
            "differs": None if found.first is None else found.first.state,
            "not_told": [one.state for one in found.between],
            "trials": [{**dataclasses.asdict(one), "outcome": one.outcome.value} for one in trials],
        }
    )
