"""A folder with a `python`, a `torchrun` and a `lockstep` that start at once: they are forked from a warm process.

To start Python takes two seconds of torch, two of its compiler, and two of compiled code of Lockstep's; what tests
look at takes tenths. Where the start is what a test is about, it takes the real Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
SERVE = f"import sys; sys.path[0] = {str(HERE)!r}; import server; server.serve()"  # of no file, so that no stack has it
PROGRAMS = {"python": "", "torchrun": "-m torch.distributed.run", "lockstep": "-m lockstep"}


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    """Fill the folder with programs, and serve them."""
    address = folder / "server"
    start = f"exec {sys.executable} -IS {HERE / 'client.py'} {address} {sys.executable}"
    for name, arguments in PROGRAMS.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\n{start} {arguments} "$@"\n')
        program.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(address), str(folder / "python")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        assert server.stdout.readline() == b"ready\n"
        yield
        server.stdin.close()
