"""Which calls pass tensors between ranks, and between which. Knows no torch."""

from __future__ import annotations

import re
from dataclasses import replace

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.step_events import Operator, Taken

REDUCTION = "reduction of gradients"
"""Operator of the call that stands for a wrapper's exchange of gradients, which no script calls; its `factor` is what
the sum over the ranks is multiplied by."""

FACTOR = "factor"

_DISTRIBUTED = "torch.distributed.distributed_c10d."
_SINGLE_NAMES = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
}
_RUN_AGAIN = frozenset(
    {"all_gather", "all_reduce", "broadcast", "reduce", "reduce_scatter", *_SINGLE_NAMES}
)
_FILLED = frozenset({"all_gather", "reduce_scatter"})
"""Exchanges whose first argument is what they give."""

MEMBER = 1 << 20
"""Inputs of the second member of an exchange are numbered from here on, those of the third from twice as much."""


def exchange_of(call: Call) -> str:
    """What a call passes between ranks: "all_reduce"; "" where it does not, or by a way that is not run again."""
    if call.site.op == REDUCTION:
        return REDUCTION
    name = call.site.op.removeprefix(_DISTRIBUTED)
    if name == call.site.op or name not in _RUN_AGAIN or not members_of(call):
        return ""
    return _SINGLE_NAMES.get(name, name)


def members_of(call: Call) -> tuple[int, ...]:
    """The numbers of the ranks that take part, as `torch.distributed` counts them in all; () where it is not told."""
    told = str(call.arguments.get("kwargs.group"))
    return tuple(map(int, re.findall(r"\d+", told))) if told.startswith("ranks ") else ()


def number_of(rank: str) -> int:
    """The number of a rank by its name in a recording: 3 of "rank3"."""
    return int(rank.removeprefix("rank"))


def leaves_open(call: Call) -> bool:
    """Whether an exchange gives its rank nothing that is told: behind a `reduce`, all but one hold what happens to lie
    there."""
    if exchange_of(call) != "reduce":
        return False
    return call.arguments.get("kwargs.dst") != number_of(call.rank)


def given_to(operator: Operator) -> dict[int, Taken]:
    """What one member gives to an exchange, without what the exchange gives it."""
    filled = exchange_of(operator.call) in _FILLED
    return {
        index: replace(taken, detached=True)
        for index, taken in operator.taken.items()
        if not (filled and taken.record.name.startswith("args.0"))
    }


def takes_gradient(call: Call) -> TensorRecord | None:
    """A result of an exchange through which a gradient goes back; None where none does."""
    results = call.with_role(Role.OUTPUT)
    return next((one for one in results if one.edge is not None and one.edge > 0), None)
