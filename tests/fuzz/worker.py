"""Runs command lines for the fuzzer in one process that stays, so that each costs what it does rather than a start.

Reads one JSON list of arguments a line, and answers each with a line of JSON on the descriptor that it was started
with as standard output. What the command prints, and what libraries print past Python, goes into the files `out` and
`err` of its working directory.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

from lockstep.cli.main import main

ROOM_BYTES = 3 << 30
"""Memory that a run may ask for beyond what there is once everything is loaded."""


def serve() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    for number, name in ((1, "out"), (2, "err")):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
        os.dup2(opened, number)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        if arguments == "loaded":
            _limit_memory()
            continue
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, start = _status_bytes("VmRSS"), time.monotonic()
        code = _run(arguments)
        seconds, grown = time.monotonic() - start, _status_bytes("VmHWM") - before
        answers.write(json.dumps({"code": code, "seconds": seconds, "grown_bytes": grown}) + "\n")
        answers.flush()


def _run(arguments: list[str]) -> int | str:
    try:
        return main(arguments)
    except BaseException as error:  # whatever gets past the command line is what is looked for
        return repr(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _limit_memory() -> None:
    """From here on an allocation out of all proportion fails, rather than the machine."""
    gc.collect()
    gc.freeze()
    limit = _status_bytes("VmData") + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _status_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) << 10


if __name__ == "__main__":
    serve()
