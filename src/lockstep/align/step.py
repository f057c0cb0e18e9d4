"""One step of one rank in both recordings, aligned: calls, stretches of calls without partner, data flow and names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from lockstep.align.alignment import align_calls
from lockstep.align.dataflow import Flow, UnusedGradients, without_unused
from lockstep.align.names import SAME_NAMES, SUM, NameMap
from lockstep.align.other_parts import commuted, without_other_constants, without_other_parts
from lockstep.align.paired_records import layout_of, pair_records
from lockstep.core.finding import Axes, CallPair, Pair
from lockstep.core.operators import AUTOGRAD_GRAD, agreed_name
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role

_REBUILT = 16
"""Calls without partner from which on a module counts as rebuilt: a fused kernel against its
parts. What is aligned inside of it may be so by chance."""


@dataclass(slots=True)
class Aligned:
    """Two aligned calls with their paired records."""

    calls: CallPair
    pairs: tuple[Pair, ...]
    reference: Call = field(init=False, repr=False, compare=False)
    candidate: Call = field(init=False, repr=False, compare=False)
    whole: tuple[Pair, ...] = field(init=False, repr=False, compare=False)
    """The pairs with both sides."""

    def __post_init__(self) -> None:
        self.reference, self.candidate = self.calls.both
        whole = [
            pair for pair in self.pairs if pair.reference is not None and pair.candidate is not None
        ]
        self.whole = self.pairs if len(whole) == len(self.pairs) else tuple(whole)

    def complete(self, *roles: Role) -> list[Pair]:
        """Pairs of these roles with both sides."""
        return [pair for pair in self.whole if pair.present.role in roles]


def _without_asked_gradients(calls: Sequence[Call]) -> list[Call]:
    return [one for one in calls if one.site.op != AUTOGRAD_GRAD]


class AlignedStep:
    """One step of one rank in both recordings.

    Attributes
    ----------
    pairs
        Every call of either side in order of time, with its partner where it has one.
    reference, candidate
        Data flow of either side.
    recorded
        All calls of either side: also `torch.autograd.grad`, whose calls are aligned themselves, and gradients that one
        run alone computes and nothing takes (see `lockstep.align.dataflow`).
    unused_gradients
        The parameters of the latter, by run, as the reference calls them.
    moved_apart
        Sums of parameters that are one in the candidate, and that move further: several parts of them learn.

    Modules and tensors of the candidate are asked for by what `names` calls them in the reference.
    """

    def __init__(
        self,
        reference: Sequence[Call],
        candidate: Sequence[Call],
        names: NameMap = SAME_NAMES,
    ) -> None:
        self._names = names
        self.moved_apart: tuple[str, ...] = ()
        if any(SUM in name for name in names.tensors.values()):
            from lockstep.align.summed import (  # few models have sums; loads kernels
                moved_apart,
                with_sums,
            )

            self.moved_apart = moved_apart(reference, names.tensors.values())
            reference = with_sums(reference, names.tensors.values())
        self.recorded = tuple(reference), tuple(candidate)
        reference, candidate = (
            _without_asked_gradients(reference),
            _without_asked_gradients(candidate),
        )
        reference, candidate, self.unused_gradients = without_unused(reference, candidate, names)
        self.reference = Flow(reference)
        self.candidate = Flow(candidate)
        pairs = align_calls(reference, candidate, names)
        pairs = without_other_constants(pairs, self.reference, self.candidate)
        self.pairs = without_other_parts(pairs, self.reference, self.candidate)
        self.aligned = _in_known_layouts(
            [
                Aligned(pair, tuple(pair_records(pair, names)))
                for pair in self.pairs
                if pair.reference is not None and pair.candidate is not None
            ]
        )
        self.lone = tuple(
            pair for pair in self.pairs if pair.reference is None or pair.candidate is None
        )
        self._by_reference = {item.reference.id: item for item in self.aligned}
        self.aligned = tuple(
            item if pairs is item.pairs else replace(item, pairs=pairs)
            for item in self.aligned
            for pairs in (commuted(item.calls, item.pairs, self._is_same),)
        )
        self._by_reference = {item.reference.id: item for item in self.aligned}
        self._by_candidate = {item.candidate.id: item for item in self.aligned}

    def _is_same(self, left: TensorRecord, right: TensorRecord) -> bool:
        """Whether aligned calls made two tensors; of those that none made, whether they are equal or have one name."""
        makers = (
            self.reference.producer(left.content.id, left.sequence),
            self.candidate.producer(right.content.id, right.sequence),
        )
        if makers[0] is None or makers[1] is None:
            named = bool(left.name) and left.name == self.name_of(right, is_candidate=True)
            return makers == (None, None) and (named or left.digest == right.digest)
        item = self._by_reference.get(makers[0].id)
        return item is not None and item.candidate is makers[1]

    def of_reference(self, call: Call) -> Aligned | None:
        """The aligned pair that a reference call belongs to."""
        return self._by_reference.get(call.id)

    def of_candidate(self, call: Call) -> Aligned | None:
        """The aligned pair that a candidate call belongs to."""
        return self._by_candidate.get(call.id)

    def of_kind(self, *kinds: CallKind) -> Iterator[Aligned]:
        """Aligned calls of these kinds in order of time."""
        return (item for item in self.aligned if item.reference.kind in kinds)

    def leads_nowhere(self, call: Call, gradient: TensorRecord, *, is_reference: bool) -> bool:
        """Whether a gradient that a call sends to an input only reaches gradients of parameters that nothing takes."""
        return self._unused[0 if is_reference else 1].leads_nowhere(call, gradient)

    @cached_property
    def _unused(self) -> tuple[UnusedGradients, UnusedGradients]:
        left, right = self.recorded
        return UnusedGradients(left), UnusedGradients(right)

    @property
    def differs(self) -> bool:
        """Whether anything is not known to be equal bit by bit in both runs."""
        return bool(self.lone) or any(
            one.reference is None
            or one.candidate is None
            or one.reference.digest is None
            or one.reference.digest != one.candidate.digest
            for item in self.aligned
            for one in item.pairs
        )

    def is_container(self, item: Aligned) -> bool:
        """Whether calls were recorded inside of this one on either side."""
        return (
            item.reference.id in self.reference.containers
            or item.candidate.id in self.candidate.containers
        )

    @cached_property
    def _lone_calls(self) -> dict[int, int]:
        """How many calls without partner each aligned module call has directly inside."""
        counts: dict[int, int] = defaultdict(int)
        for pair in self.lone:
            if pair.reference is not None:
                counts[pair.reference.parent] += 1
            elif pair.candidate is not None:
                around = self._by_candidate.get(pair.candidate.parent)
                counts[around.reference.id if around is not None else -1] += 1
        return counts

    def is_rebuilt_around(self, item: Aligned) -> bool:
        """Whether one side does quite other things around a call than the other."""
        return self._lone_calls.get(item.reference.parent, 0) >= _REBUILT

    def module_around(self, item: Aligned) -> Aligned | None:
        """The aligned module call around a call."""
        return self._by_reference.get(item.reference.parent)

    @cached_property
    def sees_inputs(self) -> bool:
        """Return whether both sides recorded inputs of calls."""
        return self._tell(Role.INPUT)

    @cached_property
    def sees_gradients_sent(self) -> bool:
        """Return whether both sides recorded the gradients that calls send on; every recorded loss sends one."""
        return self._tell(Role.GRAD_INPUT)

    def _tell(self, role: Role) -> bool:
        sides = self.reference.calls.values(), self.candidate.calls.values()
        return all(any(call.with_role(role) for call in side) for side in sides)

    @cached_property
    def module_classes(self) -> dict[str, str]:
        """Class of the module at each path, as both sides may name it."""
        classes: dict[str, str] = {}
        for pair in self.pairs:
            for call in (pair.reference, pair.candidate):
                if call is not None and call.kind in (CallKind.MODULE, CallKind.INIT):
                    name = call.module_class or call.site.op
                    path = self.path_of(call, is_candidate=call is pair.candidate)
                    classes[path] = agreed_name(classes.get(path, ""), name)
        return classes

    def hides_inside(self, path: str, flow: Flow) -> bool:
        """Return whether one run shows no call inside of a module, nor of a module without modules inside."""
        inside = {one for one in self.module_classes if is_below(one, path)} or {path}
        return not any(
            self.path_of(call, is_candidate=flow is self.candidate) in inside
            for call in flow.calls.values()
            if call.kind is CallKind.MODULE
        )

    def path_of(self, call: Call, *, is_candidate: bool) -> str:
        """Module path of a call, as the reference names it."""
        return self._names.module(call.site.module) if is_candidate else call.site.module

    def name_of(self, record: TensorRecord, *, is_candidate: bool) -> str:
        """Name of a parameter or buffer, as the reference calls it."""
        return self._names.tensor(record.name) if is_candidate else record.name

    def names_of(self, *roles: Role) -> frozenset[str]:
        """Full names of parameters or buffers in these roles, outside of operators."""
        kinds = (CallKind.INIT, CallKind.GRADIENT, CallKind.OPTIMIZER)
        return frozenset(
            record.name
            for pair in self.pairs
            for call in (pair.reference, pair.candidate)
            if call is not None and call.kind in kinds
            for record in call.records
            if record.role in roles
        )

    @cached_property
    def parameters_below(self) -> dict[str, list[Pair]]:
        """Parameters as they enter this step, by every module path above them."""
        below: dict[str, dict[str, Pair]] = defaultdict(dict)
        for item in self.of_kind(CallKind.INIT, CallKind.OPTIMIZER):
            for pair in item.complete(Role.PARAM):
                path = item.reference.site.module
                while True:
                    below[path].setdefault(pair.present.name, pair)
                    if not path:
                        break
                    path = path.rpartition(".")[0]
        return {path: list(pairs.values()) for path, pairs in below.items()}


def is_below(path: str, module: str) -> bool:
    """Return whether a module is inside of a second one."""
    return path != module and f"{path}.".startswith(f"{module}." if module else "")


def _in_known_layouts(items: Sequence[Aligned]) -> tuple[Aligned, ...]:
    """Give every pair a layout that its shapes allow and that was met elsewhere in the step.

    Where a run keeps its tensors in another layout, those that differ in content are in it too.
    """
    known = {pair.layout for item in items for pair in item.pairs if pair.layout}
    if not known:
        return tuple(items)
    return tuple(
        replace(item, pairs=tuple(_in_layout(pair, known) for pair in item.pairs)) for item in items
    )


def _in_layout(pair: Pair, known: Collection[Axes]) -> Pair:
    left, right = pair.reference, pair.candidate
    if pair.layout is not None or left is None or right is None or left.shape == right.shape:
        return pair
    axes = layout_of(pair, known)
    return (
        pair if axes is None else replace(pair, layout=axes, method=f"{pair.method}, other layout")
    )


def common_path(paths: Sequence[str]) -> str:
    """Innermost module that contains all of these paths.

    >>> common_path(["h.0.mlp.act", "h.0.mlp"])
    'h.0.mlp'
    """
    if not paths:
        return ""
    parts = [path.split(".") for path in paths]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def regions_of(step: AlignedStep, first: int = 0) -> Iterator[tuple[int, CallPair]]:
    """Calls of modules and operators without partner, numbered by region.

    A region is what stands between two aligned calls of the training's own code, or inside of one aligned module call.
    Two calls that only return the same (a fused operator, and the last of its parts) belong to it.
    """
    inside: dict[int, int] = {}
    region, fresh = first - 1, True
    for pair in step.pairs:
        if pair.present.kind not in (CallKind.MODULE, CallKind.OPERATOR):
            continue
        if is_aligned(pair):
            fresh = fresh or pair.present.parent not in step.reference.calls
            continue
        around = _aligned_around(step, pair)
        if around is None:
            region, fresh = region + fresh, False
            yield region, pair
            continue
        if around not in inside:
            region, fresh = region + 1, True
            inside[around] = region
        yield inside[around], pair


def is_aligned(pair: CallPair) -> bool:
    """Whether two calls were found to be the same one."""
    return not (pair.reference is None or pair.candidate is None or _replaces(pair))


def _replaces(pair: CallPair) -> bool:
    """Whether two calls return the same, by other means."""
    left, right = pair.reference, pair.candidate
    return pair.only_results and left is not None and right is not None and left.site != right.site


def _aligned_around(step: AlignedStep, pair: CallPair) -> int | None:
    """Number of the reference's call of the innermost aligned module around a call without partner."""
    is_candidate = pair.reference is None
    flow, aligned = _side(step, is_candidate=is_candidate)
    parent = flow.calls.get(pair.present.parent)
    while parent is not None:
        item = aligned(parent)
        if item is not None:
            return item.reference.id
        parent = flow.calls.get(parent.parent)
    return None


def is_inside_lone(step: AlignedStep, call: Call, *, is_candidate: bool) -> bool:
    flow, aligned = _side(step, is_candidate=is_candidate)
    parent = flow.calls.get(call.parent)
    return parent is not None and aligned(parent) is None


def _side(
    step: AlignedStep, *, is_candidate: bool
) -> tuple[Flow, Callable[[Call], Aligned | None]]:
    if is_candidate:
        return step.candidate, step.of_candidate
    return step.reference, step.of_reference
