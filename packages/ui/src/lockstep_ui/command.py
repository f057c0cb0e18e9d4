"""`lockstep ui`: pages over many runs, for a browser of this machine."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from pathlib import Path

import click

from lockstep.errors import ExitCode, UsageError
from lockstep.terminal import say
from lockstep_ui.runs import Runs

HOST = "127.0.0.1"


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Serve at this port.  [default: a free one]",
)
@click.option(
    "--sort",
    default="",
    help="Sort the list by this column at first: 'last loss', 'lr', or '-optimizer.lr' for the largest first.",
)
@click.option("--open", "opens", is_flag=True, help="Open a browser.")
def ui(folders: tuple[Path, ...], port: int, sort: str, opens: bool) -> int:
    """Serve pages about the recordings in FOLDERS to a browser on this machine, until Ctrl-C.

    You see all runs with their settings and losses, the page of each run, and the comparison,
    curves and operators of a run beside the reference that you choose. New recordings appear by
    themselves. You can pause trainings that `lockstep watch` follows, and write tags and notes;
    nothing else can be changed.

    Only a browser that has the printed address sees the pages.

    \b
    lockstep ui runs
    lockstep ui ref cand --open
    """
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: there is no such folder; give one with recordings in it")
    try:
        import uvicorn

        from lockstep_ui.server import application
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed here: pip install 'lockstep-numerics[ui]'"
        ) from error
    listening = _listening(port)
    token, at = secrets.token_urlsafe(24), listening.getsockname()[1]
    address = f"http://{HOST}:{at}/{token}/"
    click.echo(address)
    if opens and not webbrowser.open(address):
        say("no browser could be opened; open the address above")
    config = uvicorn.Config(
        application(Runs(folders), token, at, sort=sort), log_level="warning", access_log=False,
        server_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[listening])
    return ExitCode.AGREES


def _listening(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UsageError(
            f"--port {port}: cannot be served at ({error.strerror or error}); leave it out for a free one"
        ) from error
    return listening
