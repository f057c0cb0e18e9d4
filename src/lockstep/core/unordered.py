"""Operators that add or write in an order which nobody fixes, so that the same run twice may differ there.

The list is torch's own: what `torch.use_deterministic_algorithms` makes deterministic or refuses, by operator, device
and pass (docstring of torch 2.13.0; a test compares it with the installed one). Left out are `bmm` of sparse tensors,
and `resize_` of quantized ones, which are not recorded as such. A GPU of AMD is `cuda` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.core.operators import Argument, canonical_name

ADDITIONS, WRITES = "atomic additions", "the last of several writes to one place"

FORWARD, BACKWARD = frozenset({"forward"}), frozenset({"backward"})
CPU, CUDA = frozenset({"cpu"}), frozenset({"cuda"})
ANY_DEVICE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unordered:
    """Where an operator's order is not fixed.

    Parameters
    ----------
    passes
        "forward", "backward" or both.
    devices
        Types of devices; empty for all.
    cause
        What nobody orders.
    accumulates
        The value of the argument `accumulate` that it holds for; None for operators without it.
    """

    passes: frozenset[str]
    devices: frozenset[str]
    cause: str
    accumulates: bool | None = None


LISTED: Mapping[Unordered, str] = {
    Unordered(FORWARD | BACKWARD, CUDA, ADDITIONS): """
        conv1d conv2d conv3d convtranspose1d convtranspose2d convtranspose3d
    """,
    Unordered(BACKWARD, CUDA, ADDITIONS): """
        replicationpad1d replicationpad2d replicationpad3d gather indexselect repeatinterleave maxpool3d avgpool3d
        adaptiveavgpool2d adaptiveavgpool3d adaptivemaxpool2d fractionalmaxpool2d fractionalmaxpool3d interpolate
        reflectionpad1d reflectionpad2d reflectionpad3d ctcloss embeddingbag gridsample
    """,
    Unordered(BACKWARD, CPU, ADDITIONS): "getitem",
    Unordered(FORWARD, CUDA, ADDITIONS): """
        scatteradd indexadd scatterreduce nllloss histc bincount cumsum
    """,
    Unordered(FORWARD, CUDA, WRITES): "scatter median",
    Unordered(FORWARD, CPU | CUDA, WRITES): "indexcopy",
    Unordered(FORWARD, ANY_DEVICE, WRITES): "maxunpool1d maxunpool2d maxunpool3d",
    Unordered(FORWARD, CPU, ADDITIONS, accumulates=True): "indexput put",
    Unordered(FORWARD, CUDA, ADDITIONS, accumulates=True): "put",
    Unordered(FORWARD, ANY_DEVICE, WRITES, accumulates=False): "indexput put",
}
"""By canonical names of operators."""

_ROWS = [(name, row) for row, names in LISTED.items() for name in names.split()]
_ACCUMULATE = Argument("accumulate", 3, default=False)


def why_unordered(op: str, device: str, arguments: Mapping[str, Any], *, backward: bool) -> str:
    """Return what of an operator's order is not fixed; "" where it is, or where torch does not tell.

    Parameters
    ----------
    op
        As recorded.
    device
        Of its result, as "cuda:0".
    arguments
        Those of the call that are no tensors.
    backward
        Whether it is about gradients that it sends.

    Examples
    --------
    >>> why_unordered("torch.Tensor.index_add_", "cuda:0", {}, backward=False)
    'order not fixed: index_add_ (atomic additions)'
    >>> why_unordered("torch.Tensor.index_add_", "cpu", {}, backward=False)
    ''
    """
    name, kind = canonical_name(op), device.partition(":")[0]
    here = "backward" if backward else "forward"
    for listed, row in _ROWS:
        if listed != name or here not in row.passes or (row.devices and kind not in row.devices):
            continue
        if row.accumulates in (None, bool(_ACCUMULATE.of(arguments))):
            plain = op.split(".")[1] if op.startswith("aten.") else op.rpartition(".")[2]
            return f"order not fixed: {plain} ({row.cause})"
    return ""
