"""Where an operator leaves the batch axis: one rule for each kind of operator, in graphs of either kind.

A rule is asked where an operand has a batch axis, or a result has the number of instances in its shape. It gives the
batch axis of the results, or raises `Mixes` with the reason for which one instance could see another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lockstep_serve.independence.extents import INSTANCES, Extent, product
from lockstep_serve.independence.values import (
    ONE,
    Call,
    Content,
    Mixes,
    Place,
    Rule,
    Value,
)

Places = list["Place | Mixes | None"]

_OVER = "works along the batch axis"


def normal(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis + rank if axis < 0 else axis


def shared(values: Iterable[Value], *, least: int = 0) -> tuple[int, Place] | None:
    """The batch axis of values that are broadcast, counted from the last axis (-1), with its blocks; None without one.

    Of those that lack one none may have more than one element there. `least` is how many of the last axes are others'.
    """
    found: tuple[int, Place] | None = None
    values = list(values)
    for value in values:
        if value.place is None:
            continue
        place, offset = value.place, value.place.axis - value.rank
        if found is None or (found[1].outer is None and offset == found[0]):
            found = found or (offset, place)
            found = offset, place if place.outer is not None else found[1]
        elif found[0] != offset:
            raise Mixes("brings the instances of one operand together with those of another")
        elif place.outer is not None and (place.outer, place.inner) != (
            found[1].outer,
            found[1].inner,
        ):
            raise Mixes("has operands that order their instances otherwise")
    if found is None:
        return None
    if found[0] >= -least:
        raise Mixes(_OVER)
    for value in values:
        if value.place is None and value.rank >= -found[0] and not value.extents[found[0]].is_one:
            raise Mixes("has an operand of a fixed extent along the batch axis")
    return found


def aligned(values: Iterable[Value], *, least: int = 0) -> tuple[int, Place]:
    """As `shared`, of values of which one has a batch axis."""
    found = shared(values, least=least)
    if found is None:
        raise Mixes("has operands without the batch axis")
    return found


def pointwise(call: Call) -> Places:
    """Element by element, with broadcasting."""
    found = aligned(call.given)
    rank = max(one.rank for one in call.given)
    return [found[1].at(rank + found[0])]


def alone(call: Call) -> Value:
    """The first operand, where it alone has a batch axis."""
    if any(one.place is not None for one in call.given[1:]) or call.first.place is None:
        raise Mixes("takes as a parameter what depends on the instances")
    return call.first


def along(call: Call) -> Places:
    """Along `axes`, which are kept: softmax, a norm, sorting, a cumulative sum; the result's rank is the operand's."""
    value = alone(call)
    assert value.place is not None
    if value.place.axis in [normal(one, value.rank) for one in call.several("axes")]:
        raise Mixes(_OVER)
    return [value.place]


def along_from(call: Call) -> Places:
    """Along `axis` and all that follow."""
    axis = normal(call.whole("axis"), call.first.rank)
    return along(replace(call, options={"axes": [*range(axis, call.first.rank)]}))


def scaled(call: Call) -> Places:
    """By a scale and a zero point, for each element of `axis` where these are several."""
    several = len(call.given) > 1 and any(not one.is_one for one in call.given[1].extents)
    return along(replace(call, options={"axes": [call.whole("axis", 1)] if several else []}))


def random(call: Call) -> Places:
    """Whatever draws random numbers."""
    raise Mixes("draws random numbers")


def refused(why: str) -> Rule:
    """A rule for what is never batched."""

    def rule(call: Call) -> Places:
        raise Mixes(why)

    return rule


def added(call: Call) -> Places:
    """A sum, which may be an index into each instance's own part."""
    return pointwise(call)


def multiplied(call: Call) -> Places:
    """A product, which may be the place where each instance's own part begins."""
    return pointwise(call)


def copied(call: Call) -> Places:
    """The same numbers, in another type or at another place."""
    return pointwise(call)


def reduced(call: Call) -> Places:
    """Along `axes`, which go, or are kept with one element by `keep`. All of them where none are given."""
    value = alone(call)
    assert value.place is not None
    axes = {
        normal(one, value.rank)
        for one in call.several("axes", range(value.rank)) or range(value.rank)
    }
    if value.place.axis in axes:
        raise Mixes(_OVER)
    gone = 0 if call.options.get("keep") else sum(one < value.place.axis for one in axes)
    return [value.place.at(value.place.axis - gone)]


def rows(call: Call) -> Places:
    """Each row of the first axis by itself: convolution, pooling, batch norm of inference, resizing."""
    paired = call.options.get("paired", (0,))
    places = [one.place for at, one in enumerate(call.tensors) if one is not None and at in paired]
    others = [one for at, one in enumerate(call.tensors) if one is not None and at not in paired]
    if any(one.place is not None for one in others):
        raise Mixes("takes as a parameter what depends on the instances")
    first = places[0]
    if first is None or any(one is None or (one.axis, one.outer, one.inner) != (
        0, first.outer, first.inner
    ) for one in places):  # fmt: skip
        raise Mixes("has its instances along another axis than the first, or not in all operands")
    return [first]


def rows_alone(call: Call) -> Places:
    """As `rows`; further results, such as places in the whole tensor, are not the instances' own."""
    rest = Mixes("has a result that counts through the whole batch")
    return [*rows(call), *[rest] * (len(call.shapes) - 1)]


def batch_norm_by_outputs(call: Call) -> Places:
    """Batch norm of ONNX before opset 14, which trains where it gives statistics."""
    if len(call.shapes) > 1:
        raise Mixes("normalises by the whole batch, as in training")
    return rows(call)


def product_of_matrices(call: Call) -> Places:
    """Matrices of the last two axes, with the others broadcast; a vector is one of one axis."""
    left, right, *rest = call.given
    if any(one.place is not None for one in rest):
        raise Mixes("takes as a parameter what depends on the instances")
    length = len(call.result)
    for value, other, kept, summed, at in (
        (left, right, -2, -1, length - 1 if right.rank == 1 else length - 2),
        (right, left, -1, -2, length - 1),
    ):
        if value.place is None:
            continue
        offset = value.place.axis - value.rank
        if offset == summed or value.rank == 1:
            raise Mixes("sums over the batch axis")
        if offset == kept:
            if other.place is not None:
                raise Mixes("brings the instances of one operand together with those of another")
            return [value.place.at(at)]
    found = aligned([left, right], least=2)
    return [found[1].at(max(left.rank, right.rank) + found[0])]


def product_and_sum(call: Call) -> Places:
    """A first operand, and the product of the second and the third."""
    added, left, right = call.given
    pair = [left, right]
    if all(one.place is None for one in pair):
        return pointwise(replace(call, tensors=[added, Value(call.result)]))
    (place,) = product_of_matrices(replace(call, tensors=pair))
    assert isinstance(place, Place)
    return pointwise(replace(call, tensors=[added, Value(call.result, place)]))


def linear(call: Call) -> Places:
    """`x @ weight.T + bias`: every axis but the last is kept."""
    value = alone(call)
    assert value.place is not None
    if value.place.axis == value.rank - 1:
        raise Mixes("sums over the batch axis")
    return [value.place]


def gemm(call: Call) -> Places:
    """ONNX's Gemm: `transA`, `transB`, and a third operand that is added."""
    left, right, *added = call.given
    where: list[tuple[int, Place]] = []
    for value, turned, contracted in (
        (left, call.options.get("transA"), 1),
        (right, call.options.get("transB"), 0),
    ):
        if value.place is not None:
            axis = 1 - value.place.axis if turned else value.place.axis
            if axis == contracted:
                raise Mixes("sums over the batch axis")
            where.append((axis, value.place))
    if len(where) > 1:
        raise Mixes("brings the instances of one operand together with those of another")
    results = [Value((ONE, ONE), place.at(axis)) for axis, place in where]
    found = aligned([*results, *added])
    return [found[1].at(2 + found[0])]


def permuted(call: Call) -> Places:
    """Axes in another `order`."""
    value = alone(call)
    assert value.place is not None
    order = call.several("order", range(value.rank)[::-1])
    return [value.place.at([normal(one, value.rank) for one in order].index(value.place.axis))]


def reshaped(call: Call) -> Places:
    """The same elements in the same order, in other extents."""
    value, result = alone(call), call.result
    place = value.place
    assert place is not None
    if place.outer is None:
        if value.extents != result:
            raise Mixes("reshapes what was repeated for each instance")
        return [place]
    before = product(value.extents[: place.axis]) * place.outer
    behind = place.inner * product(value.extents[place.axis + 1 :])
    for axis, extent in enumerate(result):
        if extent.of_instances:
            outer = before.divided_by(product(result[:axis]))
            inner = behind.divided_by(product(result[axis + 1 :]))
            if outer is None or inner is None or outer * INSTANCES * inner != extent:
                break
            return [Place(axis, outer, inner)]
    raise Mixes("puts elements of several instances into one")


def expanded(call: Call) -> Places:
    """Repeated along axes of one element."""
    value, result = call.first, call.result
    if value.place is not None:
        return [value.place.at(value.place.axis + len(result) - value.rank)]
    return [_repeated(result, value)]


def _repeated(result: Sequence[Extent], value: Value) -> Place:
    axis = next(at for at, one in enumerate(result) if one.of_instances)
    own = axis - len(result) + value.rank
    if own >= 0 and not value.extents[own].is_one:
        raise Mixes("has an operand of a fixed extent along the batch axis")
    return Place(axis, None)


def tiled(call: Call) -> Places:
    """Repeated as a whole, some times along each axis."""
    value, result = call.first, call.result
    lead = len(result) - value.rank
    if value.place is None:
        axis = next(at for at, one in enumerate(result) if one.of_instances)
        inner = value.extents[axis - lead] if axis >= lead else ONE
        if result[axis] != INSTANCES * inner:
            raise Mixes("repeats something by other than the number of instances")
        return [Place(axis, ONE, inner)]
    axis = value.place.axis + lead
    if result[axis] != value.extents[value.place.axis]:
        raise Mixes("repeats the batch axis")
    return [value.place.at(axis)]


def filled(call: Call) -> Places:
    """One number everywhere."""
    axes = [at for at, one in enumerate(call.result) if one.of_instances]
    return [Place(axes[0], None)] if axes else [None]


def joined(call: Call) -> Places:
    """Concatenated along `axis`, or stacked along a new one."""
    rank = call.first.rank
    new = bool(call.options.get("new"))
    axis = normal(call.whole("axis", 0), rank + new)
    found = aligned(call.given)
    own = found[0] + rank
    if any(one.rank != rank or one.place is None for one in call.given):
        raise Mixes("has an operand without the batch axis")
    if axis == own and not new:
        raise Mixes(_OVER)
    return [found[1].at(own + (new and axis <= own))]


def cut(call: Call) -> Places:
    """Parts along `axes`, which are kept: slicing, splitting, padding, flipping; `whole` are those left as they are."""
    value = alone(call)
    assert value.place is not None
    rank = value.rank
    kept = {normal(one, rank) for one in call.options.get("whole", ())}
    if value.place.axis in {normal(one, rank) for one in call.several("axes")} - kept:
        raise Mixes("cuts or moves the batch axis")
    return [value.place]


def _numbers(*indices: Value) -> None:
    """Refuse a place in the batch as an index into what is no batch."""
    if any(one.content is not Content.NUMBERS for one in indices):
        raise Mixes("picks by the place of an instance in the batch")


def _own_rows(place: Place, index: Value) -> None:
    """Refuse an index along the batch axis but that by which each instance finds itself."""
    own = index.content in (Content.ROW_NUMBERS, Content.WITHIN_ROW) and index.place is not None
    if not own or place.outer != ONE or index.stride != place.inner:
        raise Mixes("picks along the batch axis")


def picked(call: Call) -> Places:
    """Elements of the first operand by whole numbers of the second, along `axis`: an embedding."""
    data, index = call.given[:2]
    axis = normal(call.whole("axis", 0), data.rank)
    if data.place is None or data.place.axis == axis:
        if data.place is None:
            _numbers(index)
        else:
            _own_rows(data.place, index)
        if index.place is None:
            raise Mixes("has operands without the batch axis")
        return [index.place.at(axis + index.place.axis)]
    if index.place is not None:
        raise Mixes("picks for each instance from all of them")
    return [data.place.at(data.place.axis + (index.rank - 1 if axis < data.place.axis else 0))]


def picked_elements(call: Call) -> Places:
    """Elements along `axis` at the places of operands of the same rank: GatherElements, scatter."""
    axis = normal(call.whole("axis", 0), call.first.rank)
    found = aligned(call.given)
    own = found[0] + call.first.rank
    if own == axis:
        raise Mixes(_OVER)
    if any(one.place is None and one.rank for one in call.given):
        raise Mixes("has an operand without the batch axis")
    return [found[1].at(own)]


def stored(call: Call) -> Places:
    """The first operand with the second in one place along `axis`, which the second lacks."""
    whole, part = call.given
    axis = normal(call.whole("axis", 0), whole.rank)
    if whole.place is None or part.place is None:
        raise Mixes("has an operand without the batch axis")
    if axis == whole.place.axis or part.place.at(whole.place.axis) != whole.place:
        raise Mixes("stores along the batch axis")
    if part.place.axis != whole.place.axis - (axis < whole.place.axis):
        raise Mixes("brings the instances of one operand together with those of another")
    return [whole.place]


def indexed(call: Call) -> Places:
    """Torch's indexing by arrays: `at` is the axis of each index, with as many in `tensors` after the data."""
    data, *indices = call.given
    axes: list[int] = call.options["at"]
    found = shared(indices)
    rank = max(one.rank for one in indices)
    together = axes == [*range(axes[0], axes[0] + len(axes))]
    start = axes[0] if together else 0
    if data.place is None:
        _numbers(*indices)
    elif data.place.axis in axes:
        _numbers(*(one for one, at in zip(indices, axes, strict=True) if at != data.place.axis))
        _own_rows(data.place, indices[axes.index(data.place.axis)])
    elif found is not None:
        raise Mixes("picks for each instance from all of them")
    else:
        gone = sum(one < data.place.axis for one in axes)
        before = rank if not together or start < data.place.axis else 0
        return [data.place.at(data.place.axis - gone + before)]
    if found is None:
        raise Mixes("has operands without the batch axis")
    return [found[1].at(start + rank + found[0])]


def picked_by_tuples(call: Call) -> Places:
    """ONNX's GatherND: the last axis of the second operand is an index."""
    data, index = call.given[:2]
    shared = call.whole("batch_dims", 0)
    if index.place is not None and index.place.axis == index.rank - 1:
        raise Mixes(_OVER)
    if data.place is None and index.place is not None and not shared:
        _numbers(index)
        return [index.place]
    if data.place is not None and index.place is not None:
        if data.place.axis < shared and data.place == index.place:
            return [data.place]
        if data.place == Place(0) and index.content is Content.ROW_FIRST and not shared:
            return [index.place]
    raise Mixes("picks for each instance from all of them")


def one_hot(call: Call) -> Places:
    """A new axis at `axis`."""
    value = alone(call)
    assert value.place is not None
    new = normal(call.whole("axis", -1), value.rank + 1)
    return [value.place.at(value.place.axis + (new <= value.place.axis))]
