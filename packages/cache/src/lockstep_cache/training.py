"""Which processes are one training: what they read under no name is shared among them alone.

Two processes are one training's ranks if they have joined one process group of torch.distributed, or if one agent of
torchrun has started them. Workers of a DataLoader inherit a data set from their rank. Nothing else counts: not an
environment that a shell hands on, nor a common parent, which may start several trainings.
"""

from __future__ import annotations

import itertools
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.context import get_spawning_popen
from pathlib import Path

import torch.distributed as dist

from lockstep.errors import UsageError

_KEY = "lockstep/cache/training"
_RUN, _RESTARTS = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"


@dataclass(frozen=True, slots=True)
class Scope:
    """The processes that share a data set without a name.

    training: The same in all ranks of one training, and in no other process.
    number: The how-manieth equal data set of its process this is: ranks make theirs in the same order.
    """

    training: str
    number: int

    def session(self, checksum: str) -> str:
        """The name of the session, for a pipeline of this checksum."""
        return f"unnamed-{sha256(f'{self.training}/{self.number}/{checksum}'.encode()).hexdigest()[:12]}"


def scope_of(checksum: str) -> Scope:
    """The scope of a data set that this process has just made.

    checksum: Of its pipeline.
    """
    training = _of_process_group() or _of_torchrun() or own_token()
    return Scope(training, next(_counts.setdefault((training, checksum), itertools.count())))


def own_token() -> str:
    """Return a text that no other process has, not even a fork of this one."""
    if _own[0] != os.getpid():
        _own[:] = [os.getpid(), secrets.token_hex(16)]
    return str(_own[1])


def group_rank() -> str:
    """Return the rank of this process in torch.distributed and how many there are; "" if that is not set up."""
    if dist.is_available() and dist.is_initialized():
        return f"rank {dist.get_rank()} of {dist.get_world_size()}"
    return ""


def known_rank() -> str:
    """Return the rank of this process, as torch.distributed or the environment says it; "" if nobody does."""
    if known := group_rank():
        return known
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return f"rank {int(rank)} of {int(size)}" if rank.isdecimal() and size.isdecimal() else ""


def inherited(scope: Scope | None) -> Scope | None:
    """The scope as a copy in another process has it: one that multiprocessing starts now, as a worker of a DataLoader;
    what is written to a file and read by another training is not the same."""
    return scope if get_spawning_popen() is not None else None


def named(session: str | None, version: str | int | None) -> str:
    """The name that a user gives a session; "" for none. Raises UsageError if there is a version of nothing."""
    if version is None:
        return session or ""
    if not session:
        raise UsageError(f"version={version!r} is of no session; give session= too")
    return f"{session} version {version}"


_counts: dict[tuple[str, str], itertools.count[int]] = {}
_own: list[object] = [0, ""]


def _of_process_group() -> str:
    """What the first rank that asks writes into the store of the process group; "" without such a store."""
    if not (dist.is_available() and dist.is_initialized()):
        return ""
    with suppress(Exception):  # MPI has no store, and one whose master is gone raises what it likes
        store = dist.distributed_c10d._get_default_store()
        return f"group {store.compare_set(_KEY, '', secrets.token_hex(16)).decode()}"
    return ""


def _of_torchrun() -> str:
    """The agent that has started this rank; "" if the parent is none, as for a program that a rank starts."""
    if _RUN not in os.environ or "RANK" not in os.environ:
        return ""
    parent = Path(f"/proc/{os.getppid()}")
    try:
        if f"{_RUN}=".encode() in (parent / "environ").read_bytes():
            return ""  # itself a rank, or started by one
        began = (parent / "stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
    return f"torchrun {os.getppid()} {began} {os.environ[_RUN]} {os.environ.get(_RESTARTS, '')}"
