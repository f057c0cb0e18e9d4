"""The operators that a script itself calls on the gradient of one parameter: an all-reduce, a division, a clamp.

A loop over the parameters may take them in any order, and share them out over ranks: the parameter tells which call is
which, where their order tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role


def parameters_by_call(calls: Sequence[Call]) -> dict[int, str]:
    """Return the name of the parameter whose gradient, and no other tensor, a call takes, by the call's id.

    Told by contents: one that is the gradient of several parameters, as zeros may be, tells nothing.
    """
    of: dict[int, str] = {}
    found: dict[int, str] = {}
    for call in calls:
        given, made = call.with_role(Role.INPUT), call.with_role(Role.OUTPUT)
        if call.kind is CallKind.GRADIENT:
            for record in call.with_role(Role.PARAM_GRAD):
                _tell(of, record.content.id, record.name)
        elif call.kind is CallKind.OPERATOR and call.parent == -1 and len(given) == 1:
            name = of.get(given[0].content.id, "")
            if name:
                found[call.id] = name
                for record in made:
                    if record.shape == given[0].shape:  # it is the gradient still
                        _tell(of, record.content.id, name)
    return found


def _tell(of: dict[int, str], content: int, name: str) -> None:
    of[content] = name if of.get(content, name) == name else ""


__all__ = ["parameters_by_call"]
