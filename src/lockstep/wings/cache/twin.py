"""Whether samples come out the same twice: they are computed again in a child process, which nobody else notices."""

from __future__ import annotations

import fcntl
import os
import random
import select
import signal
import stat
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lockstep.wings.cache.sample_layout import CannotLayOutError, lay_out

_LONGEST_S = 60.0
_SAME, _OTHER = b"=", b"!"
_COPIED_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_DIRECT | os.O_NOATIME


def threads() -> int:
    """How many compute here: a sum of several is rounded otherwise than that of one."""
    return torch.get_num_threads()


def come_out_otherwise(compute: Callable[[], list[Any]], expected: Sequence[int]) -> bool | None:
    """Compute samples once more, with other random numbers to be drawn.

    A child that is forked has all that the data set holds, its generators too; what it changes is gone with it, so
    that the training draws and reads as if nobody had looked. Open files it opens anew, for where a file is read next
    is one place for both; connections, on which two cannot speak, are closed to it.

    Parameters
    ----------
    compute
        Gives the samples.
    expected
        Their checksums, as they came out.

    Returns
    -------
    bool or None
        Whether some sample is another one; None where the child came to no end.
    """
    reading, writing = os.pipe()
    is_threaded = threads() > 1
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of forking beside threads, as DataLoader does
        child = os.fork()
    if not child:
        _answer(compute, None if is_threaded else expected, writing)
    os.close(writing)
    try:
        is_there = select.select([reading], [], [], _LONGEST_S)[0]
        found = os.read(reading, 1) if is_there else b""
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return found == _OTHER if found else None


def _answer(compute: Callable[[], list[Any]], expected: Sequence[int] | None, writing: int) -> None:
    """The child: answers and ends, without anything that a process does at its end.

    It has one thread alone, and sums of several threads are rounded otherwise: a parent with several cannot be what it
    is held against, so it computes twice then.
    """
    try:
        _take_apart(writing)
        torch.set_num_threads(1)  # those of the parent are not there
        expected = expected or _computed(compute, 1847)
        os.write(writing, _SAME if _computed(compute, 4711) == list(expected) else _OTHER)
    finally:
        os._exit(0)


def _computed(compute: Callable[[], list[Any]], seed: int) -> list[int]:
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        return [lay_out(one).checksum for one in compute()]
    except CannotLayOutError:  # by chance another kind of sample
        return [seed]


def _take_apart(kept: int) -> None:
    """Give this process positions in files of its own, and no connections."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in [int(one.name) for one in Path("/proc/self/fd").iterdir()]:
        try:
            kind = os.fstat(descriptor).st_mode
        except OSError:  # that of the listing
            continue
        if descriptor in (kept, nothing):
            continue
        if descriptor < 3 or stat.S_ISSOCK(kind) or stat.S_ISFIFO(kind):
            os.dup2(nothing, descriptor)
        elif stat.S_ISREG(kind):
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & _COPIED_FLAGS
            own = os.open(f"/proc/self/fd/{descriptor}", flags)
            os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, descriptor)
            os.close(own)
