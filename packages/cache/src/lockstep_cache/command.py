"""`lockstep cache`: the daemon, started, stopped and looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import ExitCode, UsageError, check_linux
from lockstep_cache import messages as m
from lockstep_cache.places import Address, address_of, make_private, own_folder

_at = click.option(
    "--address", default="", metavar="ADDRESS",
    help="Find the daemon at 127.0.0.1:PORT, or a socket's path."
    "  [default: LOCKSTEP_CACHE, or a socket of this user]",
)  # fmt: skip


@click.group()
def cache() -> None:
    """Keep loaded samples in memory, for all trainings of this machine.

    A daemon keeps the samples that `lockstep_cache.CachedDataset` and `lockstep_cache.cached` have
    loaded; hits are views of shared memory. It serves only you, the user who started it.

    \b
    lockstep cache start --memory 8GB --spill scratch
    lockstep cache stat
    lockstep cache stop
    """


@cache.command()
@_at
@options.option("--memory", default="1GB", words="Samples beyond it go to --spill.")
@click.option(
    "--spill", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Put samples that do not fit into memory into this folder.",
)  # fmt: skip
@click.option(
    "--spill-bytes",
    type=options.Size(),
    default="1TB",
    show_default=True,
    help="Use at most this much space in that folder, as in 100GB.",
)
@click.option(
    "--sessions", type=click.IntRange(min=1), default=32, show_default=True,
    help="Keep at most this many sessions; a new one replaces an unused one.",
)  # fmt: skip
@click.option("--foreground", is_flag=True, help="Serve here until Ctrl-C.")
def start(
    address: str, memory: int, spill: Path | None, spill_bytes: int, sessions: int, foreground: bool
) -> int:
    """Start the daemon, and go on when it answers."""
    check_linux("lockstep cache start")
    from lockstep_cache.daemon import Settings, serve

    at = address_of(address)
    if foreground:
        settings = Settings(memory, spill, spill_bytes, sessions)
        serve(at, settings, lambda: click.echo(at.text))
        return ExitCode.AGREES
    words = [
        "--memory",
        str(memory),
        "--spill-bytes",
        str(spill_bytes),
        "--sessions",
        str(sessions),
    ]
    words += ["--spill", str(spill.absolute())] if spill else []
    command = [sys.executable, "-m", "lockstep", "cache", "start", "--foreground"]
    _start_apart([*command, "--address", at.text, *words], at)
    click.echo(at.text)
    return ExitCode.AGREES


def _start_apart(command: list[str], address: Address) -> None:
    """Start a process that outlives this one, and wait until it answers. Raises UsageError if it ends instead."""
    with (make_private(own_folder()) / f"{address.key}.log").open("w+b") as log:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True, cwd="/"
        )  # fmt: skip
        assert started.stdout is not None
        with started.stdout as answer:
            if answer.readline():
                return
        started.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip().splitlines()
    why = said[-1].removeprefix("lockstep: ") if said else "it said nothing"
    raise UsageError(f"the cache did not start: {why}")


@cache.command()
@_at
def stop(address: str) -> int:
    """Stop the daemon; samples that a training holds stay valid."""
    from lockstep_cache.client import asked

    asked(address_of(address), m.Stop(), m.Made)
    return ExitCode.AGREES


@cache.command()
@_at
@click.argument("name", default="")
def session(address: str, name: str) -> int:
    """Make a session, and print its name; the first training that uses it gives it its pipeline."""
    from lockstep_cache.client import asked

    click.echo(asked(address_of(address), m.MakeSession(name), m.Made).session)
    return ExitCode.AGREES


@cache.command()
@_at
@click.argument("name")
def destroy(address: str, name: str) -> int:
    """Drop the session NAME and its samples."""
    from lockstep_cache.client import asked

    asked(address_of(address), m.Destroy(name), m.Made)
    return ExitCode.AGREES


@cache.command()
@_at
@options.as_json
def stat(address: str, as_json: bool) -> int:
    """Show what the daemon holds."""
    from lockstep_cache.client import asked
    from lockstep_cache.stat_screen import stat_text

    found = json.loads(asked(address_of(address), m.Stat(), m.Stats).text)
    click.echo(json.dumps(found, indent=2) if as_json else stat_text(found))
    return ExitCode.AGREES
