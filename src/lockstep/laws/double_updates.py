"""The updates of a step in double precision: what each optimizer makes of given numbers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import BY_HAND
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.double_run import Given, Run
from lockstep.laws.step_events import Enters, Node, Source, StepProgram, Update
from lockstep.replay.calls.optimizer_update import KERNELS, UpdateRerun, classes_like
from lockstep.replay.calls.refusals import CannotReplay

Classes = Mapping[str, type[torch.optim.Optimizer] | None]
"""By recorded name of an optimizer: the class of `torch.optim` to run it as; None for that of its name."""


Kind = type[torch.optim.Optimizer]
OffBy = Callable[[Update, Kind], float | None]
"""How far a recorded update is off what a class gives, over how far it moves: 0 where rounding explains it, None where
nothing tells."""


def classes_of(program: StepProgram, off_by: OffBy, others: Mapping[str, Update]) -> Classes:
    """As which classes the optimizers of a step are run again.

    One whose class is the script's own is run as a class with the same hyper-parameters, where that gives more than
    half of the recorded updates that tell it: then it is this class, and what it does otherwise elsewhere is to be
    explained. Else it is run as what updates the same parameters in the other run: two runs agree if what either
    optimizer does is what the other does on these numbers.

    others: The other run's updates, by this one's names.
    """
    found: dict[str, Kind | None] = {}
    for op in dict.fromkeys(one.call.site.op for one in program.updates):
        if op.startswith("torch.optim.") or op == BY_HAND:
            continue
        own = [one for one in program.updates if one.call.site.op == op]
        for kind in classes_like(own[0].call):
            told = [one == 0 for one in (off_by(each, kind) for each in own) if one is not None]
            if 2 * sum(told) > len(told):
                found[op] = kind
        other = None if op in found else _class_of_other(own, others)
        if other is not None and not any(_is_spelling(off_by(one, other)) for one in own):
            found[op] = other
    return found


def _class_of_other(own: Sequence[Update], others: Mapping[str, Update]) -> Kind | None:
    """The class of `torch.optim` that updates these parameters in the other run, with equal settings and states."""
    kinds = set()
    for one in own:
        other = others.get(one.name)
        if other is None or states_of(one).keys() != states_of(other).keys():
            return None
        try:
            theirs = UpdateRerun(other.call)
            ours = UpdateRerun(one.call, theirs.kind)
        except CannotReplay:
            return None
        if _chosen(theirs) != _chosen(ours):
            return None
        kinds.add(theirs.kind)
    return kinds.pop() if len(kinds) == 1 else None


def _chosen(of: UpdateRerun) -> dict[str, Any]:
    """All hyper-parameters of an update's class, those too that were left as they are by default."""
    known = inspect.signature(of.kind).parameters.values()
    return {one.name: one.default for one in known if one.name not in KERNELS} | of.settings()


def _is_spelling(off: float | None) -> bool:
    """Whether an update may be what a class gives, written so that it rounds otherwise."""
    return off is not None and 0 < off <= SPELLED


SPELLED = 1e-3
"""Share of an update up to which it may be that of a class."""


def off_what_is_made(call: Call, kind: Kind) -> float | None:
    """How far a recorded update is off what a class of torch.optim gives, of which all is whole; as `OffBy` has it."""
    try:
        again = UpdateRerun(call, kind)
        (record,) = call.with_role(Role.PARAM_AFTER)
        local, of_move = again.local(record), again.share_of_update(1.0)
    except (CannotReplay, ValueError):
        return math.inf
    if not local.sound:
        return again.share_of_update(local.error.norm)
    return 0.0 if 1.0 / of_move > ROUNDINGS * unit_roundoff(record.dtype) * local.norm else None


ROUNDINGS = 4.0
"""Roundings of a parameter up to which nothing tells what has moved it: any class may have."""


@dataclass(frozen=True, slots=True)
class Updated:
    """A parameter and its states, "param" and the optimizer's names, before and after an update.

    `gradient` is what the update took; None for an update by hand, whose program takes it.
    """

    before: torch.Tensor
    after: Mapping[str, torch.Tensor]
    gradient: torch.Tensor | None = None


def states_of(update: Update) -> dict[str, TensorRecord]:
    """The states that enter an update, by the optimizer's name."""
    return {UpdateRerun.key_of(one): one for one in update.call.with_role(Role.STATE)}


def updated(
    update: Update,
    program: StepProgram,
    run: Run,
    given: Given,
    gradient: torch.Tensor | None,
    states: Mapping[str, torch.Tensor],
    classes: Classes,
) -> Updated:
    """What an update makes in double precision.

    run: A run of the program: calls before the update may have changed the parameter.
    given: What entered that run.
    gradient: The gradient; None for one that is zero throughout.
    states: The optimizer's, as they enter.
    classes: As `classes_of` gives them.

    Raises CannotReplay if its optimizer cannot be run again.
    """
    start, parameter = _parameter(update, program, run, given)
    if update.made is not None:
        results = {"param": update.made, **update.kept}
        return Updated(start, {key: run.values[node].detach() for key, node in results.items()})
    entering = dict(states)
    entering["param"] = parameter
    entering["grad"] = torch.zeros_like(parameter) if gradient is None else gradient
    if entering["grad"].shape != parameter.shape:
        raise CannotReplay("its gradient has another shape")
    made = UpdateRerun(update.call, classes.get(update.call.site.op)).made_of(entering)
    return Updated(start, made, entering["grad"])


def _parameter(
    update: Update, program: StepProgram, run: Run, given: Given
) -> tuple[torch.Tensor, torch.Tensor]:
    """The parameter as the step took it, and as the update takes it."""
    link, record = update.parameter.link, update.parameter.record
    name = record.name
    first = Source(Enters.NAMED, name)
    seen = program.sources.get(first, record)
    start = given(first, seen).detach()
    if isinstance(link, Node):
        return start, run.values[link].detach()
    return start, given(link, program.sources.get(link, record)).detach()
