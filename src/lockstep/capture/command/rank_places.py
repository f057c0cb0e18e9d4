"""Where each rank of a command is, for whoever watches it from outside: the collective it waits in, and its own line.

A thread of its own looks ten times a second, and only where that was asked for: a process that waits in a collective
runs no Python code of its own, not even a handler of signals.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from lockstep.capture.process.environment import PLACES
from lockstep.capture.settings.setup import rank_and_world_size
from lockstep.capture.source_code.user_code import is_of_the_user
from lockstep.core.replacement import replacing
from lockstep.store.permissions import make_private_directory, write_private

_EVERY_S = 0.1
_BACKWARD = "_engine_run_backward"
_AROUND = frozenset({"wrapper", "forward"})
"""Functions of `torch.distributed` around what others do."""


class RankPlaces:
    """Notes where the main thread of this process is, whenever that is another place than before.

    recording: Where the notes go, a file of this process below `.places`.
    """

    def __init__(self, recording: Path) -> None:
        self._file = recording / PLACES / f"{os.getpid()}.json"
        self._last: dict[str, Any] = {}

    def start(self) -> None:
        """Look from now on, until the process ends."""
        with suppress(OSError):
            make_private_directory(self._file.parent, exist_ok=True)
        threading.Thread(target=self._work, name="lockstep-places", daemon=True).start()

    def _work(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            place = _place_now()
            if place is not None and place != self._last:
                self._last = place
                self._note({**place, "since_s": time.time()})

    def _note(self, place: dict[str, Any]) -> None:
        with suppress(OSError), replacing(self._file) as aside:
            write_private(aside, json.dumps(place))


def _place_now() -> dict[str, Any] | None:
    """Where the main thread is; None where this process is of no group of ranks."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    rank, world_size = rank_and_world_size()
    return {
        "pid": os.getpid(),
        "rank": rank,
        "world_size": world_size,
        "collectives": _collectives(),
        "waits_in": _waits_in(frame),
        "line": _users_line(frame),
    }


def _collectives() -> int | None:
    """How many collectives this rank has begun, in all groups; None where a backend does not count them."""
    groups: list[Any] = list(torch.distributed.distributed_c10d._world.pg_map)
    try:
        return sum(int(group._get_sequence_number_for_group()) for group in groups)
    except RuntimeError:
        return None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _waits_in(frame: FrameType | None) -> str:
    """The function of torch, called by the innermost other code, in which ranks wait for each other; or ""."""
    for one in _frames(frame):
        name, module = one.f_code.co_name, str(one.f_globals.get("__name__", ""))
        if name == _BACKWARD:
            return "backward"
        if module == "torch.nn.parallel.distributed" and name.startswith(("_sync", "_verify")):
            return "DistributedDataParallel"
        if module.startswith("torch.distributed") and name not in _AROUND and name[0] != "_":
            return name
        if not module.startswith("torch"):
            return ""
    return ""


def _users_line(frame: FrameType | None) -> str:
    for one in _frames(frame):
        if is_of_the_user(one.f_code.co_filename):
            return f"{os.path.relpath(one.f_code.co_filename)}:{one.f_lineno}"
    return ""
