"""`lockstep zoom`: from windows that agree and one that does not to the first bad step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lockstep import options
from lockstep.compare import Comparison, compared, print_comparison
from lockstep.errors import UsageError
from lockstep.options import TrainingCommand, check_two, training_command
from lockstep.recordings import open_recording
from lockstep.terminal import json_text, say, tell
from lockstep_zoom.rounds import Training
from lockstep_zoom.words import as_values, result
from lockstep_zoom.zooming import zoomed_in


class _Command(TrainingCommand):
    usage = "REFERENCE CANDIDATE [-- COMMAND...]"


@click.command(cls=_Command)
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--probes",
    type=click.IntRange(min=2),
    default=4,
    show_default=True,
    metavar="N",
    help="Look at N steps in each run. More need fewer runs, and more disk for states.",
)
@options.option(
    "--output",
    default=Path("zoom"),
    words="A folder: the recordings, and the journal from which an interrupted search goes on.",
)
@options.as_json
def zoom(reference: Path, candidate: Path, probes: int, output: Path, as_json: bool) -> int:
    """Find the first bad step of two trainings, and the operator there.

    You give two recordings of which an early step agrees and a later one does not, by a window, by
    the step log, or by a guess. Lockstep runs both trainings again with new windows between the two
    steps, and again, until it finds a step that agrees and is followed by one that does not.

    The commands are those of the recordings; COMMAND takes the place of the candidate's. What the
    search costs is printed before it starts.

    The answer and the exit code are those of `compare` for the first bad step. Exit code 0 if
    nothing is found.

    \b
    lockstep zoom ref cand
    lockstep zoom ref cand --probes 8 -o search -- python train.py --fast
    """
    check_two(reference, candidate)
    _check_folder(output)
    command = training_command()

    def trainings() -> tuple[Training, Training]:
        recordings = open_recording(reference), open_recording(candidate)
        return Training.of(recordings[0]), Training.of(recordings[1], command)

    zoomed = zoomed_in(
        (reference, candidate), trainings, output, probes, compare=_compared, hear=tell, say=say
    )
    sentence = result(zoomed)
    if as_json:
        say(sentence)
        click.echo(json_text(as_values(zoomed)))
    else:
        click.echo(sentence)
        print_comparison(zoomed.comparison)
    return zoomed.comparison.exit_code()


def _check_folder(output: Path) -> None:
    """Raise where no folder can be made, before anything runs."""
    above = next(one for one in (output.absolute(), *output.absolute().parents) if one.exists())
    if not above.is_dir():
        raise UsageError(f"{output}: {above} is a file; give another folder with -o")


def _compared(reference: Path, candidate: Path) -> Comparison:
    manner: dict[str, Any] = {
        "rule": "error-model",
        "calibration": None,
        "noise": (),
        "mapping": None,
    }
    manner |= {"steps": "", "memory_bytes": None, "no_rerun": False}
    return compared(reference, candidate, **manner).comparison
