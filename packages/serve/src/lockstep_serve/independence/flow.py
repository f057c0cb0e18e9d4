"""Carries the batch axis through one operator after the other, whatever kind of graph these come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep_serve.independence import layer_rules, rules
from lockstep_serve.independence.extents import INSTANCES
from lockstep_serve.independence.values import (
    ONE,
    Call,
    Content,
    Mixes,
    NotListed,
    Rule,
    Shape,
    Value,
    numbers_alone,
    placed,
)

_PICKS_BY_ROW_NUMBERS = (rules.picked, rules.indexed, rules.picked_by_tuples, layer_rules.bags)
_MOVES = (rules.reshaped, rules.permuted, rules.expanded, rules.copied)
_SIZED = (rules.reshaped, rules.expanded, rules.tiled, rules.filled)
_SIZES = ("shape", "size", "sizes", "repeats")
_KEEPS_ROW_NUMBERS = (*_MOVES, rules.joined)
_FROM_NOTHING = (rules.expanded, rules.tiled, rules.filled, rules.random)
"""What gives a batch axis to something that has none."""


def applied(label: str, call: Call, rule: Rule | None, count: int = 1) -> list[Value]:
    """The results of an operator.

    label: Names it where it brings instances together.
    call, rule: Its operands, and how it treats the batch axis; None where no rule is known, which is fine while no
        operand depends on the instances.
    count: How many results it has.
    """
    options = dict(_values(call.options))
    mixed = next((one.mixed for one in (*call.given, *options.values()) if one.mixed), "")
    shapes = [*call.shapes, *[None] * (count - len(call.shapes))]
    try:
        found = _results(call, rule, shapes, options)
    except Mixes as error:
        found = [Value(shape, mixed=error.told()) for shape in shapes]
    return [
        replace(one, mixed=mixed or (f"{label} {one.mixed}" if one.mixed else "")) for one in found
    ]


def _values(options: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    """Options that are values of the graph, each by its name, also those within a list."""
    for name, told in options.items():
        for one in told if isinstance(told, list) else [told]:
            if isinstance(one, Value):
                yield (name if one is told else f"{name}.{id(one)}"), one


def _results(
    call: Call, rule: Rule | None, shapes: Sequence[Shape | None], options: Mapping[str, Value]
) -> list[Value]:
    operands = call.given
    touched = any(one.place or numbers_alone(one) for one in operands)
    touched |= any(one.place or one.counts_instances for one in options.values())
    touched |= any(one.of_instances for shape in shapes for one in shape or ())
    if not touched and rule is not rules.random:
        moved = operands and rule in _MOVES
        return [Value(shape, below=operands[0].below if moved else None) for shape in shapes]
    if rule is None:
        raise NotListed("is not known to keep instances apart")
    index = _row_index(call, rule, shapes)
    if index is not None:
        return [index]
    for name, one in options.items():
        if one.place:
            raise Mixes("is told by the instances what to do with all of them")
        if one.counts_instances and not (rule in _SIZED and name.partition(".")[0] in _SIZES):
            raise Mixes("computes with the number of instances")
    for at, one in enumerate(operands):
        rows = one.content is not Content.NUMBERS and not one.counts_instances
        if not rows or not (rule in _KEEPS_ROW_NUMBERS or (at and rule in _PICKS_BY_ROW_NUMBERS)):
            refuse = numbers_alone(one)
            if refuse:
                raise Mixes(refuse)
    if rule not in _FROM_NOTHING and not any(one.place for one in operands):
        raise Mixes("gives a shape that depends on the number of instances")
    places = rule(call)
    places = [*places] * len(shapes) if len(places) == 1 else [*places]
    found = []
    for shape, place in zip(shapes, places, strict=False):
        try:
            if isinstance(place, Mixes):
                raise place
            found.append(placed(shape, place))
        except Mixes as error:
            found.append(Value(shape, mixed=error.told()))
    return [_with_content(call, rule, one) for one in found]


def _row_index(call: Call, rule: Rule, shapes: Sequence[Shape | None]) -> Value | None:
    """Row numbers times a stride, or with an offset below it added: an index into each instance's own part."""
    if rule not in (rules.added, rules.multiplied) or len(call.given) != 2:
        return None
    rows, other = sorted(call.given, key=lambda one: one.content is not Content.ROW_NUMBERS)
    if rows.content is not Content.ROW_NUMBERS or other.place or numbers_alone(other):
        return None
    value = placed(shapes[0], rules.pointwise(call)[0])  # type: ignore[arg-type]
    if rule is rules.added and other.below is not None and other.below == rows.stride:
        return replace(value, content=Content.WITHIN_ROW, stride=rows.stride)
    known = [] if other.numbers is None else [*other.numbers.ravel()]
    if rule is rules.multiplied and len(known) == 1 and known[0].number > 0:
        return replace(value, content=Content.ROW_NUMBERS, stride=rows.stride * known[0])
    return None


def _with_content(call: Call, rule: Rule, value: Value) -> Value:
    """Row numbers stay row numbers where they are moved, and become an index where they are joined with others."""
    if rule not in _KEEPS_ROW_NUMBERS or all(one.content is Content.NUMBERS for one in call.given):
        return value
    first, *others = call.given
    if rule is rules.joined:
        last = call.whole("axis", 0) in (-1, first.rank - 1) and first.extents[-1].is_one
        if (
            not last
            or call.options.get("new")
            or first.stride != ONE
            or any(one.content is not Content.NUMBERS for one in others)
        ):
            raise Mixes("computes with the place of an instance in the batch")
        return replace(value, content=Content.ROW_FIRST)
    if first.content is Content.ROW_FIRST and rule is not rules.copied:
        raise Mixes("computes with the place of an instance in the batch")
    return replace(value, content=first.content, stride=first.stride)


def verdict(outputs: Sequence[tuple[str, Value]]) -> str:
    """Why a graph with these results is not batched; empty where each of its instances is by itself."""
    for name, value in outputs:
        if value.mixed:
            return value.mixed
        own = value.place
        if own is None:
            return f"output {name} has no batch axis"
        if own.axis or value.extents[0] != INSTANCES or numbers_alone(value):
            return f"output {name} does not have the instances along its first axis"
    return ""
