"""Calls of one run that left everything as it was in the recorded steps: a difference of set-up, each cause once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.core.remarks import On, Remark
from lockstep.locate.lone_calls.lone_effects import Idiom, LoneEffect, idle_causes
from lockstep.locate.lone_calls.unaligned_calls import called_words, words_for


@dataclass(slots=True)
class IdleCalls:
    """Collects, over the steps of one rank, the calls of one run alone that changed nothing.

    The steps agree, and what one run alone clips may bite in a later one: the headline tells of it.
    """

    remarks: list[Remark] = field(default_factory=list)
    _known: set[tuple[object, ...]] = field(default_factory=set)

    def gather(self, effects: Sequence[LoneEffect]) -> None:
        """Take in one more step."""
        for together in idle_causes(effects):
            first = together[0]
            key = (first.is_candidate, first.idiom or (first.call.site.op, first.call.source))
            if key not in self._known:
                self._known.add(key)
                self.remarks.append(_remark(together))


def _remark(together: Sequence[LoneEffect]) -> Remark:
    acting = next((one for one in together if one.works_on is not None), together[-1])
    return Remark(
        On.CALLS_IDLE,
        side="candidate" if acting.is_candidate else "reference",
        step=acting.call.step,
        names=(acting.call.site.op if acting.idiom is None else acting.idiom.value,),
        at=acting.call.library or acting.call.source,
        reason=_words(together, acting.idiom, is_candidate=acting.is_candidate),
    )


def _words(together: Sequence[LoneEffect], idiom: Idiom | None, *, is_candidate: bool) -> str:
    called = [(one.call.site.op, one.call.library or one.call.source) for one in together]
    if idiom is None:
        return words_for([], called) if is_candidate else words_for(called, [])
    side, other = ("candidate", "reference") if is_candidate else ("reference", "candidate")
    return f"{idiom.value} in the {side}, not in the {other}: {called_words(called)}"


__all__ = ["IdleCalls"]
