"""How much processor time recorded calls take, each run alone on numbers that are drawn."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lockstep.core.records import Call
from lockstep.replay.answers import Timed
from lockstep.replay.calls.rebuild import rebuild
from lockstep.replay.calls.refusals import CannotReplay, check_call
from lockstep.replay.calls.rerun import Precision, Rerun
from lockstep.replay.equal_forms.drawn_calls import drawn

_RUNS = 2


def timed(calls: Sequence[Call], memory_bytes: int) -> Timed:
    """The shorter of two runs of each call, in processor time of this thread, which is to be torch's only one.

    Time by the clock would be that of whatever else the machine does.
    """
    return Timed(tuple(_shortest(call, memory_bytes) for call in calls))


def _shortest(call: Call, memory_bytes: int) -> float:
    took: list[float] = []
    try:
        check_call(call, memory_bytes, backward=False)
        ready = drawn(call)
        rebuilt = rebuild(ready)

        def clocked(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            result = rebuilt.function(*args, **kwargs)
            took.append(time.thread_time() - began)
            return result

        rerun = Rerun(ready, replace(rebuilt, function=clocked))
        for _ in range(_RUNS):
            rerun.run(Precision.OWN, backward=False, cast=False)
    except CannotReplay:
        return math.nan
    return min(took, default=math.nan)
