"""`lockstep ops`: the operators that a training runs, against what a device has."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import OutputExistsError, UsageError, code_of
from lockstep.files import check_output_file
from lockstep.launch import launch
from lockstep.options import TrainingCommand, runs_elsewhere, training_command
from lockstep.plugin import SupportedOperators, SupportStanding
from lockstep.recordings import Options, open_recording
from lockstep.terminal import enveloped, json_text, tell, write_csv_table
from lockstep_operators.alternatives import with_alternatives
from lockstep_operators.answers import answered
from lockstep_operators.ran import Ran, ran_in
from lockstep_operators.screen import TITLES, as_values, csv_rows, render
from lockstep_operators.support.known_lists import KNOWN, known_list, version_of, with_composites
from lockstep_operators.support.list_files import list_from_file
from lockstep_operators.support.plugin_lists import given_devices, with_given
from lockstep_operators.times import take_times


class _Command(TrainingCommand):
    usage = "{RECORDING | -- COMMAND...}"


@runs_elsewhere(writes=("--output",))
@click.command(cls=_Command)
@click.argument("recording", type=click.Path(path_type=Path), required=False)
@click.option(
    "--target", "device", cls=options.Option, old=["--device"], metavar="NAME|FILE",
    help=f"The device to move to: {', '.join(KNOWN)}, or a file with its list (.csv, .yaml).",
)  # fmt: skip
@options.option("--steps", default="0:2", words="For COMMAND.")
@options.option("--output", words="A file: all operators as CSV.")
@options.force
@options.limit
@options.form
@options.as_json
@options.option(
    "--no-rerun", words="None is timed, composed ones are not opened, no equal form is looked for."
)
@options.memory("Equal forms that need more are not proven.")
def ops(
    recording: Path | None,
    device: str | None,
    steps: str,
    output: Path | None,
    force: bool,
    limit: int,
    form: str,
    as_json: bool,
    no_rerun: bool,
    memory_bytes: int,
) -> int:
    """List the operators that a training runs, and say which of them a device has.

    With a COMMAND, Lockstep runs that training to the end of the last step of --steps and sees
    every operator of torch's dispatcher, in forward, backward and optimizer. A RECORDING should be
    one of `--level aten`; at other levels only names of the API are known.

    For a missing operator, Lockstep looks for an equal form of operators that the device has, and
    runs it beside the operator on drawn numbers of the recorded dtypes, shapes and strides.
    "Proven" means that the form is as exact as a correct kernel.

    The lists of torch's own backends come from the installed torch. You can write a list of your
    own: docs/tasks/operators.md.

    Exit code 0 if all operators are supported, 1 if one is not, or may not be, 2 if nothing could
    be looked at.

    \b
    lockstep ops --target mps -- python train.py
    lockstep ops ref --target ascend -o operators.csv
    lockstep ops ref --target our_chip.csv --json
    """
    command = training_command()
    if bool(command) == (recording is not None):
        raise UsageError("give either a recording, or a training's command after --")
    if output is not None:
        check_output_file(output, force=force)
    support = None if device is None else _list(device)
    ran = (
        _ran_by(command, steps)
        if recording is None
        else ran_in(open_recording(recording, form=form))
    )
    if ran.of_dispatcher and not no_rerun:
        take_times(ran, memory_bytes)
    found = answered(ran, support)
    if support is not None and not no_rerun:
        found = with_alternatives(found, ran, support, memory_bytes)
    if output is not None:
        try:
            write_csv_table(output, TITLES, csv_rows(found))
        except OSError as error:
            raise OutputExistsError(f"{output}: cannot be written ({error.strerror})") from error
    if as_json:
        click.echo(json_text(enveloped(as_values(ran, found, support))))
    else:
        click.echo(render(ran, found, support, limit=limit).plain)
    lacking = (
        any(one.standing is not SupportStanding.SUPPORTED for one in found) or not ran.is_whole
    )
    return code_of(differs=support is not None and lacking, looked=True)


def _list(device: str) -> SupportedOperators:
    torch_version = version("torch")
    if device in (*KNOWN, *given_devices()):
        known_one = known_list(device, torch_version) if device in KNOWN else None
        return with_composites(with_given(device, known_one))
    file = Path(device)
    if not file.suffix and not file.exists():
        known = ", ".join(sorted({*KNOWN, *given_devices()}))
        raise UsageError(f"--target {device}: no such list and no such file; there are {known}")
    return with_composites(list_from_file(file, version_of(torch_version)))


def _ran_by(command: tuple[str, ...], steps: str) -> Ran:
    """What a command runs; it is ended behind its last step that is looked at."""
    # Compiled code is run operator by operator, or else its inside would not be seen.
    chosen = Options(steps=steps, level="aten", save="stats", exit_after=True, compile_eager=True)
    with tempfile.TemporaryDirectory(prefix="lockstep-ops-", ignore_cleanup_errors=True) as name:
        directory = Path(name) / "recording"
        ended = launch(list(command), directory, chosen, hear=tell)
        if ended.why_nothing:
            failed = f"the command ended with exit code {ended.code}; " if ended.code else ""
            raise UsageError(f"no operators: {failed}{ended.why_nothing}")
        return ran_in(open_recording(directory))
