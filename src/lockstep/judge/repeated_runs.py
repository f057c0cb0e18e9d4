"""Judging operators whose order nobody fixes: within what the reference moves from run to run, none is at fault.

Atomic additions come in another order each time, so a sum that cancels differs by more than the rounding of its result.
How far is measured: the reference, recorded twice on its own device (`--noise`). A difference within
`REPEATED_MARGIN` times that is no fault of the operator; a larger one stays what it is, so nothing is covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.core.finding import CallPair
from lockstep.core.operators import Argument, canonical_name
from lockstep.judge.protocol import Judge, Judgement, Operation, Region, is_gradient
from lockstep.judge.tolerances import CALIBRATION_MARGIN, REPEATED_ELEMENTS, REPEATED_MARGIN
from lockstep.measure.measured_pair import Measured

if TYPE_CHECKING:
    from lockstep.judge.calibration import SiteNoise


class OrderJudge:
    """Asks another judge, and knows the order of additions; a `lockstep.judge.protocol.Judge`.

    Parameters
    ----------
    judge
        The one that is asked.
    spread
        How far other runs of the reference are from it; None where there are none.
    """

    def __init__(self, judge: Judge, spread: SiteNoise | None) -> None:
        self._judge, self._spread = judge, spread

    @property
    def name(self) -> str:
        """As the other judge has it."""
        return self._judge.name

    @property
    def looks_at_set_up(self) -> bool:
        """As the other judge does."""
        return self._judge.looks_at_set_up

    def notes(self) -> Sequence[str]:
        """Return the other judge's notes."""
        return self._judge.notes()

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call."""
        found = self._judge.operator(operation, output)
        if not found.unexplained or not output.floating:
            return found
        why = _why_unordered(operation, output)
        return self._within_spread(found, output, why) if why else found

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that it was computed from, as the other judge does."""
        return self._judge.passage(sources, target, region=region)

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step, as the other judge does."""
        return self._judge.update(entering, output, calls=calls)

    def _within_spread(self, found: Judgement, output: Measured, why: str) -> Judgement:
        spread = None if self._spread is None else self._spread.of(output)
        said = f"{found.words}; {why}" if found.words else why
        if spread is None:
            return replace(
                found,
                words=f"{said}; how far that goes, the reference recorded twice tells (--noise)",
            )
        many = output.numel >= REPEATED_ELEMENTS
        allowed = spread * (REPEATED_MARGIN if many else CALIBRATION_MARGIN)
        scale = output.norm if output.norm > 0 else 1.0
        share = spread / scale
        if output.distance > allowed:
            return replace(
                found, words=f"{said}, which moves the reference by {share:.2g} from run to run"
            )
        return Judgement.handed_on(
            output, floor=allowed, inherited=0.0,
            words=f"{why}, which moves the reference by {share:.2g} from run to run",
        )  # fmt: skip


def _why_unordered(operation: Operation, output: Measured) -> str:
    """What is not fixed on the device of either run, in words; "" for nothing."""
    sides = (output.pair.reference, output.pair.candidate)
    said = (
        why_unordered(
            operation.op, one.content.device, operation.arguments, backward=is_gradient(output)
        )
        for one in sides
        if one is not None
    )
    return next(filter(None, said), "")


# Operators that add or write in an order which nobody fixes, so that the same run twice may differ there.
#
# The list is torch's own: what `torch.use_deterministic_algorithms` makes deterministic or refuses, by operator, device
# and pass (docstring of torch 2.13.0; a test compares it with the installed one). Left out are `bmm` of sparse tensors,
# and `resize_` of quantized ones, which are not recorded as such. A GPU of AMD is `cuda` too.

ADDITIONS, WRITES = "atomic additions", "the last of several writes to one place"

FORWARD, BACKWARD = frozenset({"forward"}), frozenset({"backward"})
CPU, CUDA = frozenset({"cpu"}), frozenset({"cuda"})
ANY_DEVICE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unordered:
    """Where an operator's order is not fixed.

    passes: "forward", "backward" or both.
    devices: Types of devices; empty for all.
    cause: What nobody orders.
    accumulates: The value of the argument `accumulate` that it holds for; None for operators without it.
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
