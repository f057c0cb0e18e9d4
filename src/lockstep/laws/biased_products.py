"""Results in 16 bits of calls that add a bias to a sum of products, where both runs gave them the same numbers.

A bound on norms cannot tell a product that is rounded before its bias is added from one that is truncated; the inputs
can (`lockstep.replay.verdicts.rounded_products`). A recording holds few inputs whole. The run's own program gives the
others, and that these are the ones which were recorded their digests show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch

from lockstep.core.records import Array, Call, TensorRecord, would_differ
from lockstep.core.site import Role
from lockstep.devices.tensor_numbers import digest_of
from lockstep.laws.step_events import Node, NotApplicable, Operator, is_whole
from lockstep.laws.step_sides import Side
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision
from lockstep.replay.verdicts.rounded_products import addend_of, follows_by_rounding

_Pair = tuple[Operator, Operator]


def rounded_products(left: Side, right: Side) -> Iterator[tuple[int, int]]:
    """Contents of the reference and the candidate that are results of such calls, and follow by rounding alone.

    Both programs are one, call by call. Each call took in both runs the same numbers, bit by bit, gave others, and each
    run's result is what one of the two ways to round gives of them.
    """
    pairs = list(_on_equal_inputs(left, right))
    wanted = {node for one, _ in pairs for node in _not_whole(one)}
    if not wanted:
        return
    values = _values(left, wanted)
    for one, two in pairs:
        calls = [_with_inputs(each.call, one, values) for each in (one, two)]
        sides = zip((left, right), calls, strict=True)
        if all(call is not None and _follows(side, call) for side, call in sides):
            yield _result(one.call).content.id, _result(two.call).content.id


def _on_equal_inputs(left: Side, right: Side) -> Iterator[_Pair]:
    one, two = (list(side.program.operators) for side in (left, right))
    if len(one) != len(two):
        return
    for pair in zip(one, two, strict=True):
        calls = [each.call for each in pair]
        if not all(map(_is_biased, calls)) or calls[0].site.op != calls[1].site.op:
            continue
        results = list(map(_result, calls))
        entering = [call.with_role(Role.INPUT) for call in calls]
        if (
            calls[0].arguments == calls[1].arguments
            and not _are_equal(*results)
            and len(entering[0]) == len(entering[1])
            and all(_are_equal(*both) for both in zip(*entering, strict=True))
        ):
            yield pair


def _is_biased(call: Call) -> bool:
    """Whether a call adds to a sum of products, and its one result is in 16 bits."""
    made = call.with_role(Role.OUTPUT)
    return (
        len(made) == 1 and made[0].dtype in ("bfloat16", "float16") and addend_of(call) is not None
    )


def _result(call: Call) -> TensorRecord:
    return call.with_role(Role.OUTPUT)[0]


def _are_equal(one: TensorRecord, two: TensorRecord) -> bool:
    alike = (one.dtype, one.shape) == (two.dtype, two.shape)
    return alike and one.digest == two.digest and would_differ(one.digest, two.digest)


def _not_whole(operator: Operator) -> Iterator[Node]:
    """Results that a call takes and that were not recorded whole."""
    for taken in operator.taken.values():
        if isinstance(taken.link, Node) and not is_whole(taken.record):
            yield taken.link


def _values(side: Side, wanted: Iterable[Node]) -> Mapping[Node, torch.Tensor]:
    """What this machine makes of some results in their recorded dtypes; fewer where it has no kernel for a call."""
    nodes, found = frozenset(wanted), dict[Node, torch.Tensor]()

    def seen(node: Node, value: torch.Tensor) -> None:
        if node in nodes:
            found[node] = value.clone()

    try:
        side.double.run(side.recorded, precision=Precision.OWN, decided=True, keep=False, seen=seen)
    except (NotApplicable, CannotReplay):
        return found
    return found


def _with_inputs(
    call: Call, operator: Operator, values: Mapping[Node, torch.Tensor]
) -> Call | None:
    """A call with all of its inputs; None where one is not there, or is another than was recorded."""
    records = []
    for record in call.records:
        taken = operator.taken.get(record.index) if record.role is Role.INPUT else None
        if taken is None or is_whole(record):
            records.append(record)
            continue
        made = values.get(taken.link) if isinstance(taken.link, Node) else None
        if made is None or not _is_of(made, record):
            return None
        content = replace(record.content, loader=partial(_elements, made))
        records.append(replace(record, content=content))
    return replace(call, records=tuple(records))


def _is_of(made: torch.Tensor, record: TensorRecord) -> bool:
    """Whether a tensor is the one that was recorded, bit by bit."""
    alike = (str(made.dtype).removeprefix("torch."), tuple(made.shape)) == (
        record.dtype,
        record.shape,
    )
    return alike and digest_of(made.contiguous()) == record.digest


def _elements(made: torch.Tensor) -> Array:
    return made.float().numpy() if made.dtype.is_floating_point else made.numpy()


def _follows(side: Side, call: Call) -> bool:
    sketch = side.numbers.finite_sketch(_result(call))
    try:
        return sketch is not None and follows_by_rounding(call, sketch)
    except CannotReplay:
        return False
