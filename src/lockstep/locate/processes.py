"""Which processes of two trainings were compared, of how many, and how their commands ended."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator

from lockstep.core.finding import RanksCompared
from lockstep.store.rank_names import rank_order
from lockstep.store.reader import Recording

_KILLED_BY = 128
"""What a shell adds to the number of the signal that ended a command."""


def ranks_compared(names: Iterable[str], *recordings: Recording) -> RanksCompared:
    """The ranks that were compared, of those that the two trainings had."""
    manifests = [rank.manifest for recording in recordings for rank in recording.ranks.values()]
    return RanksCompared(
        tuple(sorted({rank_order(name)[0] for name in names})),
        max((manifest.world_size for manifest in manifests), default=0),
    )


def endings(reference: Recording, candidate: Recording) -> Iterator[str]:
    """How the commands ended that did not end well, in a sentence each."""
    for side, recording in (("reference", reference), ("candidate", candidate)):
        code = recording.manifest.exit_code
        if code:
            yield f"the {side}'s command ended with exit code {code}{_signal_of(code)}"
        else:
            by = (rank.manifest.ended_by for rank in recording.ranks.values())
            yield from (f"the {side} was ended by {what}" for what in dict.fromkeys(by) if what)


def _signal_of(code: int) -> str:
    number = code - _KILLED_BY
    return f" ({signal.Signals(number).name})" if number in signal.valid_signals() else ""


__all__ = ["endings", "ranks_compared"]
