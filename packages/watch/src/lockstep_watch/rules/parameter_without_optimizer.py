"""Parameters that get gradients and that no optimizer updates."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import Call, CallKind, Phase, Role
from lockstep_watch.observed import Hit, ObservedStep, norm_of

_HELD = ("parameter-without-optimizer", "held")
_MOST = 0.5


def parameter_without_optimizer(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """A parameter gets a gradient and belongs to no optimizer, so that it stays as it starts.

    Formula: backward leaves a gradient that is not zero, and no optimizer holds or has updated the parameter. It is
    a note where it may be meant: its module is in eval mode, it belongs to the body of a model of which a head is
    trained alone (more than half of all elements with a gradient are not held), or the loss looks through its
    network (nothing of the outermost module is held, and it comes after all that is held).

    Usual cause: a layer that was made or replaced after the optimizer, a list of modules that is no `ModuleList`, a
    group of parameters that was left out.

    Cure: make the optimizer after your model is complete; freeze parameters that must not learn by
    `requires_grad_(False)`.

    Source: PyTorch's documentation of torch.optim ("Constructing it").
    """
    held: set[str] = step.memory.facts.setdefault(_HELD, set())
    held |= step.held_parameters | {one.name for one in step.updates}
    if step.is_skipped or not held:
        return
    got = {name: record for name, (_, record) in step.gradients.items() if norm_of(record)}
    alone = [
        name
        for name in sorted(got)
        if step.memory.in_a_row("no optimizer", name, name not in held) >= steps
    ]
    if not alone:
        return
    elements = sum(got[name].content.numel for name in alone)
    most = elements > _MOST * sum(record.content.numel for record in got.values())
    uses = _uses(step)
    last_held = max((times[-1] for name, times in uses.items() if name in held), default=-1)
    in_eval = {one.site.module for one in step.calls_of(CallKind.MODULE) if _is_in_eval(one)}
    for name in alone:
        is_after = uses.get(name, [-1])[0] > last_held
        is_among = _is_among(step, name, held)
        meant = (most if is_among else is_after) or name.rpartition(".")[0] in in_eval
        words = f"{name} gets a gradient and belongs to no optimizer"
        yield step.hit(name, words, call=step.gradients[name][0], is_note=meant)


def _uses(step: ObservedStep) -> dict[str, list[int]]:
    """When each parameter goes into a call, by its position in the step."""
    found: dict[str, list[int]] = {}
    for position, call in enumerate(step.calls):
        if call.kind is CallKind.OPERATOR and call.site.phase is Phase.FORWARD:
            for record in call.with_role(Role.INPUT):
                found.setdefault(record.name, []).append(position)
    return found


def _is_in_eval(call: Call) -> bool:
    return call.arguments.get("training") is False


def _is_among(step: ObservedStep, name: str, held: set[str]) -> bool:
    """Whether an optimizer has another parameter of a parameter's outermost module."""
    roots = [call.site.module for call in step.calls_of(CallKind.MODULE) if call.parent < 0]
    owner = _root_of(name, roots)
    return any(_root_of(one, roots) == owner for one in held)


def _root_of(name: str, roots: list[str]) -> str:
    return max((one for one in roots if one and name.startswith(f"{one}.")), key=len, default="")
