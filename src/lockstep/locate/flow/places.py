"""Name the place of a fault in the model: a call, or the calls without partner before it."""

from __future__ import annotations

from dataclasses import replace

from lockstep.align.step import Aligned, AlignedStep, common_path
from lockstep.core.finding import Pair
from lockstep.core.operators import agreed_name
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase, Role
from lockstep.locate.flow.boundary import Boundary
from lockstep.locate.flow.origins import Place, place_of


class Places:
    """Names places in one aligned step."""

    def __init__(self, step: AlignedStep) -> None:
        self._step = step

    def of(self, item: Aligned, pair: Pair) -> Place:
        """The place of one record of an aligned call."""
        return place_of(item, pair, self._step.module_classes)

    def of_region(self, item: Aligned, pair: Pair, boundary: Boundary, phase: Phase) -> Place:
        """Where calls without partner lie; without any, the module around the call."""
        left, right = (
            list(boundary.reference_calls.values()),
            list(boundary.candidate_calls.values()),
        )
        classes = self._step.module_classes
        if not left and not right:
            return self._around(item, pair, phase)
        path = common_path(
            [
                self._step.path_of(call, is_candidate=is_candidate)
                for is_candidate, calls in ((False, left), (True, right))
                for call in calls
            ]
        )
        alone = len(left) + len(right) == 1
        single = [side[0] for side in (left, right) if len(side) == 1]
        single = single if alone or (left and right) else []
        op = agreed_name(single[0].site.op, single[-1].site.op) if single else ""
        return replace(
            self.of(item, pair),
            module=path,
            module_class=classes.get(path, ""),
            op=op or classes.get(path, item.reference.site.op),
            call=single[0].site.call if single else 0,
            source=_last(right or left).source,
            role=Role.OUTPUT if phase is Phase.FORWARD else pair.present.role,
            index=0 if phase is Phase.FORWARD else pair.present.index,
        )

    def _around(self, item: Aligned, pair: Pair, phase: Phase) -> Place:
        if phase is Phase.FORWARD:
            return self.of(item, pair)
        classes = self._step.module_classes
        outer = self._outer_path(item)
        return replace(
            self.of(item, pair),
            module=outer,
            module_class=classes.get(outer, ""),
            op=classes.get(outer, item.reference.site.op),
            call=0,
        )

    def _outer_path(self, item: Aligned) -> str:
        if item.reference.kind is CallKind.OPERATOR:
            return item.reference.site.module
        parent = self._step.reference.calls.get(item.reference.parent)
        return parent.site.module if parent is not None else ""


def _last(calls: list[Call]) -> Call:
    return max(calls, key=lambda call: call.sequence)
