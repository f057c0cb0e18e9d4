"""Calls that the script made with other settings: said once for all places, the settings first."""

from __future__ import annotations

from dataclasses import replace

from lockstep.align.settings import chosen_otherwise
from lockstep.core.finding import Kind, Origin
from lockstep.core.operators import agreed_name
from lockstep.core.site import CallKind, Phase
from lockstep.locate.step_origins import StepOrigins
from lockstep.locate.words import listed


class SettingCauses(StepOrigins):
    """Names the settings behind origins of one step that no other cause has been found for."""

    __slots__ = ()

    def run(self) -> None:
        """Put the settings in front."""
        self.each(self._named)

    def _named(self, origin: Origin) -> Origin:
        item = self.item_of(origin)
        named_elsewhere = origin.reason != origin.finding.reason
        if origin.kind is not Kind.SETUP or origin.phase is Phase.OPTIMIZER:
            return origin
        if item is None or named_elsewhere:
            return origin
        words = chosen_otherwise(item.reference, item.candidate)
        if not words:
            return origin
        numbers = [one for one in origin.reason.split("; ") if one not in words]
        where = self._where(origin.op, words)
        at = f" at {listed(where)}" if len(where) > 1 else ""
        return replace(origin, reason="; ".join([f"{'; '.join(words)}{at}", *numbers]))

    def _where(self, op: str, words: list[str]) -> list[str]:
        """Modules in which an operator is called with these settings otherwise."""
        found = (
            item.reference.site.module or "the model"
            for item in self.step.of_kind(CallKind.OPERATOR, CallKind.MODULE)
            if agreed_name(item.reference.site.op, item.candidate.site.op) == op
            and chosen_otherwise(item.reference, item.candidate) == words
        )
        return list(dict.fromkeys(found))
