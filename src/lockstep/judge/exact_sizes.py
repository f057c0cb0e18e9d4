"""Results whose size follows exactly from what goes in, however noisy that is: norms, and tensors times one number.

Statistics hold the Euclidean norm of each tensor in double precision. A norm is that number, and a tensor times `a` has
`|a|` times it. So each run's result is held against what entered that run: noise of the inputs hides nothing there.

A norm adds up squares, which have one sign, so its roundings grow as those of a sum do (`judge.bounds.growth`). Each
element of a product is off by a rounding of its own at most, so the norm of all is too, by the triangle inequality.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lockstep.core.finding import Evidence
from lockstep.core.operators import Argument
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.judge.bounds import floats, growth, subnormal_rounding
from lockstep.judge.protocol import Judgement, Operation
from lockstep.judge.tolerances import NOISE_MARGIN, SINGLE
from lockstep.measure.measured_pair import Measured

_NORMS = frozenset({"norm", "vectornorm", "linalgvectornorm"})
_UNSCALES = "ampnonfinitecheckandunscale"
_MULTIPLIES = frozenset({"mul", "multiply", _UNSCALES})
_EUCLIDEAN = (2, 2.0, "fro", None)
_ORDERS = (Argument("p", 1, 2.0), Argument("ord", 1, 2.0))
_MEASURED = (Evidence.SKETCH, Evidence.TENSORS)


def with_exact_size(judgement: Judgement, operation: Operation, output: Measured) -> Judgement:
    """Return the judgement of a result; not explained if the size of one run's is not what its own input makes it.

    Parameters
    ----------
    judgement
        What is said of the distance.
    operation, output
        As `lockstep.judge.protocol.Judge.operator` gets them.
    """
    if judgement.unexplained or not _may_be_told(operation, output):
        return judgement
    if operation.name in _NORMS:
        found = _beyond_norm(operation, output)
    elif operation.name in _MULTIPLIES:
        found = _beyond_product(operation, output)
    else:
        return judgement
    if len(found) != 1:  # where both are off, it is not that operator
        return judgement
    ((run, (share, allowed)),) = found.items()
    words = (
        f"the {run}'s result has {1.0 + share:.9g} times the size that its own input makes it,"
        f" where rounding explains {allowed:.2g}"
    )
    return replace(
        judgement, tolerance=allowed, beyond_floor=True, unexplained=True, open=False, words=words, wrong_run=run
    )  # fmt: skip


_Beyond = dict[str, tuple[float, float]]
"""By run: what its size is off, and what may be, as shares of it."""


def _may_be_told(operation: Operation, output: Measured) -> bool:
    """Whether norms of all tensors are known as this tool takes them, and one operator is what both runs call."""
    return (
        not operation.gradients
        and not operation.setting_differs
        and output.pair.present.role is Role.OUTPUT
        and all(
            one.metrics.evidence in _MEASURED or one.equal for one in (*operation.inputs, output)
        )
    )


def _beyond_norm(operation: Operation, output: Measured) -> _Beyond:
    """Of a norm over all elements of a tensor."""
    tensors = floats(operation.inputs)
    orders = [one.of(operation.arguments) for one in _ORDERS]
    if output.numel != 1 or len(tensors) != 1 or any(one not in _EUCLIDEAN for one in orders):
        return {}
    if "linalg.norm" in operation.op or "linalg_norm" in operation.op:
        return {}  # of a matrix it may be another one
    allowed = NOISE_MARGIN * (output.unit + SINGLE * growth(tensors[0].numel))
    return _beyond(tensors[:1], output, allowed)


def _beyond_product(operation: Operation, output: Measured) -> _Beyond:
    """Of a tensor times one number."""
    tensors = floats(operation.inputs)
    if operation.name == _UNSCALES:
        tensors = [one for one in tensors if one.pair.present.name != _FLAG]
    numbers = [one for one in operation.arguments.values() if isinstance(one, (int, float))]
    one_number = len(tensors) == 2 and not numbers and tensors[1].numel == 1
    if not one_number or tensors[0].numel != output.numel:
        return {}
    unit = max(one.unit for one in (*tensors, output))
    return _beyond(tensors, output, NOISE_MARGIN * unit)


_FLAG = "args.1"
"""What a gradient scaler sets where a gradient is not finite."""


def _beyond(tensors: Sequence[Measured], output: Measured, allowed: float) -> _Beyond:
    """The runs whose result has another size than the product of the sizes of these tensors."""
    found = {}
    subnormal = NOISE_MARGIN * subnormal_rounding(tensors, output)
    for run in ("reference", "candidate"):
        sizes = [_size(_side(one, run)) for one in (output, *tensors)]
        expected = math.prod(sizes[1:])
        if not (all(map(math.isfinite, sizes)) and expected > 0):
            return {}
        share = sizes[0] / expected - 1.0
        if abs(share) > allowed + subnormal / expected:
            found[run] = (share, allowed)
    return found


def _side(one: Measured, run: str) -> TensorRecord | None:
    return one.pair.reference if run == "reference" else one.pair.candidate


def _size(record: TensorRecord | None) -> float:
    """Its Euclidean norm; NaN where that is not known, not of all ranks' parts, or not of finite elements alone."""
    known = None if record is None or record.content.note else record.statistics
    return math.nan if known is None or known.nan_count or known.inf_count else known.norm
