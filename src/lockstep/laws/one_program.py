"""Law P: both programs give the same losses, gradients, buffers and updates on the same numbers in double precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from lockstep.core.laws import Quantity
from lockstep.laws.arrangement import in_order, in_row, starts_in_row
from lockstep.laws.distances import distance, relative, size
from lockstep.laws.double_run import Rounding, Run
from lockstep.laws.double_updates import Updated, states_of, updated
from lockstep.laws.program import Update
from lockstep.laws.step_sides import CommonNumbers, Side
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

    Attributes
    ----------
    left, right
        The reference's and the candidate's run.
    """

    numbers: CommonNumbers
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
        return self.reference.double.run(self.reference.started)

    @cached_property
    def right(self) -> Run:
        """The candidate's run."""
        return self.candidate.double.run(self.numbers.given)

    def differences(self) -> list[Difference]:
        """What the two give differently, beyond what double precision and rounded constants may do."""
        apart = _quantities(self, self.left, self.right)
        return _beyond(apart, self._conditioned()) if _beyond(apart, {}) else []

    def _conditioned(self) -> dict[tuple[Quantity, str], float]:
        """What is allowed of each quantity, measured."""
        allowed: dict[tuple[Quantity, str], float] = {}
        generator = torch.Generator().manual_seed(SEED)
        for side, run, given in (
            (self.reference, self.left, self.reference.started),
            (self.candidate, self.right, self.numbers.given),
        ):
            rounding = Rounding(generator, at_most=_PERTURBED)
            moved = side.double.run(given, rounding=rounding)
            for key, apart in _moved(side, run, moved).items():
                scaled = apart * _ROUNDOFF / _PERTURBED * _CONDITION_MARGIN
                allowed[key] = max(allowed.get(key, EXACT), scaled)
            if self.numbers.lone[side.run]:
                shaken = side.double.run(self.numbers.shaken(side.run, generator))
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
        if theirs[name].shape == ours[name].shape:
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


def _lone_gradients(
    of: TwoRuns, theirs: Mapping[str, torch.Tensor], ours: Mapping[str, torch.Tensor]
) -> tuple[list[str], float] | None:
    """Gradients of parameters that the two runs hold in other pieces: names and distance; None without any."""
    shared = {
        name for name in theirs.keys() & ours.keys() if theirs[name].shape == ours[name].shape
    }
    one = [name for name in theirs if name not in shared]
    two = [name for name in ours if name not in shared]
    if not one and not two:
        return None
    starts = (
        of.reference.starts,
        {of.candidate.renamed(key): record for key, record in of.candidate.starts.items()},
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


def update_differences(of: TwoRuns) -> list[Difference]:
    """Updates that the two optimizers make differently of the same parameter, gradient and state."""
    reference, candidate = of.reference, of.candidate
    ours = {candidate.renamed(one.name): one for one in candidate.program.updates}
    theirs = {one.name: one for one in reference.program.updates}
    found = []
    for name in sorted(theirs.keys() ^ ours.keys()):
        other = candidate if name in theirs else reference
        known = {other.renamed(one) for one in other.program.gradients}
        if name in known:
            found.append(Difference(Quantity.UPDATE, name, 1.0, 0.0))
    for name in sorted(theirs.keys() & ours.keys()):
        one, two = theirs[name], ours[name]
        if one.parameter.record.shape != two.parameter.record.shape:
            continue
        try:
            apart = _update_apart(of, one, two)
        except CannotReplay as error:
            of.not_judged.append(f"the update of {name}: {error}")
            continue
        if apart > EXACT:
            found.append(Difference(Quantity.UPDATE, name, apart, EXACT))
    return found


def _update_apart(of: TwoRuns, one: Update, two: Update) -> float:
    """How far apart two updates are on the same numbers, relative to how far they move the parameter."""
    left, right = of.left, of.right
    gradient = left.entering.get(one.name)
    states = states_of(one)
    theirs = updated(
        one,
        of.reference.program,
        left,
        of.reference.started,
        gradient,
        states,
        of.reference.classes,
    )
    if states.keys() != states_of(two).keys():
        raise CannotReplay("the two optimizers keep other states")
    ours = updated(
        two, of.candidate.program, right, of.numbers.given, gradient, states, of.candidate.classes
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
