"""Name the operators of a recording as ptdbg_ascend and mindstudio-probe do: `Functional.linear.0`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.recordings import Call, CallKind, Phase, Role, TensorRecord

_KINDS = {
    "torch.nn.functional.": "Functional", "torch.Tensor.": "Tensor", "torch.distributed.": "Distributed",
    "torch.ops.aten.": "Aten", "torch_npu.": "NPU", "torch.": "Torch",
}  # fmt: skip
_OF_VF = frozenset(
    (
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    )
)
"""Functions that torch.nn calls through `torch._VF`, which those tools watch under that name."""

PASSES = {
    Phase.FORWARD: ((Role.INPUT,), (Role.OUTPUT,)),
    Phase.BACKWARD: ((Role.GRAD_OUTPUT,), (Role.GRAD_INPUT, Role.PARAM_GRAD)),
}
"""What goes into a call and what comes out, forward and backward."""


@dataclass(frozen=True, slots=True)
class ApiPass:
    """The forward or the backward of one operator.

    api: Kind, name and number of the call: "Functional", "linear", 0. Numbers go on from step to step.
    phase: Forward or backward.
    call: The call.
    entering, leaving: Its tensors, in order; gradients in the order in which they were seen.
    """

    api: tuple[str, str, int]
    phase: Phase
    call: Call
    entering: tuple[TensorRecord, ...]
    leaving: tuple[TensorRecord, ...]

    def name(self, mark: str) -> str:
        """`Functional_linear_0_forward` with the mark `_`."""
        kind, name, number = self.api
        return mark.join((kind, name, str(number), self.phase.value))


class ApiNumbers:
    """Numbers the calls of each operator, from the first dump of a process to the last."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def of(self, call: Call) -> tuple[str, str, int]:
        """Kind, name and number of the next call."""
        api = api_of(call.site.op)
        self._seen[api] += 1
        return (*api, self._seen[api] - 1)


def api_of(op: str) -> tuple[str, str]:
    """Kind and name of an operator.

    >>> api_of("torch.nn.functional.linear"), api_of("torch.lstm"), api_of("package.Scale")
    (('Functional', 'linear'), ('VF', 'lstm'), ('Function', 'Scale'))
    """
    if op.removeprefix("torch.") in _OF_VF:
        return "VF", op.removeprefix("torch.")
    for start, kind in _KINDS.items():
        if op.startswith(start):
            return kind, op.removeprefix(start)
    return "Function", op.rpartition(".")[2]


def passes_of(calls: list[Call], numbers: ApiNumbers) -> Iterator[ApiPass]:
    """The operators of one step, forward and backward, in order of time."""
    found = []
    for call in calls:
        if call.kind is not CallKind.OPERATOR:
            continue
        api = numbers.of(call)
        for phase, roles in PASSES.items():
            entering, leaving = (call.with_role(*role) for role in roles)
            if phase is Phase.FORWARD or entering or leaving:
                seen = [one.sequence for one in (*entering, *leaving)]
                first = call.sequence if phase is Phase.FORWARD else min(seen)
                found.append((first, ApiPass(api, phase, call, entering, leaving)))
    for _, one in sorted(found, key=lambda item: item[0]):
        yield one


def place_of(record: TensorRecord, call: Call) -> str:
    """Where a tensor stands among the arguments or results of its call: "0", "1.0", or the name of a keyword.

    The gradient of a parameter stands where the parameter does.
    """
    name = record.argument or record.name
    if record.role is Role.PARAM_GRAD:
        given = (one for one in call.with_role(Role.INPUT) if one.name == record.name)
        name = next((one.argument or one.name for one in given), name)
    start, _, rest = name.partition(".")
    if start in ("args", "kwargs", "result", "grad_fn"):
        return rest or "0"
    return str(record.index)
