"""Runs `lockstep` where nothing is that only POSIX systems have: modules, signals, calls and flags of `os`.

What Python and other packages need of them is loaded before they are hidden; SIGKILL stays, since `subprocess` ends a
child by it here.
"""

import importlib
import importlib.abc
import os
import platform
import signal
import socket
import sys

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

if __name__ == "__main__":
    from lockstep.cli.main import cli, main

    if sys.argv[1:] == ["every-help"]:
        names = cli.list_commands(click.Context(cli))
        failed = [name for name in names if main([name, "--help"])]
        print(f"{len(names)} verbs, without help: {' '.join(failed)}")
        sys.exit(bool(failed))
    sys.exit(main(sys.argv[1:]))
