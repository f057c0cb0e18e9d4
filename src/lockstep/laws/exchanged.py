"""What a call that passes tensors between ranks gives to one of them, in double precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.exchanges import (
    FACTOR,
    MEMBER,
    REDUCTION,
    exchange_of,
    leaves_open,
    members_of,
    number_of,
)
from lockstep.replay.calls.refusals import CannotReplay


def exchanged(
    call: Call, passed: Mapping[int, torch.Tensor]
) -> Iterator[tuple[TensorRecord, torch.Tensor | None]]:
    """The results of an exchange on the rank of `call`.

    Parameters
    ----------
    passed
        What all members give: the second's from `MEMBER` on, the third's from twice as much.

    Raises
    ------
    CannotReplay
        If its operation is none of those that are known.
    """
    members: dict[int, list[torch.Tensor]] = {}
    for index, tensor in sorted(passed.items()):
        members.setdefault(index // MEMBER, []).append(tensor)
    given = list(members.values())
    for record in call.with_role(Role.OUTPUT):
        made = _result(call, given, record.index)
        fits = made.numel() == record.content.numel
        yield record, made.reshape(record.shape) if fits else None


def _result(call: Call, given: Sequence[Sequence[torch.Tensor]], index: int) -> torch.Tensor:
    name = exchange_of(call)
    first = [one[0] for one in given]
    if name == REDUCTION:
        return torch.stack(first).sum(0) * float(call.arguments[FACTOR])
    members = members_of(call)
    place = members.index(number_of(call.rank))
    if name == "all_reduce":
        return _reduced(call, first)
    if name == "reduce":
        return first[place] if leaves_open(call) else _reduced(call, first)
    if name == "broadcast":
        return first[members.index(int(call.arguments["kwargs.src"]))]
    if name == "all_gather":
        several = len(call.with_role(Role.OUTPUT)) == len(first) > 1
        return first[index] if several else torch.cat([one.reshape(-1) for one in first])
    if len(given[0]) > 1:  # reduce_scatter of lists
        return _reduced(call, [one[place] for one in given])
    whole = _reduced(call, [one.reshape(-1) for one in first])
    return whole.chunk(len(members))[place]


def _reduced(call: Call, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(list(tensors))
    operation = call.arguments.get("kwargs.op", "sum")
    if operation == "sum":
        return stacked.sum(0)
    if operation == "avg":
        return stacked.mean(0)
    if operation == "max":
        return stacked.amax(0)
    if operation == "min":
        return stacked.amin(0)
    if operation == "product":
        return stacked.prod(0)
    raise CannotReplay(f"ranks reduce by {operation}, which is not run again")
