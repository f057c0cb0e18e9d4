"""Runs commands of `lockstep`, one after the other, where nothing is that only POSIX systems have.

These are modules, signals, calls and flags of `os`. The commands come as JSON, [] for the help of every verb, and so
does what each ends with: its exit code and what it printed.

What Python and other packages need of them is loaded before they are hidden; SIGKILL stays, since `subprocess` ends a
child by it here.
"""

import importlib
import importlib.abc
import io
import json
import os
import platform
import signal
import socket
import sys
from contextlib import redirect_stderr, redirect_stdout

import click

for loaded in (
    "asyncio",
    "multiprocessing.connection",
    "subprocess",
    "tempfile",
    "numpy",
    "polars",
    "rich.console",
    "torch",
):
    importlib.import_module(loaded)

MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "tty"}
SIGNALS = ("SIGQUIT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGCHLD", "SIGALRM")
CALLS = (
    "fork", "getuid", "geteuid", "getgid", "setsid", "killpg", "getpgid", "sched_getaffinity", "memfd_create",
    "posix_fallocate", "posix_fadvise", "pread", "preadv", "chown", "fchmod", "register_at_fork",
    "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC",
)  # fmt: skip


class Hidden(importlib.abc.MetaPathFinder):
    """Finds none of the modules."""

    def find_spec(self, name, path=None, target=None):
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


platform.platform()
for name in MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Hidden())
for name in SIGNALS:
    delattr(signal, name)
for name in CALLS:
    delattr(os, name)
del socket.AF_UNIX


def ended(arguments):
    """Exit code of a command, and what it prints."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    from lockstep.cli.main import cli, main

    commands = json.loads(sys.argv[1])
    if not commands:
        commands = [[name, "--help"] for name in cli.list_commands(click.Context(cli))]
    print(json.dumps([ended(arguments) for arguments in commands]))
