"""Identify a process of a recorded command among others that train without a rank.

Processes that start at once make their directories in any order. What stays from run to run is how each was started:
its command line, and its number among the children of its parent.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import sys

from lockstep.core.process import ANY_WORKER, STARTED_BY_MULTIPROCESSING

_POOLS = ("multiprocessing.pool", "concurrent.futures.process", "loky.process_executor")
"""Modules whose workers take whichever job comes next, so that their number says nothing."""

_forks = 0
_forked: list[int] = []


def count_forks() -> None:
    """Number the processes that this one forks from now on, and those that these fork."""
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
    # A child of multiprocessing has its own number, however it was made.
    multiprocessing.util.register_after_fork(count_forks, lambda _: _forked.clear())


def _before_fork() -> None:
    global _forks
    _forks += 1


def _after_fork_in_child() -> None:
    global _forks
    _forked.append(_forks)
    _forks = 0


def lineage() -> str:
    """Return this process's number among its parent's children, after those of the processes above: `/2/1`.

    `ANY_WORKER` stands for a worker of a pool; `/` is a process that no Python process has forked or started by
    `multiprocessing`.
    """
    process = multiprocessing.process.current_process()
    numbers = [str(number) for number in getattr(process, "_identity", ())]
    module = getattr(getattr(process, "_target", None), "__module__", None) or ""
    if numbers and module.endswith(_POOLS):
        numbers[-1] = ANY_WORKER
    return "/" + "/".join([*numbers, *map(str, _forked)])


def command_line() -> list[str]:
    """How this process was started; of a child of `multiprocessing`, which has no such line, that of its parent."""
    line = list(getattr(sys, "orig_argv", sys.argv))
    if any(word.startswith(STARTED_BY_MULTIPROCESSING) for word in line):
        return [line[0], *sys.argv]
    return line
