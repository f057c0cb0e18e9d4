"""The windows of a recording whose states can be set in another training."""

from __future__ import annotations

from lockstep.core.errors import UsageError
from lockstep.core.windows import Windows
from lockstep.store.reader import Recording
from lockstep.store.window_states import read_state, state_steps


def kept_windows(reference: Recording) -> Windows:
    """Return the windows of which every rank has recorded steps and kept the state, after checking each file.

    Raises
    ------
    UsageError
        If there are none.
    CorruptError
        If a file of a state is missing, cut or changed.
    """
    ranks = list(reference.ranks.values())
    kept = [set(state_steps(rank.path)) & set(rank.complete_steps) for rank in ranks]
    starts = sorted(set.intersection(*kept)) if kept else []
    if not starts:
        raise UsageError(
            f"{reference.path}: keeps no state at the start of a recorded step; record it with --windows"
        )
    for rank in ranks:
        for step in starts:
            read_state(rank.path, step).check()
    steps = set.intersection(*(set(rank.complete_steps) for rank in ranks))
    return Windows.of(starts, steps)
