"""Whether a sample comes out the same twice: it is computed again in a child process, which nobody else notices."""

from __future__ import annotations

import os
import random
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from lockstep.wings.cache.sample_layout import CannotLayOutError, lay_out

_LONGEST_S = 60.0


def comes_out_otherwise(compute: Callable[[], Any], expected: int) -> bool | None:
    """Compute a sample once more, with other random numbers to be drawn.

    A child that is forked has all that the data set holds, its generators too; what it changes is gone with it, so
    that the training draws and reads as if nobody had looked.

    Parameters
    ----------
    compute
        Gives the sample.
    expected
        Its checksum.

    Returns
    -------
    bool or None
        Whether it is another one; None where the child came to no end.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of forking beside threads, as DataLoader does
        child = os.fork()
    if not child:
        _answer(compute, writing)
    os.close(writing)
    try:
        found = _read(reading)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return None if found is None else found != expected.to_bytes(8, "big")


def _answer(compute: Callable[[], Any], writing: int) -> None:
    """The child: answers and ends, without anything that a process does at its end."""
    try:
        torch.set_num_threads(1)  # those of the parent are not there
        random.seed(4711)
        np.random.seed(4711)
        torch.default_generator.manual_seed(4711)
        try:
            answer = lay_out(compute()).checksum.to_bytes(8, "big")
        except CannotLayOutError:
            answer = b"another."
        os.write(writing, answer)
    finally:
        os._exit(0)


def _read(reading: int) -> bytes | None:
    ends_s = time.monotonic() + _LONGEST_S
    if not select.select([reading], [], [], max(ends_s - time.monotonic(), 0))[0]:
        return None
    found = os.read(reading, 8)
    return found if len(found) == 8 else None
