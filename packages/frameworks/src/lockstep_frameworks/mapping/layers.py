"""The layers of a recorded training in the order in which they run, with what their parameters mean (`layers.csv`)."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.compare import SUM_OF_NAMES
from lockstep.recordings import CallKind, Content, RankRecording, Role, canonical_name

OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Known:
    """What a class of layers calls one of its parameters, what that means, and how it lies."""

    kind: str
    parameter: str
    means: str
    axes: str
    gates: str


@cache
def known_classes() -> dict[str, tuple[Known, ...]]:
    """The parameters of every class that is known; for optimizers what they keep."""
    found: dict[str, list[Known]] = {}
    text = Path(__file__).with_name("layers.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        axes, _, gates = row["axes"].partition(":")
        found.setdefault(row["class"], []).append(
            Known(row["kind"], row["parameter"], row["means"], axes, gates)
        )
    return {name: tuple(rows) for name, rows in found.items()}


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of a layer, or the sum of two: full name, what it means, how it lies, contents."""

    name: str
    axes: str
    gates: str
    contents: tuple[Content, ...]

    @property
    def extents(self) -> tuple[tuple[str, int], ...]:
        """Extent of each axis, in alphabetical order, without those that are 1 by their letter."""
        pairs = zip(self.axes, self.contents[0].shape, strict=True)
        return tuple(sorted((axis, extent) for axis, extent in pairs if axis != "1"))


@dataclass(frozen=True)
class Layer:
    """A module that contains no other one.

    path, module_class: Of the module.
    kind: What it is in every framework.
    weights: By what they mean.
    settings: Plain settings.
    output: What its first call returned; None where that was not recorded.
    """

    path: str
    module_class: str
    kind: str
    weights: Mapping[str, Weight] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    output: Content | None = None

    @property
    def build(self) -> tuple[object, ...]:
        """Kind and extents of all parameters: equal for two layers that may be one."""
        learnt = ((means, self.weights[means].extents) for means in sorted(self.weights))
        return (self.kind, *(one for one in learnt if one[0] not in ("mean", "variance")))

    @property
    def has_activation(self) -> bool:
        """Whether it applies an activation to its result too."""
        return (
            self.settings.get("activation", "linear") not in ("linear", None)
            and self.kind != "lstm"
        )


def layers_of(rank: RankRecording) -> list[Layer]:
    """The layers of the first recorded step, in the order of their first calls."""
    calls = rank.calls(rank.steps[0])
    tensors: dict[str, Content] = {}
    for call in calls:
        if call.kind is CallKind.INIT:
            tensors |= {record.name: record.content for record in call.records}
    modules = [call for call in calls if call.kind is CallKind.MODULE]
    containers = {call.parent for call in modules}
    known, found = known_classes(), dict[str, Layer]()
    for call in modules:
        if (call.id in containers and call.site.op not in known) or call.site.module in found:
            continue
        weights = _weights(call.site.module, call.site.op, tensors)
        kind = (
            known[call.site.op][0].kind if call.site.op in known else canonical_name(call.site.op)
        )
        outputs = call.with_role(Role.OUTPUT)
        found[call.site.module] = Layer(
            call.site.module, call.site.op, kind, weights, call.arguments,
            outputs[0].content if outputs else None,
        )  # fmt: skip
    return list(found.values())


def _weights(path: str, module_class: str, tensors: Mapping[str, Content]) -> dict[str, Weight]:
    """The parameters of one layer, which may lie in a module inside of it that is not called by itself."""
    below = {name: one for name, one in tensors.items() if name.startswith(f"{path}.")}
    found = {}
    for known in known_classes().get(module_class, ()):
        if not known.parameter:
            continue
        names = [
            [name for name in below if name.rpartition(".")[2] == part]
            for part in known.parameter.split(SUM_OF_NAMES)
        ]
        if all(len(one) == 1 for one in names):
            full = [one[0] for one in names]
            contents = tuple(below[name] for name in full)
            if len(contents[0].shape) == len(known.axes):
                found[known.means] = Weight(
                    SUM_OF_NAMES.join(full), known.axes, known.gates, contents
                )
    return found
