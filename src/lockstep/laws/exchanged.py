"""What a call that passes tensors between ranks gives to one of them, in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.exchanges import (
    AXIS,
    BY,
    COMPLETION,
    FACTOR,
    GATHERING,
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

    passed: What all members give: the second's from `MEMBER` on, the third's from twice as much.

    Raises CannotReplay if its operation is none of those that are known.
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
    if name == GATHERING:
        whole = torch.cat(first, int(call.arguments[AXIS]))
        return whole.detach() + (whole - whole.detach()) / len(first)
    if name == COMPLETION:
        return _completed(str(call.arguments[BY]), torch.stack(first))
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


def _completed(by: str, parts: torch.Tensor) -> torch.Tensor:
    """Partial results of all ranks put together; a number is the order of a norm."""
    if by.replace(".", "", 1).isdigit():
        norm: torch.Tensor = torch.linalg.vector_norm(parts, float(by), dim=0)
        return norm
    return _by_name(by, parts)


def _reduced(call: Call, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return _by_name(str(call.arguments.get("kwargs.op", "sum")), torch.stack(list(tensors)))


def _by_name(operation: str, stacked: torch.Tensor) -> torch.Tensor:
    if operation not in _REDUCTIONS:
        raise CannotReplay(f"ranks reduce by {operation}, which is not run again")
    return _REDUCTIONS[operation](stacked)


_REDUCTIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda stacked: stacked.sum(0),
    "avg": lambda stacked: stacked.mean(0),
    "max": lambda stacked: stacked.amax(0),
    "min": lambda stacked: stacked.amin(0),
    "product": lambda stacked: stacked.prod(0),
}
