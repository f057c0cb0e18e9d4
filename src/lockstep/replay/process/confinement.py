"""Limit a process that runs recorded calls again: no writing, no network, no new processes, bounded memory.

A recording may be anybody's, and native kernels trust their arguments. What the system has of these is taken: Linux's
Landlock (5.13) against writing, making and running files and TCP (6.7), a network namespace of its own, and resource
limits. On other systems the limits alone are left.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

_CREATE_RULESET, _RESTRICT_SELF = 444, 446
"""Landlock's system calls, the same on all processors; uapi/asm-generic/unistd.h."""

_VERSION = 1
_FILES = {1: 0x1FFF & ~0b1100, 2: 1 << 13, 3: 1 << 14}
"""Rights over files by the version that knows them, all but to read files and folders; uapi/linux/landlock.h."""

TCP_SINCE, _TCP = 4, 0b11
_NO_NEW_PRIVILEGES = 38

_POOLS, _STACK_BYTES = 4, 8 << 20
"""Pools of a thread a core that torch and its libraries may start, and what Linux sets apart for each thread."""

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000


def landlock_version() -> int:
    """Which Landlock the system has, 0 or less for none: 1 knows files, 4 TCP too."""
    if not sys.platform.startswith("linux"):
        return 0
    return int(ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, _VERSION))


def confine() -> None:
    """Give up what a re-run does not need; to be called before there are other threads, which would keep it."""
    if not sys.platform.startswith("linux"):
        return
    system = ctypes.CDLL(None)
    # Whoever administers the machine needs no user of his own for it, and keeps what he may read.
    system.unshare(_NEW_NETWORK if os.geteuid() == 0 else _NEW_USER | _NEW_NETWORK)
    system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    version = landlock_version()
    if version > 0:
        files = sum(rights for since, rights in _FILES.items() if since <= version)
        handled = [files, _TCP] if version >= TCP_SINCE else [files]
        rules = (ctypes.c_uint64 * len(handled))(*handled)
        ruleset = system.syscall(_CREATE_RULESET, rules, ctypes.sizeof(rules), 0)
        if ruleset >= 0:  # a container may forbid it
            system.syscall(_RESTRICT_SELF, ruleset, 0)
            os.close(ruleset)


def limit(memory_bytes: int) -> None:
    """Allow so much memory beyond what is taken now, no file to grow, and no image of a process that crashes.

    What is beyond it fails to be had, as on a machine that has no more; limits that the system does not know are left.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    most = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_DATA: _data_bytes() + room_bytes(memory_bytes),
    }
    for what, value in most.items():
        hard = resource.getrlimit(what)[1]
        with suppress(ValueError, OSError):
            resource.setrlimit(
                what, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard)
            )


def room_bytes(memory_bytes: int) -> int:
    """Return the bytes that count against a memory limit, with the stacks of threads, which are mostly unused."""
    return memory_bytes + _POOLS * _STACK_BYTES * (os.cpu_count() or 1)


def _data_bytes() -> int:
    """What counts against the limit of data now; 0 where that cannot be read."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmData")), 0)
