"""Find the operator that made the input of a loss."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import Call, CallKind, Role, canonical_name
from lockstep_watch.observed import ObservedStep

OF_CLASSES = {"crossentropy", "crossentropyloss", "nllloss"}
OF_TWO_CLASSES = {
    "binarycrossentropy",
    "bceloss",
    "binarycrossentropywithlogits",
    "bcewithlogitsloss",
}
_KEEPS = {
    "view",
    "reshape",
    "flatten",
    "squeeze",
    "unsqueeze",
    "contiguous",
    "transpose",
    "permute",
    "float",
    "to",
}


def origin_of(step: ObservedStep, content: int) -> int:
    """Follow a tensor back through what only gives it another shape or dtype; gives the content that it began as."""
    made = {
        record.content.id: call
        for call in step.operators
        for record in call.with_role(Role.OUTPUT)
        if call.site.op.rpartition(".")[2].strip("_") in _KEEPS
    }
    for _ in range(len(made)):
        call = made.get(content)
        if call is None or not call.with_role(Role.INPUT):
            break
        content = call.with_role(Role.INPUT)[0].content.id
    return content


def calls_named(step: ObservedStep, *names: str) -> Iterator[Call]:
    """Calls of operators and modules of these canonical names, in order of time."""
    for call in step.calls:
        is_call = call.kind in (CallKind.OPERATOR, CallKind.MODULE)
        if is_call and canonical_name(call.site.op) in names:
            yield call
