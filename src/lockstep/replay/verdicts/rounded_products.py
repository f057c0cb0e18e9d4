"""Calls in 16 bits that round a sum of products once, or a second time before they add a bias to it.

Both round to nearest, so both are correct, and two devices may differ in it. A bound on norms cannot tell that from a
kernel that truncates. Here each form is made from what the run itself gave to the call, so almost no room is left: only
an element that lies so near the middle of two 16-bit numbers that the order of a sum takes it across.

With `s` the sum of `n` products in double precision and `e = ORDER sqrt(n) 2^-24 sum |x_k w_k|` what its order may move
it by (Higham and Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41, 2019), a
result lies between the forms of `s - e` and `s + e`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import operator_of
from lockstep.core.records import Call, Sketch, TensorRecord
from lockstep.core.site import Role
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.core.sketch import distance as distance_of_sketches
from lockstep.devices.tensor_numbers import numbers_of
from lockstep.judge.tolerances import SKETCHED_ALIKE
from lockstep.replay.calls.one_call import OneCall, one_call
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision
from lockstep.replay.calls.torch_state import leaving_no_trace, torch_may_refuse
from lockstep.replay.error_bounds.distance import error_of, rounded, size_of

ORDER = 4.0
"""Standard deviations of the error of a sum of products whose roundings are drawn independently."""

_SINGLE = unit_roundoff("float32")
_OF_SKETCHES = 2.0**-40
"""Relative error of the sums that a sketch is made of, in double precision."""


def follows_by_rounding(call: Call, sketch: Sketch) -> bool:
    """Whether the result of a call that adds a bias to a sum of products is what one of the two forms gives.

    call: With one result in 16 bits, and its inputs whole.
    sketch: Of the result, which is finite.

    Raises CannotReplay if it cannot be run again.
    """
    (result,) = call.with_role(Role.OUTPUT)
    with torch_may_refuse(), leaving_no_trace(), torch.no_grad():
        return any(_is_of(form, result, sketch) for form in _forms(call, result))


def _is_of(form: _Form, result: TensorRecord, sketch: Sketch) -> bool:
    if result.content.numel <= SKETCH_SIZE:  # its own sketch
        elements = torch.from_numpy(sketch[: result.content.numel].copy())
        return form.holds(elements.reshape(result.shape))
    row = form.made.reshape(-1).contiguous()
    made = numbers_of(row, with_sketch=True)[1]
    if made is None or not bool(row.isfinite().all()):
        return False
    slack = _OF_SKETCHES * size_of(row).norm
    return distance_of_sketches(sketch, made) <= SKETCHED_ALIKE * form.reach + slack


@dataclass(frozen=True, slots=True)
class _Form:
    """What a kernel makes, and what it may make of the sum at both ends of what its order may move it by."""

    made: torch.Tensor
    ends: tuple[torch.Tensor, torch.Tensor]

    def holds(self, actual: torch.Tensor) -> bool:
        """Whether each element lies within the ends."""
        low, high = torch.minimum(*self.ends), torch.maximum(*self.ends)
        return bool(((low <= actual) & (actual <= high)).all())

    @property
    def reach(self) -> float:
        """How far any result within the ends may be from what is made: Euclidean."""
        return math.hypot(*(error_of(end, self.made).norm for end in self.ends))


def _forms(call: Call, result: TensorRecord) -> Iterator[_Form]:
    """The result rounded once, and with the sum of products rounded before."""
    again, added = one_call(call), addend_of(call)
    taken = again.passed(lambda _: None, load, Precision.DOUBLE)
    passed = {index: widened(one) for index, one in taken.items()}
    if added is None or added not in passed:
        raise CannotReplay("nothing is added")
    bare = {**passed, added: torch.zeros_like(passed[added])}
    sizes = {index: one.abs() for index, one in bare.items()}
    whole, products, size = (_result(again, given) for given in (passed, bare, sizes))
    noise = ORDER * math.sqrt(_terms(call)) * _SINGLE * size
    dtype, rest = torch_dtype(result.dtype), whole - products
    sums = products, products - noise, products + noise
    once = [rounded(one + rest, dtype) for one in sums]
    twice = [rounded(rounded(one, dtype) + rest, dtype) for one in sums]
    for made, low, high in (once, twice):
        yield _Form(made, (low, high))


def _result(again: OneCall, passed: dict[int, torch.Tensor]) -> torch.Tensor:
    ((_, found),) = again.results(passed, Precision.DOUBLE)
    if found is None:
        raise CannotReplay(f"{again.call.site.op} returns a different shape when run again")
    return found


def _terms(call: Call) -> int:
    """How many products an element is a sum of."""
    operator = operator_of(call.site.op)
    shapes = {one.index: one.shape for one in call.with_role(Role.INPUT)}
    product = operator.product
    if product is None or product.contracted is None:
        raise CannotReplay("it is no sum of products")
    if operator.convolves:
        return max(1, product.terms(shapes[product.right]))
    left = shapes[product.left]
    return max(1, left[product.contracted[0]] if left else 1)


def addend_of(call: Call) -> int | None:
    """The input that is added to a sum of products; None where none is."""
    product = operator_of(call.site.op).product
    entering = {one.index for one in call.with_role(Role.INPUT)}
    if product is None or product.added is None or call.site.op.endswith("_"):
        return None
    return product.added if len(entering) == 3 and product.added in entering else None
