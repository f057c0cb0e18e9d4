"""Parameters of the reference that are one in the candidate, their sum: the calls of one put together.

A term of a sum has the gradient of the sum, so backward gives one tensor to each of them, and each update adds as much
to its term as the candidate's adds to the whole. Where all of them learn, their sum moves as many times as far: what an
update leaves is therefore held to be the other terms as they were, and the first as it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lockstep.align.names import SUM
from lockstep.core.records import Call, Content, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.kernels.numbers import statistics_of

_ONE_EACH = frozenset({CallKind.GRADIENT, CallKind.OPTIMIZER})
"""Kinds of calls that are of one parameter."""


def with_sums(calls: Sequence[Call], names: Collection[str]) -> Sequence[Call]:
    """Return the calls of a step with those of added parameters put together, as far as they are one.

    calls: All of one step of the reference.
    names: Names of parameters, of which those count that are made of several: `"a + b"`.
    """
    sums = {part: name for name in names if SUM in name for part in name.split(SUM)}
    if not sums:
        return calls
    held = _held(calls, sums)
    groups: dict[Hashable, list[Call]] = defaultdict(list)
    times: Counter[Hashable] = Counter()
    for call in calls:
        part = _parameter_of(call)
        if call.kind in _ONE_EACH and part in sums:
            times[call.kind, part] += 1
            groups[call.kind, sums[part], times[call.kind, part]].append(call)
    together = {group[0].id: _together(group, sums, held) for group in groups.values()}
    left_out = {call.id for group in groups.values() if together[group[0].id] for call in group[1:]}
    return [
        together.get(call.id) or _with_initial(call, sums, held)
        for call in calls
        if call.id not in left_out
    ]


def moved_apart(calls: Iterable[Call], names: Collection[str]) -> tuple[str, ...]:
    """Names of sums of which several parts are updated in a step: they move further than what is one."""
    updated = {
        record.name
        for call in calls
        if call.kind is CallKind.OPTIMIZER
        for record in call.with_role(Role.PARAM_AFTER)
    }
    return tuple(name for name in names if len(updated & set(name.split(SUM))) > 1)


Held = Mapping[str, Content]


def _held(calls: Iterable[Call], sums: Mapping[str, str]) -> Held:
    """Each part as the step found it."""
    found: dict[str, Content] = {}
    for call in calls:
        for record in call.with_role(Role.PARAM, Role.INPUT):
            if record.name in sums:
                found.setdefault(record.name, record.content)
    return found


def _parameter_of(call: Call) -> str:
    return call.records[0].name.partition("|")[0] if call.records else ""


def _together(group: Sequence[Call], sums: Mapping[str, str], held: Held) -> Call | None:
    """The calls of all parts as one; None where their gradients are not one tensor."""
    gradients = {record.content.id for call in group for record in call.with_role(Role.PARAM_GRAD)}
    if len(gradients) != 1:
        return None
    part = _parameter_of(group[0])
    others = [held.get(one) for one in sums[part].split(SUM) if one != part]
    return replace(group[0], records=tuple(_of_sum(group, part, sums[part], others)))


def _of_sum(
    group: Sequence[Call], part: str, name: str, others: Sequence[Content | None]
) -> Iterator[TensorRecord]:
    for record in group[0].records:
        content: Content | None = record.content
        if record.role in (Role.PARAM, Role.PARAM_AFTER):
            content = added([record.content, *others])
        elif not _is_in_all(record, part, group):
            continue
        if content is not None:
            whole = name + record.name.removeprefix(part)
            yield replace(record, name=whole, content=content)


def _is_in_all(record: TensorRecord, part: str, group: Sequence[Call]) -> bool:
    """Whether each part has the same gradient or state."""
    kept = (record.role, record.name.removeprefix(part), record.content.id)
    return all(
        any(
            (one.role, one.name.removeprefix(_parameter_of(call)), one.content.id) == kept
            for one in call.records
        )
        for call in group
    )


def _with_initial(call: Call, sums: Mapping[str, str], held: Held) -> Call:
    """A call that tells the initial parameters of a module, with sums in place of their parts."""
    if call.kind is not CallKind.INIT or not any(one.name in sums for one in call.records):
        return call
    records: list[TensorRecord] = []
    for record in call.records:
        name = sums.get(record.name, "")
        content = added([held.get(one) for one in name.split(SUM)]) if name else None
        if content is None:
            records.append(record)
        elif record.name == name.split(SUM)[0]:
            records.append(replace(record, name=name, content=content))
    return replace(call, records=tuple(records))


def added(contents: Sequence[Content | None]) -> Content | None:
    """The sum of tensors of one shape; None where one of them was not saved whole."""
    known = [one for one in contents if one is not None and one.loader is not None]
    if len(known) < len(contents) or len({one.shape for one in known}) != 1:
        return None
    first = known[0]
    number = -2  # below all that are in a recording, and the same for the same parts
    for one in known:
        number = number * _MOST_CONTENTS - one.id
    total = np.add.reduce([one.load() for one in known])
    numbers = statistics_of(total)
    return Content(
        number, first.dtype, first.shape, first.device, None, numbers, loader=lambda: total
    )


_MOST_CONTENTS = 1 << 40
