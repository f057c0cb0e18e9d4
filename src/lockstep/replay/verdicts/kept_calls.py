"""Calls that were made ready to be run again, kept for as long as their outputs are asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

from lockstep.core.finding import CallPair
from lockstep.replay.calls.refusals import CannotReplay

_KEPT_CALLS = 6
"""Calls whose re-runs are kept in memory: outputs of one call are asked for one after the other."""

_KEPT_ELEMENTS = 1 << 22
"""Elements of their tensors, all together, beyond which only the latest is kept: each is held in double precision too,
some of them several times."""

Kept = TypeVar("Kept")


class KeptCalls:
    """The pairs of calls asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._elements: dict[Any, int] = {}

    def once(self, key: Any, calls: CallPair, make: Callable[[], Kept]) -> Kept:
        """Return the value made for a key of two calls. Raises CannotReplay if it could not be made."""
        if key not in self._kept:
            try:
                self._kept[key] = make()
            except CannotReplay as error:
                self._kept[key] = error
            self._elements[key] = sum(
                record.content.numel
                for call in (calls.reference, calls.candidate)
                if call is not None
                for record in call.records
            )
            self._let_go()
        self._kept.move_to_end(key)
        found = self._kept[key]
        if isinstance(found, CannotReplay):
            raise found
        return found  # type: ignore[no-any-return]

    def _let_go(self) -> None:
        """Forget the calls asked for longest ago, but never the latest."""
        while len(self._kept) > 1 and (
            len(self._kept) > _KEPT_CALLS
            or sum(self._elements[key] for key in self._kept) > _KEPT_ELEMENTS
        ):
            key, _ = self._kept.popitem(last=False)
            del self._elements[key]
