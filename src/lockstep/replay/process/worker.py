"""The process that runs recorded calls again: reads questions, answers each with one line, ends with its parent."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from functools import partial
from typing import BinaryIO

from lockstep.replay.process import ONE_THREAD, READY
from lockstep.replay.process.confinement import confine, limit


def main() -> None:
    """Answer until there are no more questions."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # what is typed is for the parent, with which this ends
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(2, 1)
    _load_compiled()
    tempfile.gettempdir()  # parts of torch that are loaded late ask for it, and it is found by writing there
    # A build for GPUs looks for its libraries with files of its own and the help of a compiler, and starts no thread.
    from lockstep.devices.vector_math import prepare_vector_math

    prepare_vector_math()
    os.environ.pop(ONE_THREAD, None)
    confine()
    import lockstep.replay.process.answered_here  # noqa: F401 - the threads of what it loads are confined with it

    answers.write(READY)
    answers.flush()
    os.dup2(silence, 1)
    os.dup2(silence, 2)  # what a native library has to say when it dies is for nobody
    _answer(questions, answers)


def _load_compiled() -> None:
    """Load what is compiled while there are folders to keep it in: later Numba would compile it each time."""
    from lockstep.kernels import fused_formulas as formulas
    from lockstep.kernels import moments
    from lockstep.kernels.jit import available, ready

    if available():
        ready(formulas.run)
        for kernel in moments.KERNELS:
            ready(kernel)


def _answer(questions: BinaryIO, answers: BinaryIO) -> None:
    from lockstep.replay.calls.imported import bring
    from lockstep.replay.process.answered_here import Verdicts
    from lockstep.replay.process.messages import Begin, Known, answer, know, received
    from lockstep.replay.questions import Question

    verdicts = Verdicts(0)
    while (said := received(questions)) is not None:
        if isinstance(said, Begin):
            know(None)
            bring(())
            verdicts = Verdicts(said.memory_bytes)
            limit(said.memory_bytes)
        elif isinstance(said, Known):
            know(said)
        elif isinstance(said, Question):
            found = answer(partial(verdicts.ask, said))
            answers.write(json.dumps(found).encode() + b"\n")
            answers.flush()
