"""Pairing the tensor records of two aligned calls, with the layout in which the two are one tensor."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TYPE_CHECKING

from lockstep.align.names import SAME_NAMES, SUM, NameMap
from lockstep.core.finding import Axes, CallPair, Pair
from lockstep.core.records import Call, Content, TensorRecord
from lockstep.core.site import Phase, Role
from lockstep.measure.axis_order import IN_ROW_ORDER, is_nearer_in, is_one_sequence, other_layout

if TYPE_CHECKING:
    from lockstep.core.tensor_layouts import Layout


def pair_records(pair: CallPair, names: NameMap = SAME_NAMES) -> list[Pair]:
    """Pair the records of two aligned calls, in order of time; a record without partner stands
    alone.

    Records correspond when phase, role, occurrence and name are equal (an argument that is no
    tensor on one side moves the indices of those behind it); what is left, where only the name
    differs (an operator spelled in another way), by index.
    """
    if pair.reference is None or pair.candidate is None:
        return _lone_records(pair.present, is_reference=pair.reference is not None)
    if pair.only_results:
        return _pair_results(pair.reference, pair.candidate, pair.method)
    if _records_alike(pair.reference, pair.candidate, names):
        return [
            Pair(left, right, pair.method)
            if left.content.shape == right.content.shape
            and not (names.layouts or names.activations)
            else described(Pair(left, right), pair.method, names)
            for left, right in zip(pair.reference.records, pair.candidate.records, strict=True)
        ]
    waiting = list(pair.candidate.records)
    chosen: dict[int, TensorRecord] = {}
    for key in (_full_key, _loose_key):
        places: dict[Hashable, list[TensorRecord]] = {}
        for record in reversed(waiting):
            places.setdefault(key(record, names), []).append(record)
        for position, record in enumerate(pair.reference.records):
            if position not in chosen and places.get(key(record, SAME_NAMES)):
                chosen[position] = places[key(record, SAME_NAMES)].pop()
        taken = {id(record) for record in chosen.values()}
        waiting = [record for record in waiting if id(record) not in taken]
        if not waiting:
            break
    pairs = [Pair(record, chosen.get(at)) for at, record in enumerate(pair.reference.records)]
    pairs += [Pair(None, record) for record in waiting]
    return [described(one, pair.method, names) for one in pairs]


def _records_alike(reference: Call, candidate: Call, names: NameMap) -> bool:
    """Whether the records of two calls correspond one by one, so that nothing is to be looked for."""
    if len(reference.records) != len(candidate.records):
        return False
    renamed = bool(names)
    for left, right in zip(reference.records, candidate.records, strict=True):
        if (
            left.role is not right.role
            or left.occurrence != right.occurrence
            or left.site.phase is not right.site.phase
            or left.name != (names.tensor(right.name) if renamed else right.name)
        ):
            return False
    return True


def described(pair: Pair, method: str, names: NameMap) -> Pair:
    """The pair with how it was found and, where contents or shapes say so, in which layout."""
    if pair.reference is None or pair.candidate is None:
        return pair
    layout = names.layout(pair.reference.name) if names.layouts else None
    if layout is not None and len(layout) != sum(n != 1 for n in pair.reference.shape):
        layout = None  # an optimizer's step count has the parameter's name
    if layout is None and names.activations and pair.reference.role not in _OF_PARAMETERS:
        layout = _declared_layout(pair.reference.content, pair.candidate.content, names.activations)
    if layout is None and pair.reference.shape != pair.candidate.shape:
        layout = layout_of(pair)
    method = f"{method}, other layout" if layout is not None else method
    return Pair(pair.reference, pair.candidate, method, layout)


def _declared_layout(
    reference: Content, candidate: Content, declared: Collection[Layout]
) -> Axes | None:
    """The layout that a mapping file gives to tensors of these shapes.

    A tensor of equal shape may have been brought into the other's layout before: the nearer of the two is taken, and no
    third one.
    """
    for layout in declared:
        if layout.shape(reference.shape) == candidate.shape:
            axes = layout.without_ones(reference.shape)
            if reference.shape != candidate.shape or is_nearer_in(axes, reference, candidate):
                return axes
    return None


def layout_of(pair: Pair, known: Collection[Axes] = ()) -> Axes | None:
    """Return the order of axes of a pair that is the same tensor in a different layout; see `other_layout`.

    Extents of 1 more or less are a layout in a parameter (a linear layer's weight and that of a 1x1
    convolution), other shapes are none: copies of ranks that were told to be one, or another model. An
    activation is the same one as long as its elements are.
    """
    is_of_parameter = pair.present.role in _OF_PARAMETERS
    if not is_of_parameter and is_one_sequence(*pair.contents):
        return IN_ROW_ORDER
    axes = other_layout(*pair.contents, known=known)
    if axes == tuple(range(len(axes or ()))) and not is_of_parameter:
        return None
    return axes


_OF_PARAMETERS = frozenset(
    {Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER, Role.STATE, Role.STATE_AFTER, Role.BUFFER}
)


def _pair_results(reference: Call, candidate: Call, method: str) -> list[Pair]:
    """What two calls return, forward and as it comes back; all else stands alone."""
    partners: dict[Hashable, list[TensorRecord]] = {}
    others = []
    for record in reversed(candidate.records):
        if record.role in _RESULTS:
            partners.setdefault(_loose_key(record, SAME_NAMES), []).append(record)
        else:
            others.append(record)
    pairs = []
    for record in reference.records:
        same = partners.get(_loose_key(record, SAME_NAMES)) if record.role in _RESULTS else None
        pairs.append(Pair(record, same.pop() if same else None))
    unpaired = [record for same in partners.values() for record in same]
    pairs += [Pair(None, record) for record in (*reversed(others), *unpaired)]
    return [described(one, method, SAME_NAMES) for one in pairs]


_RESULTS = frozenset({Role.OUTPUT, Role.GRAD_OUTPUT})


def _lone_records(call: Call, *, is_reference: bool) -> list[Pair]:
    if is_reference:
        return [Pair(record, None) for record in call.records]
    return [Pair(None, record) for record in call.records]


def _full_key(record: TensorRecord, names: NameMap) -> Hashable:
    return (record.site.phase, record.role, record.occurrence, names.tensor(record.name))


def _loose_key(record: TensorRecord, names: NameMap) -> Hashable:
    """Two optimizers may keep other states, or the same in another order: names alone tell which is which.

    So do those of what a module begins with, which `NameMap` has looked at with all shapes and contents.
    """
    name = names.tensor(record.name)
    state = name.partition("|")[2] if record.role in _STATES else ""
    if SUM in name or record.site.phase is Phase.INIT:  # the sum of two parameters is neither
        state = name
    return (record.site.phase, record.role, record.occurrence, record.index, state)


_STATES = frozenset({Role.STATE, Role.STATE_AFTER})
