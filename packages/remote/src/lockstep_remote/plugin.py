"""Register the verb `remote`, the option `--on NAME`, and the job systems that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Elsewhere, Task, Verb, hookimpl

if TYPE_CHECKING:
    import click
    import pluggy

    from lockstep_remote.hookspecs import Executor


@hookimpl
def lockstep_add_hookspecs(plugins: pluggy.PluginManager) -> None:
    """The extension point of `--on`."""
    from lockstep_remote import hookspecs

    plugins.add_hookspecs(hookspecs)


@hookimpl
def lockstep_executors() -> list[Executor]:
    """The job systems that Lockstep knows."""
    from lockstep_remote.executors.kubernetes_job import Kubernetes
    from lockstep_remote.executors.slurm import Slurm

    return [Slurm(), Kubernetes()]


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
    """Run a verb on a machine that `lockstep remote add` named, or as a job."""
    from lockstep_remote.executors.chosen import chosen_executor
    from lockstep_remote.executors.following import run_as_job
    from lockstep_remote.lying import run_where_it_lies
    from lockstep_remote.machines import machine_named
    from lockstep_remote.running import run_elsewhere

    if not asked.machine:
        return run_where_it_lies(asked)
    chosen = chosen_executor(asked.machine)
    if chosen is not None:
        return run_as_job(asked, *chosen)
    return run_elsewhere(asked, machine_named(asked.machine))


def _remote() -> click.Command:
    from lockstep_remote.command import remote

    return remote
