"""Run `torch.autograd.grad` again, on the graph that the calls before it have built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.step_events import asked_of
from lockstep.replay.calls.refusals import CannotReplay


def asked_gradients(
    call: Call, passed: Mapping[int, torch.Tensor]
) -> Iterator[tuple[TensorRecord, torch.Tensor | None]]:
    """What the call gives for each recorded result.

    passed: By index: the outputs, the inputs, and the gradients that the outputs begin with where the script gave them.

    Raises CannotReplay if the outputs do not depend on the inputs, as in a run without a graph.
    """
    asked = asked_of(call)
    outputs = [passed[index] for index in range(asked.start)]
    inputs = [passed[index] for index in asked]
    begun = [
        passed[index].to(one.dtype)
        for index, one in zip(range(asked.stop, len(passed)), outputs, strict=False)
    ]
    results = call.with_role(Role.OUTPUT)
    if not all(one.requires_grad for one in (*outputs, *inputs)):
        raise CannotReplay("the graph that torch.autograd.grad goes through was not built")
    with torch.enable_grad():
        found: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            outputs,
            inputs,
            begun or None,
            retain_graph=True,
            create_graph=bool(call.arguments["kwargs.create_graph"]),
            allow_unused=True,
        )
    given = [one for one in found if one is not None]
    if len(given) != len(results):
        raise CannotReplay("torch.autograd.grad reaches other inputs when run again")
    for record, one in zip(results, given, strict=True):
        yield record, one if tuple(one.shape) == record.shape else None
