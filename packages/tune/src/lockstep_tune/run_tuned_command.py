"""`lockstep run-tuned`: a training with the settings that `lockstep tune` found."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.options import TrainingCommand, training_command
from lockstep_tune.settings import read_settings
from lockstep_tune.tuned_run import check_command, run_tuned


class _Command(TrainingCommand):
    usage = "SETTINGS -- COMMAND..."


@click.command("run-tuned", cls=_Command)
@click.argument("settings", type=click.Path(path_type=Path))
def run_tuned_command(settings: Path) -> int:
    """Run COMMAND with the settings that `lockstep tune` wrote, without an edit of the script.

    SETTINGS is that YAML file; you may also write one by hand. Checkpoints hold float32 parameters
    with any settings, and load back bit by bit. With float16, the loss scale is in the optimizer's
    state.

    Exit code that of the command, or 2 if the file cannot be used.

    \b
    lockstep run-tuned tuned.yaml -- python train.py
    lockstep run-tuned tuned.yaml -- torchrun --nproc_per_node 2 train.py
    """
    command = training_command()
    check_command(command)
    return run_tuned(command, read_settings(settings))
