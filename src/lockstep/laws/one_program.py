"""Law P: both programs give the same losses, gradients, buffers and updates on the same numbers in double precision."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch

from lockstep.core.laws import Quantity
from lockstep.laws.arrangement import in_order, in_row, starts_in_row
from lockstep.laws.distances import distance, relative, size
from lockstep.laws.double_run import Run
from lockstep.laws.double_updates import Updated, states_of, updated
from lockstep.laws.program_memory import ALL_AT_ONCE, BOTH_AT_ONCE
from lockstep.laws.random_rounding import Rounding
from lockstep.laws.step_events import Update
from lockstep.laws.step_sides import CommonNumbers, Side
from lockstep.replay.calls.recorded_tensors import widened
from lockstep.replay.calls.refusals import CannotReplay

EXACT = 1e-9
"""Relative distance up to which two spellings of one function agree in double precision; beyond it the condition of the
program is measured."""

_PERTURBED = 2.0**-40
_ROUNDOFF = 2.0**-53
_CONDITION_MARGIN = 64.0
"""How far double precision's own rounding may take a result: what errors of 2^-40 at every result do to it, scaled down
to 2^-53, with a margin for sums of many terms."""

_CONSTANT_MARGIN = 6.0
"""How many times what rounding a constant at random does to a result a real rounding may do."""

SEED = 20261128


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity in which the two programs differ."""

    quantity: Quantity
    name: str
    distance: float
    allowed: float


@dataclass
class TwoRuns:
    """Both programs run on the same numbers.

    left, right: The reference's and the candidate's run. Their results are kept where there is room, and the
        reference's where they are those of its own step, which law K takes.

    room: Of how many runs the results fit into memory.
    same: Whether the two are one program on the same numbers: then it is run once.
    decided: Whether indices and masks are those that were recorded, which are the same in both runs. Python may have
        made sizes of them, which stand in the program. Else each program decides by the numbers that it is run on.
    """

    numbers: CommonNumbers
    room: float = math.inf
    same: bool = False
    decided: bool = False
    not_judged: list[str] = field(default_factory=list)

    @property
    def reference(self) -> Side:
        """The reference's side."""
        return self.numbers.reference

    @property
    def candidate(self) -> Side:
        """The candidate's side."""
        return self.numbers.candidate

    @cached_property
    def left(self) -> Run:
        """The reference's run."""
        keep = self.is_roomy or self.numbers.are_references_own
        given = self.numbers.given_to_reference
        instead = self.numbers.given_results("reference")
        return self.reference.double.run(given, instead=instead, decided=self.decided, keep=keep)

    @cached_property
    def right(self) -> Run:
        """The candidate's run."""
        if self.same:
            return self.left
        given, keep = self.numbers.given, self.is_roomy
        instead = self.numbers.given_results("candidate")
        return self.candidate.double.run(given, instead=instead, decided=self.decided, keep=keep)

    @property
    def is_roomy(self) -> bool:
        """Whether the results of both runs can be kept while others are made."""
        return self.room >= ALL_AT_ONCE

    def with_results(self) -> TwoRuns | None:
        """The same with the results of both; None where there is no room for them."""
        if self.is_roomy:
            return self
        fits = self.room >= BOTH_AT_ONCE
        return TwoRuns(self.numbers, decided=self.decided) if fits else None

    def differences(self) -> list[Difference]:
        """What the two give differently, beyond what double precision and rounded constants may do."""
        if self.same:
            return []
        apart = _quantities(self, self.left, self.right)
        if not _beyond(apart, {}):
            return []
        found = _beyond(apart, self._conditioned())
        losses_alone = all(one.quantity is Quantity.LOSS for one in found)
        return [] if losses_alone and _is_multiple(self.left, self.right) else found

    def _conditioned(self) -> dict[tuple[Quantity, str], float]:
        """What is allowed of each quantity, measured."""
        allowed: dict[tuple[Quantity, str], float] = {}
        generator = torch.Generator().manual_seed(SEED)
        for side, run, given in (
            (self.reference, self.left, self.numbers.given_to_reference),
            (self.candidate, self.right, self.numbers.given),
        ):
            instead = self.numbers.given_results(side.run)
            again = partial(side.double.run, instead=instead, decided=self.decided, keep=False)
            moved = again(given, rounding=Rounding(generator, at_most=_PERTURBED))
            for key, apart in _moved(side, run, moved).items():
                scaled = apart * _ROUNDOFF / _PERTURBED * _CONDITION_MARGIN
                allowed[key] = max(allowed.get(key, EXACT), scaled)
            if self.numbers.lone[side.run]:
                entering = self.numbers.shaken(side.run, generator)
                shaken = again(entering)
                for key, apart in _moved(side, run, shaken).items():
                    allowed[key] = allowed.get(key, EXACT) + _CONSTANT_MARGIN * apart
        return allowed


Key = tuple[Quantity, str]


def _beyond(found: Mapping[Key, float], allowed: Mapping[Key, float]) -> list[Difference]:
    known = dict(allowed)
    for (quantity, name), most in allowed.items():
        if quantity is Quantity.GRADIENT:
            known[Quantity.CLIPPED, name] = most
    return [
        Difference(*key, apart, known.get(key, EXACT))
        for key, apart in found.items()
        if apart > known.get(key, EXACT)
    ]


def _moved(side: Side, run: Run, other: Run) -> dict[Key, float]:
    """How far a second run of one program is from its first, by quantity."""
    found: dict[Key, float] = {}
    for place, (one, two) in enumerate(zip(run.losses, other.losses, strict=True)):
        found[Quantity.LOSS, str(place)] = relative(one, two)
    scale = _largest(run.entering)
    for name, gradient in run.entering.items():
        found[Quantity.GRADIENT, side.renamed(name)] = _apart(gradient, other.entering[name], scale)
    for name, node in side.program.buffers.items():
        found[Quantity.BUFFER, side.renamed(name)] = relative(run.values[node], other.values[node])
    return found


def _quantities(of: TwoRuns, left: Run, right: Run) -> dict[Key, float]:
    """How far apart the two runs are in each quantity, relative."""
    found: dict[Key, float] = {}
    candidate = of.candidate
    scale = max(_largest(left.entering), _largest(right.entering))
    ours = {candidate.renamed(name): one for name, one in right.entering.items()}
    theirs = left.entering
    behind = {candidate.renamed(name): one for name, one in right.gradients.items()}
    for name in sorted(theirs.keys() & ours.keys()):
        if of.numbers.is_one(name, theirs[name], ours[name]):
            apart = _apart(theirs[name], ours[name], scale)
            one, two = left.gradients.get(name), behind.get(name)
            equal = one is not None and two is not None and _apart(one, two, scale) <= EXACT
            found[Quantity.CLIPPED if equal else Quantity.GRADIENT, name] = apart
    lone = _lone_gradients(of, theirs, ours)
    if lone is not None:
        found[Quantity.GRADIENT, ", ".join(lone[0])] = lone[1]
    found |= _losses(left, right)
    buffers = {candidate.renamed(key): one for key, one in candidate.program.buffers.items()}
    for name, node in of.reference.program.buffers.items():
        other = buffers.get(name)
        if other is not None:
            found[Quantity.BUFFER, name] = relative(left.values[node], right.values[other])
    return found


def _losses(left: Run, right: Run) -> dict[Key, float]:
    """Losses by order; where one run begins at other multiples of them, by their sum's factor alone."""
    if len(left.losses) != len(right.losses):
        return {}
    return {
        (Quantity.LOSS, str(place)): relative(one, two)
        for place, (one, two) in enumerate(zip(left.losses, right.losses, strict=True))
    }


def _is_multiple(left: Run, right: Run) -> bool:
    """Whether one run's losses, and the gradients behind backward, are one multiple of the other's.

    Their updates take equal gradients: what the loss was multiplied by is taken out of the gradients again. Without
    gradients nothing tells that, and any one loss is a multiple of any other.
    """
    if not left.gradients or len(left.losses) != len(right.losses):
        return False
    if not all(map(size, left.losses)):
        return False
    factors = [float(two / one) for one, two in zip(left.losses, right.losses, strict=True)]
    factor = factors[0]
    pairs = [(one, right.gradients.get(name)) for name, one in left.gradients.items()]
    scale = abs(factor) * _largest(left.gradients)
    return all(abs(one - factor) <= EXACT * abs(factor) for one in factors) and all(
        two is not None and one.shape == two.shape and _apart(one * factor, two, scale) <= EXACT
        for one, two in pairs
    )


def _lone_gradients(
    of: TwoRuns, theirs: Mapping[str, torch.Tensor], ours: Mapping[str, torch.Tensor]
) -> tuple[list[str], float] | None:
    """Gradients of parameters that the two runs hold in other pieces: names and distance; None without any."""
    shared = {
        name
        for name in theirs.keys() & ours.keys()
        if of.numbers.is_one(name, theirs[name], ours[name])
    }
    one = [name for name in theirs if name not in shared]
    two = [name for name in ours if name not in shared]
    if not one and not two:
        return None
    known = of.reference.starts.keys() & set(map(of.candidate.renamed, of.candidate.starts))
    missing = sorted(known.intersection(one if not two else two if not one else ()))
    if missing:
        return missing, 1.0
    starts = (
        of.reference.starts,
        of.candidate.renamed_starts,
    )
    begun = [
        starts_in_row(names, side) if names else torch.zeros(0, dtype=torch.float64)
        for names, side in zip((one, two), starts, strict=True)
    ]
    equal = begun[0].numel() == begun[1].numel() and torch.equal(
        begun[0].sort().values, begun[1].sort().values
    )
    if not equal:
        alone = ", ".join(sorted(one)[:3]) or ", ".join(sorted(two)[:3])
        of.not_judged.append(f"parameters of one run alone, which begin otherwise: {alone}")
        return None
    rows = [
        in_order(in_row([side[name] for name in names]), start)
        for names, side, start in zip((one, two), (theirs, ours), begun, strict=True)
    ]
    return sorted(one), _apart(rows[0], rows[1], size(rows[0]))


def _apart(one: torch.Tensor, two: torch.Tensor, scale: float) -> float:
    """Relative distance of two gradients; of what is zero but for rounding, relative to the largest of all."""
    apart = distance(one, two)
    if apart <= EXACT * 1e-3 * scale:
        return 0.0
    norm = max(size(one), size(two))
    return apart / norm if norm > 0 else apart


def _largest(gradients: Mapping[str, torch.Tensor]) -> float:
    return max((size(one) for one in gradients.values()), default=0.0)


# --- updates ----------------------------------------------------------------------------------------------------------


def update_differences(of: TwoRuns, alike: Collection[str] = ()) -> list[Difference]:
    """Updates that the two optimizers make differently of the same parameter, gradient and state.

    alike: Parameters whose updates leave the same of the gradients that they take (`leave_alike`).
    """
    reference, candidate = of.reference, of.candidate
    ours = {candidate.renamed(one.name): one for one in candidate.program.updates}
    theirs = {one.name: one for one in reference.program.updates}
    right = _on_gradients_of_reference(of, theirs, ours)
    found = []
    for name in sorted(theirs.keys() ^ ours.keys()):
        other = candidate if name in theirs else reference
        known = {other.renamed(one) for one in other.program.gradients}
        if name in known:
            found.append(Difference(Quantity.UPDATE, name, 1.0, 0.0))
    for name in sorted(theirs.keys() & ours.keys()):
        one, two = theirs[name], ours[name]
        if name in alike or not of.numbers.is_one(name, one.parameter.record, two.parameter.record):
            continue
        try:
            apart = _update_apart(of, right, one, two, of.left.entering.get(name))
        except CannotReplay as error:
            of.not_judged.append(f"the update of {name}: {error}")
            continue
        if apart > EXACT:
            found.append(Difference(Quantity.UPDATE, name, apart, EXACT))
    return [*found, *_lone_updates(of, theirs, ours)]


def leave_alike(of: TwoRuns, name: str) -> bool:
    """Whether both runs' updates of a parameter leave the same, each with what its own run made of the gradient.

    So they do where one run adds a decay to the gradient, and the other's optimizer does that.
    """
    theirs = {one.name: one for one in of.reference.program.updates}.get(name)
    renamed = of.candidate.renamed
    ours = {renamed(one.name): one for one in of.candidate.program.updates}.get(name)
    if theirs is None or ours is None:
        return False
    try:
        return _update_apart(of, of.right, theirs, ours, of.right.entering.get(ours.name)) <= EXACT
    except CannotReplay:
        return False


def _lone_updates(
    of: TwoRuns, theirs: Mapping[str, Update], ours: Mapping[str, Update]
) -> list[Difference]:
    """Updates of parameters that the two runs hold in other pieces, on the reference's gradients and states."""
    shared = {
        name
        for name in theirs.keys() & ours.keys()
        if of.numbers.is_one(name, theirs[name].parameter.record, ours[name].parameter.record)
    }
    one = {name: update for name, update in theirs.items() if name not in shared}
    two = {name: update for name, update in ours.items() if name not in shared}
    if not one or not two:
        return []
    try:
        apart = lone_moves_apart(of, list(one.values()), list(two.values()))
    except CannotReplay as error:
        of.not_judged.append(f"the updates of {', '.join(sorted(one)[:3])}: {error}")
        return []
    name = ", ".join(sorted(one))
    return [Difference(Quantity.UPDATE, name, apart, EXACT)] if apart > EXACT else []


def lone_moves_apart(of: TwoRuns, theirs: list[Update], ours: list[Update]) -> float:
    """How far the updates of parameters in other pieces are apart, relative to how far they move these.

    Raises CannotReplay if an optimizer cannot be run again, or one run's pieces are not the other's.
    """
    starts = [
        starts_in_row([one.name for one in updates], side.starts)
        for updates, side in ((theirs, of.reference), (ours, of.candidate))
    ]
    orders = [torch.argsort(one, stable=True) for one in starts]
    if not torch.equal(starts[0][orders[0]], starts[1][orders[1]]):
        raise CannotReplay("they begin otherwise in the other run")
    gradients = [_entering(of.left, one) for one in theirs]
    given = _in_pieces(in_row(gradients), orders, ours)
    keys = [states_of(one).keys() for one in (*theirs, *ours)]
    if any(one != keys[0] for one in keys):
        raise CannotReplay("the two optimizers keep other states")
    states = _states_in_pieces(of, theirs, ours, orders)
    moves = [
        in_row(
            [
                _move(of, of.reference, one, each, None)
                for one, each in zip(theirs, gradients, strict=True)
            ]
        ),
        in_row([_move(of, of.candidate, one, given[n], states[n]) for n, one in enumerate(ours)]),
    ]
    left, right = moves[0][orders[0]], moves[1][orders[1]]
    norm = max(size(left), size(right))
    rounded = _ROUNDOFF * 8 * size(starts[0])
    apart = distance(left, right)
    return 0.0 if apart <= rounded or norm == 0 else apart / norm


def _entering(run: Run, update: Update) -> torch.Tensor:
    found = run.entering.get(update.name)
    shape = update.parameter.record.shape
    return torch.zeros(shape, dtype=torch.float64) if found is None else found


def _in_pieces(
    row: torch.Tensor, orders: list[torch.Tensor], updates: list[Update]
) -> list[torch.Tensor]:
    """Elements of the reference's row, each at its place in the candidate's parameters."""
    there = torch.empty_like(row)
    there[orders[1]] = row[orders[0]]
    records = [one.parameter.record for one in updates]
    pieces = there.split([one.content.numel for one in records])
    return [piece.reshape(one.shape) for piece, one in zip(pieces, records, strict=True)]


def _states_in_pieces(
    of: TwoRuns, theirs: list[Update], ours: list[Update], orders: list[torch.Tensor]
) -> list[dict[str, torch.Tensor]]:
    """The reference's states, each at its place in the candidate's parameters; single numbers are the candidate's."""
    found: list[dict[str, torch.Tensor]] = [{} for _ in ours]
    for key in states_of(theirs[0]):
        records = [states_of(one)[key] for one in theirs]
        if all(
            one.shape == each.parameter.record.shape
            for one, each in zip(records, theirs, strict=True)
        ):
            pieces = _in_pieces(
                in_row([widened(of.reference.numbers.of(one)) for one in records]), orders, ours
            )
        else:
            pieces = [of.candidate.numbers.of(states_of(one)[key]) for one in ours]
        for each, piece in zip(found, pieces, strict=True):
            each[key] = piece
    return found


def _move(
    of: TwoRuns,
    side: Side,
    update: Update,
    gradient: torch.Tensor,
    states: Mapping[str, torch.Tensor] | None,
) -> torch.Tensor:
    """How far an update moves its parameter in double precision."""
    is_reference = side is of.reference
    given = of.numbers.given_to_reference if is_reference else of.numbers.given
    run = of.left if is_reference else of.right
    entering = (
        {key: side.numbers.of(one) for key, one in states_of(update).items()}
        if states is None
        else states
    )
    made = updated(update, side.program, run, given, gradient, entering, side.classes)
    return made.after["param"] - made.before


def _on_gradients_of_reference(
    of: TwoRuns, theirs: Mapping[str, Update], ours: Mapping[str, Update]
) -> Run:
    """The candidate's run, where its program has the calls of updates: with these on the reference's gradients.

    Gradients are compared by themselves, and one that is zero but for rounding may turn its sign.
    """
    if not of.candidate.has_written_updates:
        return of.right
    gradients = {
        ours[name].name: gradient
        for name, gradient in of.left.entering.items()
        if name in ours and of.numbers.is_one(name, theirs[name].parameter.record, gradient)
    }
    made = of.candidate.double.updates_of(of.right, of.numbers.given, gradients)
    return replace(of.right, values={**of.right.values, **made})


def _update_apart(
    of: TwoRuns, right: Run, one: Update, two: Update, given: torch.Tensor | None
) -> float:
    """How far apart two updates are, relative to how far they move the parameter; states are the reference's.

    right: The candidate's run, by which its update is made.
    given: The gradient that the candidate's update takes; the reference's takes that of its own run.
    """
    left = of.left
    if states_of(one).keys() != states_of(two).keys():
        raise CannotReplay("the two optimizers keep other states")
    states = {key: of.reference.numbers.of(record) for key, record in states_of(one).items()}
    theirs = updated(
        one,
        of.reference.program,
        left,
        of.numbers.given_to_reference,
        left.entering.get(one.name),
        states,
        of.reference.classes,
    )
    ours = updated(
        two, of.candidate.program, right, of.numbers.given, given, states, of.candidate.classes
    )
    return max(_moves_apart(theirs, ours), _states_apart(theirs, ours))


def _moves_apart(theirs: Updated, ours: Updated) -> float:
    moves = [one.after["param"] - one.before for one in (theirs, ours)]
    if all(size(move) == 0 for move in moves):
        return 0.0
    apart = distance(theirs.after["param"], ours.after["param"])
    rounded = _ROUNDOFF * 8 * size(theirs.before)
    return 0.0 if apart <= rounded else apart / max(map(size, moves))


def _states_apart(theirs: Updated, ours: Updated) -> float:
    shared = (theirs.after.keys() & ours.after.keys()) - {"param"}
    return max((relative(theirs.after[key], ours.after[key]) for key in shared), default=0.0)


def nothing_finite(run: Run) -> bool:
    """Whether a run has lost its numbers: a loss that is not finite."""
    return any(not math.isfinite(float(one.sum())) for one in run.losses)
