"""Law K: what a run recorded is what its own program gives in double precision, up to rounding.

The rounding is measured: the program is run a few times more with every result rounded at random.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.laws import Breach, Law, Quantity
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Phase, Role
from lockstep.laws.distances import distance, size
from lockstep.laws.double_run import FEW_NUMBERS, Run
from lockstep.laws.draws import not_written
from lockstep.laws.exchanges import NAME, OUT_OF_SIGHT, REDUCTION, leaves_open
from lockstep.laws.moved_by_updates import furthest, moves_otherwise
from lockstep.laws.one_program import SEED
from lockstep.laws.own_runs import CANCELS, MARGIN, ROUNDINGS_ALONE, OwnRuns
from lockstep.laws.random_rounding import Rounding
from lockstep.laws.rank_prefixes import with_rank
from lockstep.laws.sampled_updates import sample_of_update
from lockstep.laws.sound_decisions import decided_otherwise
from lockstep.laws.step_events import RESULTS, Node, Update
from lockstep.laws.step_sides import Side
from lockstep.replay.calls.optimizer_update import UpdateRerun, is_by_element
from lockstep.replay.calls.refusals import CannotReplay

RARE_DRAW = 16.0
"""How far beyond what is allowed the error of one number may be and still be noise that three runs have missed: all of
three errors are below a hundredth of another one in one case of a million (normal distribution)."""


@dataclass(frozen=True)
class Kernels:
    """What law K finds in one run.

    breaches: What it recorded beyond what its own program gives: results in order of time, gradients, updates. An
        update after a gradient that is itself wrong is not told.
    made_again: Parameters, by the reference's names, of which the whole update is what its gradient and states make.
    """

    breaches: list[Breach]
    made_again: frozenset[str]


def kernels(side: Side, runs: OwnRuns, *, with_places: bool) -> Kernels:
    """Hold a run against its own program; `with_places` tells of room to find where a gradient went wrong."""
    breaches, made_again = [*_of_results(side, runs), *_of_decisions(side, runs)], set[str]()
    gradients = list(_of_gradients(side, runs, with_places))
    wrong = {one.name for one in gradients}
    breaches += [*gradients, *_of_updates(side, runs, wrong, made_again)]
    return Kernels(breaches, frozenset(made_again))


def _of_results(side: Side, runs: OwnRuns) -> Iterator[Breach]:
    base = runs.exact.run
    written_in_part = _written_in_part(side, base)
    for operator in side.program.operators:
        if leaves_open(operator.call) or _is_within_update(operator.call):
            continue
        for record in operator.call.with_role(Role.OUTPUT, Role.BUFFER):
            node = Node(operator.call.id, record.index)
            truth = base.values[node]
            if not truth.dtype.is_floating_point or node in written_in_part:
                continue
            found = _beyond(side, record, truth, [one.off[node] for one in runs.moved])
            if _may_be_a_rare_draw(found, truth):
                moved = [one.off[node] for one in runs.moved]
                moved += [one.off[node] for one in runs.more.runs]
                found = _beyond(side, record, truth, moved)
            if found is not None and operator.call.site.op in OUT_OF_SIGHT:
                reduced = operator.call.site.op == REDUCTION
                quantity = Quantity.CLIPPED if reduced else Quantity.PARAMETER
                name = with_rank(operator.call.arguments[NAME], operator.call.rank)
                yield _breach(side, quantity, name, found)
            elif found is not None:
                name = f"{record.name} of {operator.call.site}"
                yield _breach(side, Quantity.RESULT, name, found, (operator.call.id,), node)


def _of_decisions(side: Side, runs: OwnRuns) -> Iterator[Breach]:
    for one in decided_otherwise(side, runs):
        node = Node(one.operator.call.id, one.record.index)
        name, share = f"{one.record.name} of {one.operator.call.site}", one.wrong / one.total
        found = _breach(side, Quantity.RESULT, name, (share, 0.0), (node.call,), node)
        words = (
            f"{one.wrong} of {one.total} decisions of the {side.run} are not those of its own program in double"
            " precision, further from a tie than rounding explains"
        )
        yield replace(found, words=words)


def _may_be_a_rare_draw(found: tuple[float, float] | None, truth: torch.Tensor) -> bool:
    """Whether the noise of few numbers may only look small, as all runs so far took them nearly nowhere."""
    return found is not None and truth.numel() < FEW_NUMBERS and found[0] <= RARE_DRAW * found[1]


def _is_within_update(call: Call) -> bool:
    """Whether an optimizer makes it on the way: that is judged by what its updates leave."""
    return call.site.phase is Phase.OPTIMIZER and call.site.op not in OUT_OF_SIGHT


def _written_in_part(side: Side, base: Run) -> set[Node]:
    """Results with elements that no call has written yet: what was recorded of these means nothing."""
    follows: set[Node] = set()
    for operator in side.program.operators:
        taken = {one.link for one in operator.taken.values()}
        if not_written(operator.call) or taken & follows:
            records = operator.call.with_role(*RESULTS)
            follows |= {Node(operator.call.id, one.index) for one in records}
    return {node for node in follows if bool(base.values[node].isnan().any())}


def _of_gradients(side: Side, runs: OwnRuns, with_places: bool) -> Iterator[Breach]:
    base, draws = runs.exact.run, [one.run for one in runs.moved]
    scale = max((size(one) for one in base.gradients.values()), default=0.0)
    wrong = {}
    for name, record in side.program.used_gradients.items():
        truth = base.gradients.get(name)
        if truth is None:
            truth = torch.zeros(record.shape, dtype=torch.float64)
        moved = [distance(one.gradients.get(name, truth), truth) for one in draws]
        found = _beyond(side, record, truth, moved, scale)
        if _may_be_a_rare_draw(found, truth):
            moved += [one.gradients.get(name, 0.0) for one in runs.more.runs]
            found = _beyond(side, record, truth, moved, scale)
        if found is not None:
            wrong[name] = found
    if wrong:
        node = _first_wrong_gradient(side) if with_places else None
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
            apart = side.numbers.apart(arrived, truth)
            noise = max(unit_roundoff(arrived[0].dtype) * size(truth), distance(moved, truth))
            if apart.distance > apart.allowed(MARGIN * noise):
                return node
    return None


def _takers(side: Side, node: Node) -> Iterator[int]:
    for operator in side.program.operators:
        if any(taken.link == node for taken in operator.taken.values()):
            yield operator.call.id


def _of_updates(
    side: Side, runs: OwnRuns, wrong: Collection[str], made_again: set[str]
) -> Iterator[Breach]:
    """Updates of optimizers of the script's own classes, and those that are known by sketches.

    The judge of pairs runs updates by classes of torch again itself, where they were saved whole.
    """
    for update in side.program.updates:
        if side.is_sketched:
            if side.renamed(update.name) not in wrong:
                yield from _of_update_in_noise(side, update, runs, made_again)
        elif update.call.site.op in side.classes:
            yield from _of_whole_update(side, update.call)


def _of_update_in_noise(
    side: Side, update: Update, runs: OwnRuns, made_again: set[str]
) -> Iterator[Breach]:
    """An update that is not whole: on the gradient that the run itself had where that is known, else within noise.

    The noise of a gradient that is rounding alone may move its parameter anywhere: few elements further than any run
    with noise does, and a lost update is excused.
    """
    known = side.numbers.known_whole(update.call)
    try:
        found = None if known is None else list(_made_again(side, known))
        sampled = [] if known is not None else list(_of_sample(side, update))
    except CannotReplay:
        found, sampled = None, []
    if found == []:
        made_again.add(side.renamed(update.name))
    if sampled:
        yield from sampled
        return
    yield from _of_sketched_update(side, update, runs) if found is None else found


def _of_sample(side: Side, update: Update) -> Iterator[Breach]:
    """What of an update's sampled elements is off what they give run again, where each is updated by itself."""
    kind = side.classes.get(update.call.site.op)
    sample = sample_of_update(update.call)
    if sample is None or not is_by_element(sample, kind):
        return
    known = side.numbers.known_whole(sample)
    if known is not None:
        yield from _made_again(side, known)


def _of_sketched_update(side: Side, update: Update, runs: OwnRuns) -> Iterator[Breach]:
    """What an update left, beside what its own program's gradient makes it leave."""
    made = runs.exact.updates.get(update.call.id)
    draws = [one.updates[update.call.id] for one in runs.moved if update.call.id in one.updates]
    if made is None:
        return
    moved = size(made.after["param"] - made.before)
    for record in update.call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER):
        key = UpdateRerun.key_of(record)
        truth = made.after.get(key)
        if truth is None or not unit_roundoff(record.dtype):
            continue
        is_moved = key == "param" and made.gradient is not None
        if is_moved:
            off = [one / MARGIN for one in furthest(made, draws)]
        else:
            off = [distance(one.after[key], truth) for one in draws]
        found = _beyond(side, record, truth, off)
        if is_moved and found is None:
            rounded = [one.updates.get(update.call.id) for one in runs.draws]
            sound = [one for one in rounded if one is not None]
            otherwise = moves_otherwise(side.numbers, update, sound, draws)
            if otherwise is not None:
                yield _breach(side, Quantity.UPDATE, record.name, otherwise, (update.call.id,))
        if found is not None:
            of = size(truth) / moved if key == "param" and moved > 0 else 1.0
            share = found[0] * of, found[1] * of
            yield _breach(side, Quantity.UPDATE, record.name, share, (update.call.id,))


def _of_whole_update(side: Side, call: Call) -> Iterator[Breach]:
    try:
        yield from _made_again(side, call)
    except CannotReplay:
        return  # which law P says


def _made_again(side: Side, call: Call) -> Iterator[Breach]:
    """What of a whole update is off what it gives run again; raises `CannotReplay`."""
    again = UpdateRerun(call, side.classes.get(call.site.op))
    for record in call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER):
        if not unit_roundoff(record.dtype):
            continue
        local = again.local(record)
        if not local.sound:
            share = again.share_of_update(local.error.norm)
            found = (share, local.tolerance / max(local.norm, 1e-300))
            yield _breach(side, Quantity.UPDATE, record.name, found, (call.id,))


def _beyond(
    side: Side,
    record: TensorRecord,
    truth: torch.Tensor,
    moved: Sequence[float],
    scale: float = 0.0,
) -> tuple[float, float] | None:
    """Distance and what is allowed, relative, where a recorded tensor is further off than rounding takes it.

    `moved` is how far the runs with rounding are off.

    Of a sketch, the distance is an estimate: what is allowed is wider by as much as that may be too large, see
    `lockstep.laws.own_numbers`. The noise is that of whole tensors.
    """
    unit = unit_roundoff(record.dtype)
    norm = size(truth)
    noise = max([unit * norm, *moved])
    allowed = MARGIN * noise
    if norm <= CANCELS * unit * scale:
        allowed = max(allowed, ROUNDINGS_ALONE * unit * scale)
    apart = side.numbers.apart([record], truth)
    allowed = apart.allowed(allowed)
    if not apart.distance > allowed:
        return None
    found = apart.distance, allowed
    return (found[0] / norm, found[1] / norm) if norm > 0 else found


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
