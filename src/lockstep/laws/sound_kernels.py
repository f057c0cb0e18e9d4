"""Law K: what a run recorded is what its own program gives in double precision, up to rounding.

The rounding is measured: the program is run a few times more with every result rounded at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.laws import Breach, Law, Quantity
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.laws.distances import distance, size
from lockstep.laws.double_run import Rounding, Run
from lockstep.laws.one_program import SEED
from lockstep.laws.program import Node, NotApplicable
from lockstep.laws.step_sides import Side
from lockstep.replay.calls.optimizer_update import UpdateRerun
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision

DRAWS = 1
"""Runs with rounding at random, beside one in the recorded dtypes by this machine's kernels, which round inside."""
MARGIN = 6.0
"""How many times the largest of so many a sound kernel's error may be: a run with rounding at every operator was 0.9 to
4.4 times the actual error in single precision, and 0.74 to 0.90 in 16 bit, on a 12-layer transformer."""

_CANCELS = 2.0**-10
_ROUNDINGS_ALONE = 64.0
"""A gradient below 2^-10 roundings of the largest one is zero but for rounding: errors that a kernel makes alike in all
elements add up in it, and it may be so many roundings of the largest."""


def kernel_breaches(side: Side, base: Run | None = None) -> Iterator[Breach]:
    """What a run recorded beyond what its own program gives: results in order of time, gradients, updates."""
    base = base or side.double.run(side.own, decided=True)
    generator = torch.Generator().manual_seed(SEED)
    draws = [
        side.double.run(side.own, rounding=Rounding(generator), decided=True) for _ in range(DRAWS)
    ]
    draws.extend(_of_this_machine(side))
    yield from _of_results(side, base, draws)
    yield from _of_gradients(side, base, draws)
    yield from _of_updates(side)


def _of_this_machine(side: Side) -> Iterator[Run]:
    """The program in its recorded dtypes, where this machine has a kernel for each call of it."""
    try:
        yield side.double.run(side.recorded, precision=Precision.OWN, decided=True)
    except NotApplicable:
        return


def _of_results(side: Side, base: Run, draws: Sequence[Run]) -> Iterator[Breach]:
    for operator in side.program.operators:
        for record in operator.call.with_role(Role.OUTPUT, Role.BUFFER):
            node = Node(operator.call.id, record.index)
            truth = base.values[node]
            if not truth.dtype.is_floating_point:
                continue
            found = _beyond(record, truth, [one.values[node] for one in draws], 0.0)
            if found is not None:
                name = f"{record.name} of {operator.call.site}"
                yield _breach(side, Quantity.RESULT, name, found, (operator.call.id,), node)


def _of_gradients(side: Side, base: Run, draws: Sequence[Run]) -> Iterator[Breach]:
    scale = max((size(one) for one in base.gradients.values()), default=0.0)
    wrong = {}
    for name, record in side.program.gradients.items():
        truth = base.gradients.get(name)
        if truth is None:
            truth = torch.zeros(record.shape, dtype=torch.float64)
        moved = [one.gradients.get(name, truth) for one in draws]
        found = _beyond(record, truth, moved, scale)
        if found is not None:
            wrong[name] = found
    if wrong:
        node = _first_wrong_gradient(side)
        calls = () if node is None else tuple(_takers(side, node))
        yield from (
            _breach(side, Quantity.GRADIENT, name, found, calls, node)
            for name, found in wrong.items()
        )


def _first_wrong_gradient(side: Side) -> Node | None:
    """The last result in time at which another gradient arrived than its own program sends; None if none did."""
    generator = torch.Generator().manual_seed(SEED)
    base = side.double.run(side.own, decided=True, keep_gradients=True)
    rounding = Rounding(generator)
    draw = side.double.run(side.own, rounding=rounding, decided=True, keep_gradients=True)
    for operator in reversed(list(side.program.operators)):
        for record in operator.call.with_role(Role.OUTPUT):
            arrived = [
                one
                for one in operator.call.with_role(Role.GRAD_OUTPUT)
                if one.index == record.index
            ]
            node = Node(operator.call.id, record.index)
            truth, moved = base.gradient_at(node), draw.gradient_at(node)
            if not arrived or truth is None or moved is None:
                continue
            actual = torch.stack([widened(load(one)) for one in arrived]).sum(0)
            noise = max(unit_roundoff(arrived[0].dtype) * size(truth), distance(moved, truth))
            if distance(actual, truth) > MARGIN * noise:
                return node
    return None


def _takers(side: Side, node: Node) -> Iterator[int]:
    for operator in side.program.operators:
        if any(taken.link == node for taken in operator.taken.values()):
            yield operator.call.id


def _of_updates(side: Side) -> Iterator[Breach]:
    """Updates of optimizers of the script's own classes; the judge of pairs runs those of torch again itself."""
    for update in side.program.updates:
        if update.call.site.op not in side.classes:
            continue
        try:
            again = UpdateRerun(update.call, side.classes.get(update.call.site.op))
            for record in update.call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER):
                if not unit_roundoff(record.dtype):
                    continue
                local = again.local(record)
                if not local.sound:
                    share = again.share_of_update(local.error.norm)
                    calls = (update.call.id,)
                    found = (share, local.tolerance / max(local.norm, 1e-300))
                    yield _breach(side, Quantity.UPDATE, record.name, found, calls)
        except CannotReplay:
            continue  # which law P says


def _beyond(
    record: TensorRecord, truth: torch.Tensor, moved: Sequence[torch.Tensor], scale: float
) -> tuple[float, float] | None:
    """Distance and what is allowed, relative, where a recorded tensor is further off than rounding takes it."""
    actual = widened(load(record))
    unit = unit_roundoff(record.dtype)
    norm = size(truth)
    noise = max([unit * norm, *(distance(one, truth) for one in moved)])
    apart = distance(actual, truth)
    allowed = MARGIN * noise
    if norm <= _CANCELS * unit * scale:
        allowed = max(allowed, _ROUNDINGS_ALONE * unit * scale)
    if not apart > allowed:
        return None
    return (apart / norm if norm > 0 else apart), (allowed / norm if norm > 0 else allowed)


def _breach(
    side: Side,
    quantity: Quantity,
    name: str,
    found: tuple[float, float],
    calls: tuple[int, ...] = (),
    at: Node | None = None,
) -> Breach:
    place = () if at is None else (at.call, at.index)
    of_reference = side.run == "reference"
    return Breach(
        Law.KERNELS,
        quantity,
        side.run,
        name if quantity is Quantity.RESULT else side.renamed(name),
        *found,
        reference_at=place if of_reference else (),
        candidate_at=() if of_reference else place,
        reference_calls=calls if of_reference else (),
        candidate_calls=() if of_reference else calls,
    )
