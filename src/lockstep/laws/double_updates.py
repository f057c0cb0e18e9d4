"""The updates of a step in double precision: what each optimizer makes of given numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from lockstep.core.operators import BY_HAND
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.laws.double_run import Given, Run
from lockstep.laws.step_events import Enters, Node, Source, StepProgram, Update
from lockstep.replay.calls.optimizer_update import UpdateRerun, classes_like
from lockstep.replay.calls.refusals import CannotReplay

Classes = Mapping[str, type[torch.optim.Optimizer] | None]
"""By recorded name of an optimizer: the class of `torch.optim` to run it as; None for that of its name."""


def classes_of(
    program: StepProgram, made_by: Callable[[Update, type[torch.optim.Optimizer]], bool]
) -> Classes:
    """As which classes the optimizers of a step are run again.

    One whose class is the script's own is run as a class with the same hyper-parameters, where that gives more than
    half of its recorded updates: then it is this class, and what it does otherwise elsewhere is to be explained.
    """
    found: dict[str, type[torch.optim.Optimizer] | None] = {}
    for op in dict.fromkeys(one.call.site.op for one in program.updates):
        if op.startswith("torch.optim.") or op == BY_HAND:
            continue
        own = [one for one in program.updates if one.call.site.op == op]
        for kind in classes_like(own[0].call):
            if 2 * sum(made_by(one, kind) for one in own) > len(own):
                found[op] = kind
    return found


def is_made_by(update: Update, kind: type[torch.optim.Optimizer]) -> bool:
    """Whether a class of torch.optim gives a recorded update, of which all was saved whole."""
    try:
        again = UpdateRerun(update.call, kind)
        return all(again.local(one).sound for one in update.call.with_role(Role.PARAM_AFTER))
    except CannotReplay:
        return False


@dataclass(frozen=True, slots=True)
class Updated:
    """A parameter and its states, "param" and the optimizer's names, before and after an update."""

    before: torch.Tensor
    after: Mapping[str, torch.Tensor]


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

    Parameters
    ----------
    run
        A run of the program: calls before the update may have changed the parameter.
    given
        What entered that run.
    gradient
        The gradient; None for one that is zero throughout.
    states
        The optimizer's, as they enter.
    classes
        As `classes_of` gives them.

    Raises
    ------
    CannotReplay
        If its optimizer cannot be run again.
    """
    start, parameter = _parameter(update, program, run, given)
    if update.made is not None:
        return Updated(start, {"param": run.values[update.made].detach()})
    entering = dict(states)
    entering["param"] = parameter
    entering["grad"] = torch.zeros_like(parameter) if gradient is None else gradient
    if entering["grad"].shape != parameter.shape:
        raise CannotReplay("its gradient has another shape")
    made = UpdateRerun(update.call, classes.get(update.call.site.op)).made_of(entering)
    return Updated(start, made)


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
