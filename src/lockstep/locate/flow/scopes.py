"""The worst tensor seen inside each module call, for where functional code is unseen and nothing better is known."""

from __future__ import annotations

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.site import CallKind, Role
from lockstep.measure.measured_pair import Measured

_LEAVING = frozenset({Role.OUTPUT, Role.GRAD_INPUT, Role.BUFFER})


class Scopes:
    """Gathers the worst tensors of one step."""

    def __init__(self, step: AlignedStep) -> None:
        self._step = step
        self._worst: dict[tuple[int, bool], Measured] = {}

    def around(self, item: Aligned, measured: Measured, *, backward: bool) -> list[Measured]:
        """The worst tensor seen so far inside the same module call, if any."""
        passed_out = (
            item.reference.kind is CallKind.MODULE and measured.pair.present.role in _LEAVING
        )
        scope = item.reference.id if passed_out else item.reference.parent
        worst = self._worst.get((scope, backward))
        return [worst] if worst is not None else []

    def before(self, item: Aligned, *, backward: bool) -> list[Measured]:
        """The worst tensor seen so far beside a call, inside the same module call, if any."""
        worst = self._worst.get((item.reference.parent, backward))
        return [worst] if worst is not None else []

    def widen(self, item: Aligned, measured: Measured) -> None:
        """Take a tensor into account."""
        role, call = measured.pair.present.role, item.reference
        if call.kind is CallKind.GRADIENT or role is Role.PARAM_GRAD:
            return
        scope = call.parent
        if role is Role.INPUT or role is Role.GRAD_OUTPUT:
            if not self._step.is_container(item):
                return
            scope = call.id
        key = (scope, role is Role.GRAD_OUTPUT or role is Role.GRAD_INPUT)
        worst = self._worst.get(key)
        if worst is None or measured.relative > worst.relative:
            self._worst[key] = measured
