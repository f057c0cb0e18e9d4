"""`lockstep check`: two set-ups beside each other, or whether one training is repeatable."""

from __future__ import annotations

import sys
import tokenize
from pathlib import Path
from typing import Any

import click

from lockstep import options
from lockstep.errors import ExitCode, UsageError, code_of
from lockstep.options import (
    StepSelection,
    TrainingCommand,
    opened_in,
    runs_elsewhere,
    training_command,
)
from lockstep.recordings import Recording, open_recording
from lockstep.terminal import Page, enveloped, json_text

_NOT_THE_PROJECTS = frozenset({"site-packages", "node_modules", "__pycache__"})


class _Command(TrainingCommand):
    usage = (
        "{REFERENCE CANDIDATE | RECORDING | --against REFERENCE -- COMMAND... | --repeat N -- COMMAND..."
        " | --hang SECONDS -- COMMAND... | --script FILE}"
    )


@runs_elsewhere(writes=("--keep",))
@click.command(cls=_Command)
@click.argument("recordings", nargs=-1, type=click.Path(path_type=Path))
@options.option("--mapping")
@options.option(
    "--against", words="A recording: COMMAND runs to its first backward, and set-ups are compared."
)
@options.option("--repeat", "times", words="At least 2.")
@click.option(
    "--hang", "patience_s", type=click.FloatRange(min=1.0), metavar="SECONDS",
    help="End COMMAND when one of its ranks has waited this many seconds for the others.",
)  # fmt: skip
@click.option(
    "--script", "scripts", multiple=True, type=click.Path(path_type=Path),
    help="Read this script, or all scripts of a folder, without running them.",
)  # fmt: skip
@options.option("--steps", default="0:2", words="For COMMAND.")
@options.option("--keep")
@options.forms
@options.as_json
@options.limit
def check(
    recordings: tuple[Path, ...],
    mapping: Path | None,
    against: Path | None,
    times: int | None,
    patience_s: float | None,
    scripts: tuple[Path, ...],
    steps: str,
    keep: Path | None,
    forms: tuple[str, ...],
    as_json: bool,
    limit: int,
) -> int:
    """Compare the set-ups of two recorded trainings, and say what each difference means for the numbers.

    Lockstep compares versions, switches, precision, seeds, initial weights, the first batches,
    modes, settings of modules, optimizers and their groups, clipping, accumulation, ranks and
    variables. The most harmful difference comes first. It also answers eight questions that you
    should ask before a dump. "Unknown" means that the recording does not tell.

    RECORDING alone, of several ranks: do ranks read different samples, and hold the same weights,
    buffers and reduced gradients? If ranks were cut off, you see the last call of each.

    --against runs COMMAND to its first backward, ends it there, and compares its set-up with the
    recording.

    --repeat runs COMMAND several times, names the first tensor that is not equal bit by bit, with
    its cause, and tries the switch that cures it.

    --hang ends COMMAND when one rank has waited so long in one collective or backward, and says
    which rank waits where, and which never came there.

    --script reads a script without running it, and lists shuffling without a generator,
    augmentation, dropout, workers without a seed, and kernels that are chosen by timing or add in
    any order, each with its replacement.

    Exit code 1 if something that counts differs or was found, 0 if nothing does, 2 if it could not
    be looked at.

    \b
    lockstep check ref cand
    lockstep check two-ranks
    lockstep check --against ref -- python train.py
    lockstep check --repeat 2 -- python train.py
    lockstep check --hang 60 -- torchrun --nproc_per_node 2 train.py
    lockstep check --script train.py
    """
    command, against = _without_against(training_command(), against)
    if times == 1:
        raise UsageError("--repeat 1: one run shows no difference; give 2 or more")
    if scripts:
        if times is not None or command or recordings or against is not None:
            raise UsageError("--script stands alone: nothing is run and no recording is read")
        return _scripts(scripts, limit=limit, as_json=as_json)
    if patience_s is not None:
        if times is not None or not command or recordings or against is not None:
            raise UsageError("give --hang SECONDS and a training's command after --")
        return _hang(command, patience_s, as_json=as_json)
    if against is not None:
        if times is not None or not command or recordings:
            raise UsageError("give --against REFERENCE and a training's command after --")
        return _beforehand(command, against, mapping, keep, limit=limit, as_json=as_json)
    if times is not None or command:
        if times is None or not command or recordings:
            raise UsageError(
                "give a training's command after -- with --against, --repeat or --hang, and no recordings"
            )
        return _repeat(command, times, steps, keep, as_json=as_json)
    if len(recordings) == 1:
        return _ranks(*opened_in(forms, *recordings), as_json=as_json)
    if len(recordings) != 2:
        raise UsageError(
            f"check takes two recordings, or one of several ranks; got {len(recordings)}"
        )
    reference, candidate = opened_in(forms, *recordings)
    return _set_ups(reference, candidate, mapping, limit=limit, as_json=as_json)


def _set_ups(
    reference: Recording,
    candidate: Recording,
    mapping: Path | None,
    *,
    limit: int,
    as_json: bool,
) -> ExitCode:
    from lockstep_check.setups.checkup import checkup
    from lockstep_check.setups.screen import as_values, differs, render

    answers = checkup(reference, candidate, mapping=mapping)
    _print(as_values(answers) if as_json else render(answers, limit=limit))
    return code_of(differs=differs(answers), looked=True)


def _without_against(
    command: tuple[str, ...], against: Path | None
) -> tuple[tuple[str, ...], Path | None]:
    """`-- COMMAND --against REFERENCE`: what stands at the end is meant for this verb, where it is a recording."""
    if (
        against is None
        and command[-2:-1] == ("--against",)
        and Path(command[-1], "manifest.json").exists()
    ):
        return command[:-2], Path(command[-1])
    return command, against


def _beforehand(
    command: tuple[str, ...],
    against: Path,
    mapping: Path | None,
    keep: Path | None,
    *,
    limit: int,
    as_json: bool,
) -> ExitCode:
    from lockstep_check.setups.beforehand import stopped_before_backward
    from lockstep_check.setups.checkup import checkup
    from lockstep_check.setups.screen import as_values, differs, render

    streams = {"stdout": sys.stderr} if as_json else {}
    reference = open_recording(against)
    options = reference.manifest.options
    with stopped_before_backward(command, options, keep, **streams) as recorded:
        answers = checkup(reference, recorded.recording, mapping=mapping)
        if recorded.ended.code:
            answers.notes.append(f"the command ended with exit code {recorded.ended.code}")
        _print(as_values(answers) if as_json else render(answers, limit=limit))
    return code_of(differs=differs(answers), looked=not recorded.ended.code)


def _hang(command: tuple[str, ...], patience_s: float, *, as_json: bool) -> ExitCode:
    from lockstep_check.ranks.hang import as_values, render, watch

    watched = watch(command, patience_s, **({"stdout": sys.stderr} if as_json else {}))
    _print(as_values(watched) if as_json else render(watched))
    return code_of(differs=watched.hangs, looked=not watched.code)


def _ranks(recording: Recording, *, as_json: bool) -> ExitCode:
    from lockstep_check.ranks.agreement import look_at_ranks
    from lockstep_check.ranks.screen import as_values, render

    answers = look_at_ranks(recording)
    _print(as_values(answers) if as_json else render(answers))
    return code_of(differs=answers.differs, looked=bool(answers.steps))


def _repeat(
    command: tuple[str, ...], times: int, steps: str, keep: Path | None, *, as_json: bool
) -> ExitCode:
    from lockstep_check.repeat.runs import repeat
    from lockstep_check.repeat.screen import as_values, render

    StepSelection.parse(steps)
    streams = {"stdout": sys.stderr} if as_json else {}  # the command's output is no JSON
    found = repeat(command, times, steps, keep, **streams)
    _print(as_values(found) if as_json else render(found))
    return code_of(differs=found.first is not None, looked=True)


def _scripts(given: tuple[Path, ...], *, limit: int, as_json: bool) -> ExitCode:
    from lockstep_check.scripts.randomness import look_at_scripts
    from lockstep_check.scripts.screen import as_values, render

    sources, failed = _sources(given)
    found, unparsed = look_at_scripts(sources)
    failed |= unparsed
    looked = len(sources) - len(unparsed)
    told = (found, failed, looked)
    _print(as_values(*told) if as_json else render(*told, limit=limit))
    told_all = all(one.certain for one in found)
    return code_of(differs=any(one.certain for one in found), looked=told_all and not failed)


def _sources(given: tuple[Path, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """What scripts hold, those of folders in order of their names; and why one could not be read."""
    from lockstep_check.scripts.imports import imported_files

    sources, failed = dict[str, str](), dict[str, str]()
    if not any(path.exists() for path in given):
        raise UsageError(f"{given[0]}: no such file or folder; give a script")
    for path in given:
        files = _below(path) if path.is_dir() else [path]
        if not files:
            failed[str(path)] = "has no Python files"
        folder = path if path.is_dir() else path.parent
        while files:
            file = files.pop(0)
            if str(file) in sources or str(file) in failed:
                continue
            _read(file, sources, failed)
            files += imported_files(sources.get(str(file), ""), file, folder)
    return sources, failed


def _read(file: Path, sources: dict[str, str], failed: dict[str, str]) -> None:
    try:
        with tokenize.open(file) as stream:  # its encoding is declared in it
            sources[str(file)] = stream.read()
    except OSError as error:
        failed[str(file)] = f"cannot be read ({error.strerror or error})"
    except (SyntaxError, UnicodeDecodeError) as error:
        failed[str(file)] = f"is no text in its encoding ({error})"


def _below(folder: Path) -> list[Path]:
    """Scripts of a project, without those of environments and installed packages."""
    return [
        file
        for file in sorted(folder.rglob("*.py"))
        if not any(
            part.startswith(".") or part in _NOT_THE_PROJECTS
            for part in file.relative_to(folder).parts
        )
    ]


def _print(told: Page | dict[str, Any]) -> None:
    text = json_text(enveloped(told)) + "\n" if isinstance(told, dict) else told.plain
    click.echo(text, nl=False)
