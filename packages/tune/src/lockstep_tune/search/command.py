"""`lockstep search`: settings that make a training better, of which no faulty trial is the best."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep import options
from lockstep.errors import ExitCode, OutputExistsError, UsageError, check_posix
from lockstep.options import TrainingCommand, training_command
from lockstep.recordings import open_recording
from lockstep.terminal import json_text
from lockstep_tune.search.given import command_with
from lockstep_tune.search.plan import Plan, read_plan

if TYPE_CHECKING:
    from lockstep_tune.search.ray_trials import RayTrials
    from lockstep_tune.search.searching import Search

_VALUES = "search.json"


@click.command(cls=TrainingCommand)
@options.option(
    "--config", "file", required=True,
    words="A YAML file: parameters with their bounds, the target, conditions of a trial.",
)  # fmt: skip
@options.option(
    "--output", default=Path("searched"),
    words="A folder: the journal, from which an interrupted search goes on, and a folder for each trial.",
)  # fmt: skip
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run this many trials.  [default: the file's, or 20]",
)
@click.option(
    "--processes", type=click.IntRange(min=1), metavar="N",
    help="Run this many trials at a time.  [default: the file's, or 1]",
)  # fmt: skip
@options.option("--seed", default=None, words="The same seed and one process give the same trials.")
@options.option("--timeout", "limit_s", default=None)
@options.option(
    "--engine", default=None, choices=["local", "ray"],
    words="On a cluster, each trial takes the `resources` of the file.",
)  # fmt: skip
@options.option("--cluster", default=None)
@options.limit
@options.as_json
def search(
    file: Path,
    output: Path,
    trials: int | None,
    processes: int | None,
    seed: int | None,
    limit_s: float | None,
    engine: str | None,
    cluster: str | None,
    limit: int,
    as_json: bool,
) -> int:
    """Search the settings with which the training of COMMAND reaches its best target.

    Optuna proposes values. COMMAND gets them as flags (--lr 0.01), as keys of its config file, or
    in place of {lr}. A trial that breaks a rule of `lockstep watch`, or leaves a reference
    recording by a fault, is infeasible: it is never the best, and you see the operator.

    Exit code 0 if there is a best trial, 1 if no trial can be used, 2 if no trial could be run.

    \b
    lockstep search --config search.yaml -- python train.py
    lockstep search --config search.yaml --trials 30 --processes 2 -- python train.py --logdir {folder}
    lockstep search --config search.yaml --processes 8 --engine ray --cluster 10.0.0.1:6379 -- python train.py
    """
    check_posix("running a training")
    if cluster and engine != "ray":
        raise UsageError("--cluster names a Ray cluster; give --engine ray too")
    plan = _with_options(read_plan(file), trials, processes, seed)
    command = training_command() or plan.command
    if not command:
        raise UsageError(f"give the training's command after --, or as `command:` in {file}")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: command not found; give the command as you would type it, after --"
        )
    if plan.reference is not None:
        open_recording(plan.reference)
    _folder(output)
    from lockstep_tune.search.screen import as_values, best_of, render
    from lockstep_tune.search.searching import Search, all_failed  # needs the extra

    one = Search(plan, command, output.absolute(), limit_s, Path.cwd())
    study = one.run(None if engine != "ray" else partial(_on_ray, plan, cluster or ""))
    values = as_values(study, plan, command)
    (output / _VALUES).write_text(json_text(values), encoding="utf-8")
    best = best_of(values["trials"], maximize=plan.target.maximize)
    if as_json:
        click.echo(json_text(values))
    else:
        click.echo(render(values, _best_command(one, best), limit=limit))
    if all_failed(study):
        raise UsageError(
            f"the command failed in each of the first trials, so the search stopped; see {output}/trials"
        )
    return ExitCode.AGREES if best is not None else ExitCode.DIFFERS


def _on_ray(plan: Plan, cluster: str) -> RayTrials:
    from lockstep_tune.search.ray_trials import RayTrials
    from lockstep_tune.search.searching import attempted

    return RayTrials(cluster, plan.resources, plan.processes, attempted)


def _with_options(plan: Plan, trials: int | None, processes: int | None, seed: int | None) -> Plan:
    return dataclasses.replace(
        plan,
        trials=plan.trials if trials is None else trials,
        processes=plan.processes if processes is None else processes,
        seed=plan.seed if seed is None else seed,
    )


def _folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir()) and not (folder / "journal.log").exists()
    except OSError as error:
        raise OutputExistsError(f"{folder}: cannot be made ({error.strerror or error})") from error
    if taken:
        raise OutputExistsError(f"{folder} is there and holds no search; give another name")


def _best_command(one: Search, best: Any) -> Sequence[str]:
    if best is None:
        return []
    place = one.folder / "trials" / f"{best['number']:04d}"
    return command_with(one.plan, one.command, best["parameters"], place)[0]
