"""Where two programs begin to differ: the calls between tensors that both runs have and the first that one has not.

Tensors of the two double-precision runs are matched by contents, in any layout, so no call is paired with another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice, permutations

import torch

from lockstep.laws.distances import relative, size
from lockstep.laws.double_run import Run
from lockstep.laws.one_program import EXACT, TwoRuns
from lockstep.laws.step_events import (
    RESULTS,
    Backward,
    Node,
    Operator,
    Source,
    StepProgram,
)

_MATCHED = 1e-10


@dataclass(frozen=True, slots=True)
class Part:
    """The calls of each run in which the two differ, by number.

    `reference_at` and `candidate_at` are the first results that differ, or those at which the first gradient that
    differs arrives. `shared` are the results of either run that the other has too.
    """

    reference: tuple[int, ...] = ()
    candidate: tuple[int, ...] = ()
    reference_at: Node | None = None
    candidate_at: Node | None = None
    backward_alone: bool = False
    shared: tuple[frozenset[Node], frozenset[Node]] = (frozenset(), frozenset())


def part_of(of: TwoRuns, wrong: Collection[str]) -> Part:
    """The region in which two programs differ; `wrong` names the parameters whose gradients do."""
    matched = _matched(of.left, of.right)
    shared = frozenset(matched.values()), frozenset(matched)
    chains = [
        _alone_to_the_loss(side.program, run, known)
        for side, run, known in (
            (of.reference, of.left, set(matched.values())),
            (of.candidate, of.right, set(matched)),
        )
    ]
    if not chains[1]:
        return replace(_of_backward(of, wrong), shared=shared)
    behind, first = _repaired(of, *chains)
    return Part(
        () if behind is None else _between(of.reference.program, behind, set(matched.values())),
        () if first is None else _between(of.candidate.program, first, set(matched)),
        behind,
        first,
        shared=shared,
    )


def _alone_to_the_loss(program: StepProgram, run: Run, known: set[Node]) -> list[Node]:
    """Results that the other run has not and that reach a loss through such alone, in order of time.

    What a different spelling computes on the way to a tensor that both have is not among them.
    """
    makers = program.makers()
    waiting = [one.loss.link for one in program.losses]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, Source) or node in known or node in found:
            continue
        if run.values[node].dtype.is_floating_point:
            found.add(node)
        waiting.extend(taken.link for taken in makers[node].taken.values())
    return [node for node in program.results if node in found]


def _repaired(of: TwoRuns, theirs: list[Node], ours: list[Node]) -> tuple[Node | None, Node | None]:
    """The first result of the candidate that, with one of the reference's in its place, gives the reference's losses.

    Where none does, as where two places differ, the first results of both.
    """
    tried = 0
    for node in ours:
        for other in _partners(of, node, theirs):
            if tried >= _MOST_REPAIRS:
                break
            tried += 1
            if _repairs(of, node, other):
                return other, node
    return next(iter(theirs), None), next(iter(ours), None)


_MOST_REPAIRS = 24
"""Runs of the candidate's program that are spent on shrinking the region."""


def _partners(of: TwoRuns, node: Node, theirs: list[Node]) -> list[Node]:
    """Results of the reference that may stand in for one of the candidate: the nearest, and the first of its shape."""
    value = of.right.values[node]
    alike = [one for one in theirs if of.left.values[one].shape == value.shape]
    near = sorted(alike, key=lambda one: relative(of.left.values[one], value))
    return list(dict.fromkeys((*near[:1], *alike[:1])))


def _repairs(of: TwoRuns, node: Node, other: Node) -> bool:
    """Whether the candidate's losses are the reference's with one of its results put in."""
    put = {node: of.left.values[other]}
    losses = of.candidate.double.losses_instead(of.right, of.numbers.given, put, decided=of.decided)
    return len(losses) == len(of.left.losses) and all(
        relative(one, two) <= 10 * EXACT for one, two in zip(of.left.losses, losses, strict=True)
    )


def _between(program: StepProgram, target: Node, known: set[Node]) -> tuple[int, ...]:
    """The calls between tensors that the other run has too and one that it has not."""
    makers, waiting, seen = program.makers(), [target], dict[int, None]()
    while waiting:
        operator = makers.get(waiting.pop())
        if operator is None or operator.call.id in seen:
            continue
        seen[operator.call.id] = None
        links = (taken.link for taken in operator.taken.values())
        waiting.extend(one for one in links if isinstance(one, Node) and one not in known)
    return tuple(sorted(seen))


def _of_backward(of: TwoRuns, wrong: Collection[str]) -> Part:
    """Where gradients that differ come from: the call that takes the last parameter with one.

    Gradients of parameters alone are compared: that of a tensor between depends on how its run spells what follows.
    """
    last = [
        _last_taker(
            side.program, {name for name in side.program.gradients if side.renamed(name) in wrong}
        )
        for side in (of.reference, of.candidate)
    ]
    behind = [
        () if node is None else tuple(_takers(side.program, node))
        for node, side in zip(last, (of.reference, of.candidate), strict=True)
    ]
    return Part(behind[0], behind[1], last[0], last[1], backward_alone=True)


def _last_taker(program: StepProgram, names: Collection[str]) -> Node | None:
    """The result of the last call that takes one of these parameters on the way to a loss."""
    found = None
    places = [at for at, one in enumerate(program.events) if isinstance(one, Backward)]
    for operator in program.events[: max(places, default=0)]:
        if not isinstance(operator, Operator):
            continue
        links = [taken.link for taken in operator.taken.values()]
        taken = any(isinstance(one, Source) and one.name in names for one in links)
        if taken and any(one.index == 0 for one in operator.call.with_role(*RESULTS)):
            found = Node(operator.call.id, 0)
    return found


def _takers(program: StepProgram, node: Node) -> Iterator[int]:
    for operator in program.operators:
        if any(taken.link == node for taken in operator.taken.values()):
            yield operator.call.id


def _matched(left: Run, right: Run) -> dict[Node, Node]:
    """By result of the candidate: the result of the reference that is the same tensor, in any order of elements."""
    table: dict[int, list[tuple[float, Node]]] = defaultdict(list)
    for node, value in left.values.items():
        table[value.numel()].append((size(value), node))
    found: dict[Node, Node] = {}
    used: set[Node] = set()
    for node, value in right.values.items():
        norm = size(value)
        near = [
            (left.values[other].shape != value.shape, other in used, other.call, other)
            for theirs, other in table[value.numel()]
            if abs(theirs - norm) <= _MATCHED * max(theirs, norm)
        ]
        for is_reshaped, _, _, other in sorted(near, key=lambda one: one[:3]):
            if _elements_apart(left.values[other], value) <= _MATCHED:
                found[node] = other
                used.add(other)
                break
            if not is_reshaped and _sorted_apart(left.values[other], value) <= _MATCHED:
                break  # one of its shape has the elements in another order, as a roll makes it
    return found


def _elements_apart(one: torch.Tensor, two: torch.Tensor) -> float:
    """Relative distance: of elements in order where that is near, else in another layout.

    Tensors of one shape may have axes of one extent in another order; those of other shapes any order of elements.
    """
    apart = relative(one, two)
    if apart <= _MATCHED or one.numel() != two.numel():
        return apart
    if one.shape == two.shape:
        return min([apart, *(relative(one.permute(axes), two) for axes in _other_orders(one))])
    return min(apart, _sorted_apart(one, two))


def _sorted_apart(one: torch.Tensor, two: torch.Tensor) -> float:
    """Relative distance of all elements from the smallest to the largest."""
    sort = [each.detach().reshape(-1).to(torch.float64).sort().values for each in (one, two)]
    return relative(*sort)


def _other_orders(tensor: torch.Tensor) -> Iterator[tuple[int, ...]]:
    """Orders of the axes that leave the shape as it is, but the plain one; of as many axes as models have."""
    if 1 < tensor.dim() <= _MOST_AXES:
        for axes in islice(permutations(range(tensor.dim())), 1, None):
            if tensor.permute(axes).shape == tensor.shape:
                yield axes


_MOST_AXES = 5
