"""Proposing a mapping between two trainings: layers by kind, shapes and order, contents as a check.

Layers with parameters are aligned by kind, extents and order of their calls; layers without, by kind between those. A
line is certain where both sides have equally many of the kind and shapes, or where the initial parameters hold equal
elements. All else is a guess: contents alone find wrong partners behind the first fault.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lockstep.compare import align_sequences, holds_the_same
from lockstep.recordings import CallKind, Content, Layout, RankRecording
from lockstep_frameworks.mapping.layers import (
    OPTIMIZER,
    Layer,
    Weight,
    known_classes,
    layers_of,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a mapping.

    section: Of the file: modules, parameters, states, layouts or activations.
    reference, candidate: The two names; of a layout the parameter and the words, of activations the words alone.
    confidence: From 0 to 1.
    reason: Why.
    """

    section: str
    reference: str
    candidate: str
    confidence: float
    reason: str

    @property
    def is_guess(self) -> bool:
        """Whether somebody has to confirm it."""
        return self.confidence < _CERTAIN


_EQUAL, _ORDER, _BETWEEN, _SOME = 1.0, 0.9, 0.6, 0.5
"""Equal elements; kind, shapes and order with equally many of them; the only two between certain ones; some of many."""
_CERTAIN = 0.9


@dataclass(frozen=True)
class Proposal:
    """What is proposed, and the layers of either side that nothing is proposed for, with the reason."""

    lines: tuple[Line, ...]
    unmapped: tuple[str, ...]


def propose(reference: RankRecording, candidate: RankRecording) -> Proposal:
    """Propose a mapping between two ranks."""
    proposal = proposal_of(layers_of(reference), layers_of(candidate))
    states = tuple(_states(reference, candidate))
    return replace(proposal, lines=(*proposal.lines, *states))


def proposal_of(left: Sequence[Layer], right: Sequence[Layer]) -> Proposal:
    """Propose names and layouts of layers."""
    lines: list[Line] = []
    unmapped: list[str] = []
    partners = list(_partners(left, right))
    for one, other, confidence, reason in partners:
        if one.has_activation != other.has_activation:
            unmapped += [_fused(layer) for layer in (one, other) if layer.has_activation]
        elif words := _other_axes(one, other):
            unmapped.append(words)
        elif one.path != other.path:
            lines.append(Line("modules", one.path, other.path, confidence, reason))
        lines.extend(_weights(one, other, confidence, reason))
    # Below a model that is mapped, layers of one name are one: not where one has an activation inside.
    root = None if unmapped else _root(partners)
    lines[:0] = [] if root is None else [root]
    lines.extend(_activations(left, right))
    taken = {id(one) for pair in partners for one in pair[:2]}
    for side, layers in (("reference", left), ("candidate", right)):
        unmapped += [
            f"{one.path} [{one.module_class}] of the {side}: the other has none of its kind there"
            for one in layers
            if id(one) not in taken
        ]
    return Proposal(tuple(lines), tuple(unmapped))


def _fused(layer: Layer) -> str:
    activation = layer.settings["activation"]
    return f"the result of {layer.path} [{layer.module_class}]: it has {activation} inside, and the other layer has not"


def _other_axes(one: Layer, other: Layer) -> str:
    """That two layers return things of another kind, as all steps of a sequence or the last one; "" where not."""
    if one.output is None or other.output is None:
        return ""
    ours, theirs = len(one.output.shape), len(other.output.shape)
    if ours == theirs:
        return ""
    return f"the result of {other.path} [{other.module_class}]: it has {theirs} axes, that of {one.path} has {ours}"


_Partner = tuple[Layer, Layer, float, str]


def _partners(left: Sequence[Layer], right: Sequence[Layer]) -> Iterator[_Partner]:
    """Layers that belong together, with confidence and reason, in order."""
    weighted = tuple([one for one in side if one.weights] for side in (left, right))
    builds = tuple([one.build for one in side] for side in weighted)
    counts = tuple(map(Counter, builds))
    certain = [(-1, -1)]
    for i, j in align_sequences(*builds):
        one, other = weighted[0][i], weighted[1][j]
        count = counts[0][one.build]
        if _hold_the_same(one, other):
            yield one, other, _EQUAL, "equal elements"
        elif count == counts[1][one.build]:
            yield one, other, _ORDER, "kind, shapes and order"
        else:
            yield one, other, _SOME, f"one of {count} and {counts[1][one.build]} of these shapes"
            continue
        certain.append((left.index(one), right.index(other)))
    certain.append((len(left), len(right)))
    for (i, j), (k, m) in itertools.pairwise(certain):
        gaps = ([one for one in left[i + 1 : k] if not one.weights],
                [one for one in right[j + 1 : m] if not one.weights])  # fmt: skip
        yield from _between(*gaps)


def _between(left: list[Layer], right: list[Layer]) -> Iterator[_Partner]:
    """The same of layers without parameters between two certain ones."""
    kinds = tuple([one.kind for one in side] for side in (left, right))
    counts = tuple(map(Counter, kinds))
    matches = align_sequences(*kinds)
    for i, j in matches:
        even = counts[0][kinds[0][i]] == counts[1][kinds[0][i]]
        words = "kind and order" if even else "kind, of which one has more"
        yield left[i], right[j], _ORDER if even else _SOME, words
    alone = ([one for i, one in enumerate(left) if i not in {a for a, _ in matches}],
             [one for j, one in enumerate(right) if j not in {b for _, b in matches}])  # fmt: skip
    if len(alone[0]) == len(alone[1]) == 1:
        one, other = alone[0][0], alone[1][0]
        if (
            one.output is not None
            and other.output is not None
            and _is_the_same(one.output, other.output)
        ):
            yield one, other, _EQUAL, "equal results"
        else:
            yield (
                one,
                other,
                _BETWEEN,
                f"alone between the same layers; {one.kind} and {other.kind}",
            )


def _hold_the_same(one: Layer, other: Layer) -> bool:
    """Whether all parameters of two layers hold the same elements, of which some tell."""
    pairs = [
        (one.weights[means].contents[0], other.weights[means].contents[0])
        for means in one.weights.keys() & other.weights.keys()
        if len(one.weights[means].contents) == len(other.weights[means].contents) == 1
    ]
    return any(_varies(pair[0]) for pair in pairs) and all(_is_the_same(*pair) for pair in pairs)


def _varies(content: Content) -> bool:
    numbers = content.statistics
    return numbers is not None and numbers.minimum != numbers.maximum


def _is_the_same(one: Content, other: Content) -> bool:
    return sorted(one.shape) == sorted(other.shape) and holds_the_same(one, other)


def _weights(one: Layer, other: Layer, confidence: float, reason: str) -> Iterator[Line]:
    for means, ours in one.weights.items():
        theirs = other.weights.get(means)
        if theirs is None:
            continue
        if ours.name != theirs.name:
            yield Line("parameters", ours.name, theirs.name, confidence, reason)
        words = _layout(ours, theirs)
        if words:
            yield Line(
                "layouts",
                ours.name,
                words,
                confidence,
                f"{one.module_class} and {other.module_class}",
            )


def _layout(ours: Weight, theirs: Weight) -> str:
    """In words how two classes keep a parameter; "" where they keep it alike."""
    gates = ours.gates != theirs.gates
    if (ours.axes == theirs.axes and not gates) or sorted(ours.axes) != sorted(theirs.axes):
        return ""
    moved = (ours.gates, theirs.gates) if gates else ("", "")
    return str(Layout(ours.axes, theirs.axes, *moved))


def _root(partners: Iterable[_Partner]) -> Line | None:
    """The model itself, where one side has it inside of a module."""
    pairs = [(one.path, other.path) for one, other, *_ in partners]
    if not pairs:
        return None
    ours, theirs = (_common(paths) for paths in zip(*pairs, strict=True))
    if bool(ours) == bool(theirs):
        return None
    return Line("modules", ours, theirs, _ORDER, "all layers lie below it")


def _common(paths: Iterable[str]) -> str:
    """The innermost path above all of these."""
    above = [path.split(".")[:-1] for path in paths]
    shared = []
    for level in zip(*above, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _states(reference: RankRecording, candidate: RankRecording) -> Iterator[Line]:
    """What two optimizers keep for each parameter."""
    ours, theirs = (_kept(rank) for rank in (reference, candidate))
    for means, name in ours.items():
        if means in theirs and theirs[means] != name:
            yield Line("states", name, theirs[means], _ORDER, f"{means} in both")


def _kept(rank: RankRecording) -> dict[str, str]:
    updates = rank.calls(rank.steps[0], kind=CallKind.OPTIMIZER)
    names = {record.name.partition("|")[2] for call in updates for record in call.records}
    return {
        known.means: known.parameter
        for op in sorted({call.site.op for call in updates})
        for known in known_classes().get(op, ())
        if known.kind == OPTIMIZER and known.parameter in names
    }


_SPATIAL = {"1d": ("NCW", "NWC"), "2d": ("NCHW", "NHWC"), "3d": ("NCDHW", "NDHWC")}


def _activations(left: Sequence[Layer], right: Sequence[Layer]) -> Iterator[Line]:
    """Layouts of activations: a setting of Keras's layers says it, everybody else keeps channels first."""
    for dims, words in _SPATIAL.items():
        sides = [
            {
                one.settings.get("data_format") == "channels_last"
                for one in side
                if one.kind.endswith(dims)
            }
            for side in (left, right)
        ]
        if all(len(one) == 1 for one in sides) and sides[0] != sides[1]:
            ours, theirs = (words[one.pop()] for one in sides)
            yield Line(
                "activations", "", f"{ours} -> {theirs}", _EQUAL, "data_format of the layers"
            )
