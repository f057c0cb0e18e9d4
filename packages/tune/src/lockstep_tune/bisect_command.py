"""`lockstep bisect`: the switch that changes a training's numbers."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import ExitCode, UsageError
from lockstep.options import TrainingCommand, runs_elsewhere, training_command
from lockstep.recordings import open_recording
from lockstep.terminal import json_text, say
from lockstep_tune.arguments import arguments
from lockstep_tune.bisect_screen import as_values, render
from lockstep_tune.bisecting import Trial, TrialLog
from lockstep_tune.commits import Repository
from lockstep_tune.configurations import is_configuration, keys, two_files
from lockstep_tune.differences import Differences, variables
from lockstep_tune.searching import (
    Answer,
    search_all,
    search_differences,
    search_ladder,
    search_switches,
)
from lockstep_tune.switches import (
    FUSION,
    SWITCHES,
    Ladder,
    python_ladder,
)
from lockstep_tune.trials import Trials


class _Command(TrainingCommand):
    usage = "REFERENCE -- COMMAND..."


@runs_elsewhere(writes=("--output", "--keep"), stays=("--commits",))
@click.command(cls=_Command)
@click.argument("reference", type=click.Path(path_type=Path))
@click.option(
    "--switch", "switches", multiple=True, type=click.Choice([*SWITCHES, FUSION]),
    help="Search only this switch. Repeatable.  [default: all but fusion, which is part of compile]",
)  # fmt: skip
@options.option(
    "--env", "texts", multiple=True,
    words="Several values, separated by commas, are searched; the one that agrees comes first. Repeatable.",
)  # fmt: skip
@options.option(
    "--python", "pythons", multiple=True,
    words="Several, with the packages that each has, are searched: give it twice or more, the one that agrees first.",
)  # fmt: skip
@click.option(
    "--commits", metavar="GOOD..BAD", help="Search the commits of the script's repository."
)
@options.option(
    "--config",
    words="GOOD..BAD: the keys in which two files differ (YAML, JSON, TOML). COMMAND names one of them.",
)  # fmt: skip
@options.option(
    "--output", default=None,
    words="A log with a line for each trial, from which an interrupted search goes on.",
)  # fmt: skip
@options.option("--keep")
@options.option("--format", "form", default="")
@options.as_json
def bisect(
    reference: Path,
    switches: tuple[str, ...],
    texts: tuple[str, ...],
    pythons: tuple[str, ...],
    commits: str | None,
    config: Path | None,
    output: Path | None,
    keep: Path | None,
    form: str,
    as_json: bool,
) -> int:
    """Find the switch that makes the numbers of COMMAND differ from those of a recording.

    Lockstep runs COMMAND with different switches, records the steps that REFERENCE has, and
    compares each time; noise is no difference. Each trial rules out half of the switches that are
    left.

    If COMMAND has other arguments than the recorded command, Lockstep searches those first. If
    the culprit names a configuration file in both, Lockstep searches the keys of the two files.

    The switches are torch.compile, autocast (amp), fused attention, the optimizer's fused and
    foreach kernels, oneDNN, TF32, and kernels that are not deterministic. Then Lockstep searches
    within the switch it found: the stage of torch.compile, the pass or operator of inductor, the
    module under autocast.

    Exit code 1 if a switch is found, 0 if the numbers agree as they are, 2 if no switch explains
    the difference.

    \b
    lockstep bisect ref -- python train.py
    lockstep bisect ref --switch fusion -- python train.py
    lockstep bisect ref --env OMP_NUM_THREADS=1,4 --env MODE=old,new -- python train.py
    lockstep bisect ref --python old/bin/python --python new/bin/python -- python train.py
    lockstep bisect ref --config good.yaml..bad.yaml -- python train.py --config bad.yaml
    lockstep bisect ref --commits v1.0..HEAD -o bisect.jsonl -- python train.py
    """
    command = training_command()
    if not command:
        raise UsageError("give the training's command after --")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: command not found; give the command as you would type it, after --"
        )
    if sum(map(bool, (switches, texts, pythons, commits, config))) > 1:
        raise UsageError(
            "search one thing at a time: --switch, --env, --python, --commits or --config"
        )
    opened = open_recording(reference, form=form)
    repository = Repository.around(Path.cwd()) if commits else None
    differences = variables(texts) if texts else None
    given = arguments(opened.manifest.command, command)
    ladder = _ladder(pythons, commits, repository)
    with tempfile.TemporaryDirectory(prefix="lockstep-bisect-") as name:
        place = Path(name) if keep is None else keep.absolute()
        place.mkdir(parents=True, exist_ok=True)
        trials = Trials(
            opened, command, place, {"stdout": sys.stderr}, repository, keeps=keep is not None
        )
        log = TrialLog(output, [str(reference.absolute()), *command], trials.run, _tell)
        if config is not None:
            found = search_differences(keys(*two_files(str(config)), command, place), log)
        elif differences is not None:
            found = search_differences(differences, log)
        elif ladder is not None:
            found = search_ladder(ladder, log)
        elif given.each and not switches:
            found = _within_files(
                search_all(given, list(SWITCHES), log), given, command, place, log
            )
        else:
            found = search_switches(list(switches or SWITCHES), log)
    if as_json:
        click.echo(json_text(as_values(found, log.trials)))
    else:
        click.echo(render(found, log.trials, command).plain.rstrip("\n"))
    return _code(found)


def _within_files(
    found: Answer, given: Differences, command: Sequence[str], place: Path, log: TrialLog
) -> Answer:
    """Search the keys of two configuration files, where the argument that names them is the culprit."""
    names = found.smallest or tuple(one.name for one in given.each[:1])
    if found.kind != given.kind or found.last.first is None or len(names) != 1:
        return found
    (culprit,) = (one for one in given.each if one.name == names[0])
    files = [Path(shlex.split(typed)[-1].rpartition("=")[2]) for typed in culprit.values]
    if not all(map(is_configuration, files)):
        return found
    try:
        inner = search_differences(keys(files[0], files[1], command, place), log)
    except UsageError:  # they differ in nothing that can be searched: the argument is the answer
        return found
    if inner.last.first is None:
        return found
    return dataclasses.replace(inner, searched=(*found.searched, *inner.searched))


def _ladder(
    pythons: Sequence[str],
    commits: str | None,
    repository: Repository | None,
) -> Ladder | None:
    """What is searched besides switches of torch, None for those."""
    if pythons:
        for one in pythons:
            if shutil.which(one) is None:
                raise UsageError(f"--python {one}: no such program")
        return python_ladder(pythons)
    return repository.ladder(commits) if commits and repository is not None else None


def _code(found: Answer) -> ExitCode:
    if found.last.first is not None:
        return ExitCode.DIFFERS
    return ExitCode.AGREES if found.last.agrees_throughout else ExitCode.FAILED


def _tell(trial: Trial, known: bool) -> None:
    again = " (known from the log)" if known else ""
    say(f"{trial.state}: {trial.outcome.value}{again}: {trial.words}")
