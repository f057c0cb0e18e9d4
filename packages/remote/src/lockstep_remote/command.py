"""`lockstep remote`: the machines that `--on NAME` means, and the jobs that run there."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import ExitCode, UsageError
from lockstep.options import PATH
from lockstep.terminal import Column, enveloped, json_text, table_text
from lockstep_remote import machines
from lockstep_remote.executors.chosen import executors
from lockstep_remote.jobs import job_of, jobs
from lockstep_remote.machines import Machine


@click.group()
def remote() -> None:
    """Run trainings on other machines over SSH, and bring their recordings back as they are written.

    You install nothing there: Lockstep sends itself and the repository around your folder, with
    your changes. If the connection is lost, the command runs on. `~/.ssh/config`, keys, agent and
    ProxyJump work as in ssh. The host key must be in known_hosts; Lockstep asks for no password.

    \b
    lockstep remote add gpu1 me@gpu1.example.org --python /opt/venv/bin/python
    lockstep remote test gpu1
    lockstep record --on gpu1 -o ref -- python train.py
    lockstep remote attach gpu1
    """


@remote.command()
@click.argument("name")
@click.argument("address", metavar="USER@HOST")
@click.option(
    "--workdir", default=machines.WORKDIR, show_default=True, metavar="DIR",
    help="Use this folder there for files that Lockstep sends, and for jobs.",
)  # fmt: skip
@options.option("--python", default=machines.PYTHON, words="It must have torch.")
@click.option(
    "--env-file", type=PATH, metavar="FILE",
    help="Read lines NAME=VALUE from this file at each run; for secrets, because Lockstep keeps them nowhere.",
)  # fmt: skip
@options.option(
    "--env", "variables", multiple=True,
    words="NAME alone takes its value from your environment at each run. Repeatable.",
)  # fmt: skip
@options.force
def add(
    name: str,
    address: str,
    workdir: str,
    python: str,
    env_file: Path | None,
    variables: tuple[str, ...],
    force: bool,
) -> int:
    """Name a machine; --force changes one that is there."""
    machine = Machine(
        name, address, workdir.rstrip("/") or "/", python,
        "" if env_file is None else str(env_file.absolute()),
        dict(map(machines.parsed_variable, variables)),
    )  # fmt: skip
    if name in executors():
        raise UsageError(f"{name} is a job system of --on; give the machine another name")
    if env_file is not None:
        machines.variables_in(env_file)
    machines.keep(machine, replace=force)
    click.echo(f"{name} is {address}; lockstep remote test {name} looks what it has")
    return ExitCode.AGREES


@remote.command("list")
@options.as_json
def list_machines(as_json: bool) -> int:
    """List machines, and the jobs that run there; variables by name alone."""
    known, running = machines.machines(), jobs()
    if as_json:
        values = {
            "machines": [
                {"name": one.name, "address": one.address, "workdir": one.workdir, "python": one.python,
                 "env_file": one.env_file, "variables": list(one.variables)}
                for one in known.values()
            ],
            "jobs": [
                {"key": one.key, "machine": one.machine, "started": one.started, "command": one.command,
                 "outputs": [output.here for output in one.outputs]}
                for one in running
            ],
        }  # fmt: skip
        click.echo(json_text(enveloped(values)))
        return ExitCode.AGREES
    if not known:
        click.echo("no machine is known yet; lockstep remote add NAME user@host")
    else:
        rows = [
            (
                one.name,
                one.address,
                one.python,
                one.workdir,
                " ".join(one.variables) or one.env_file,
            )
            for one in known.values()
        ]
        click.echo(
            table_text(
                [Column(one) for one in ("name", "address", "python", "workdir", "variables")], rows
            )
        )
    if running:
        rows_of_jobs = [(one.key, one.started, " ".join(one.command)) for one in running]
        click.echo(
            "\n" + table_text([Column(one) for one in ("job", "started", "command")], rows_of_jobs)
        )
    return ExitCode.AGREES


@remote.command()
@click.argument("name")
def remove(name: str) -> int:
    """Forget a machine; what Lockstep keeps there stays."""
    machine = machines.forget(name)
    click.echo(f"{name} is forgotten; what was sent there is still in {machine.workdir}")
    return ExitCode.AGREES


@remote.command()
@click.argument("name")
@options.as_json
def test(name: str, as_json: bool) -> int:
    """Connect to a machine, and say what it has: Python, torch, packages, room on its disk."""
    from lockstep_remote.link import Link
    from lockstep_remote.running import check_packages, look_at

    machine = machines.machine_named(name)

    async def look() -> dict[str, object]:
        link = Link(machine)
        try:
            return await look_at(link)
        finally:
            link.close()

    there = asyncio.run(look())
    if as_json:
        click.echo(json_text(enveloped({"name": name, **there})))
        return ExitCode.FAILED if there["lacks"] else ExitCode.AGREES
    packages = there["packages"]
    assert isinstance(packages, dict)
    torch = packages["torch"] or "is missing"
    click.echo(
        f"{name}: connected; Python {there['version']} ({there['executable']}), torch {torch},"
        f" {there['processors']} processors, {_gigabytes(there['free_bytes'])} free in {there['workdir']}"
    )
    check_packages(machine, there)
    return ExitCode.AGREES


def _gigabytes(size_bytes: object) -> str:
    assert isinstance(size_bytes, int)
    return f"{size_bytes / 1e9:.1f} GB"


@remote.command()
@click.argument("job")
def attach(job: str) -> int:
    """Go on with a JOB, or the only one of a machine: print what it prints, bring back what it writes."""
    from lockstep_remote.running import attach as go_on

    found = job_of(job)
    return go_on(found, machines.machine_named(found.machine))


@remote.command()
@click.argument("job")
@click.option("--kill", is_flag=True, help="At once; without it the command may end in order.")
def stop(job: str, kill: bool) -> int:
    """End a JOB, or the only one of a machine; attach then brings back what it wrote."""
    from lockstep_remote.running import stop as send

    found = job_of(job)
    number = signal.SIGKILL if kill else signal.SIGTERM
    was_running = send(found, machines.machine_named(found.machine), number)
    said = "is told to end" if was_running else "had ended"
    click.echo(f"{found.key} {said}; lockstep remote attach {found.key} brings back what it wrote")
    return ExitCode.AGREES
