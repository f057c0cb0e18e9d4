"""Register the verb `remote`, and the option `--on NAME`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Elsewhere, Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verb `remote`."""
    return [
        Verb(
            "remote", "Run trainings on other machines, over SSH.", Task.TRAIN, _remote, 50,
            ("ssh", "host", "machine", "cluster"),
        )
    ]  # fmt: skip


@hookimpl
def lockstep_run_elsewhere(asked: Elsewhere) -> int | None:
    """Run a verb on a machine that `lockstep remote add` named."""
    from lockstep_remote.lying import run_where_it_lies
    from lockstep_remote.machines import machine_named
    from lockstep_remote.running import run_elsewhere

    if not asked.machine:
        return run_where_it_lies(asked)
    return run_elsewhere(asked, machine_named(asked.machine))


def _remote() -> click.Command:
    from lockstep_remote.command import remote

    return remote
