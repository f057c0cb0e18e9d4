"""A recorded call with inputs that are drawn anew, of the same dtypes, shapes, strides and ranges of numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from lockstep.core.dtypes import is_floating
from lockstep.core.records import Array, Call, Content, Layout, Statistics, TensorRecord
from lockstep.core.site import Role
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.refusals import CannotReplay

_SEED = 0
_SHARE_OF_NONE = 1 / 16
_WIDENED = (torch.bfloat16,)
_MOST_SPREAD = 0.5
"""How far a constant is drawn apart, as a share of it: a constant alone would prove little."""


def drawn(call: Call, written: Collection[str] = ()) -> Call:
    """The call with drawn inputs; results are still to be made, see `with_results`.

    written: Arguments that the operator writes to, as `args.0`: they are its results where it gives nothing.

    Raises CannotReplay if it is not known which numbers an input had, or some were none.
    """
    generator = torch.Generator().manual_seed(_SEED)
    numbers = itertools.count()
    made: dict[int, torch.Tensor] = {}
    inputs = []
    for record in call.with_role(Role.INPUT):
        if record.content.id not in made:
            made[record.content.id] = _drawn(record.content, generator)
        inputs.append(_holding(record, made[record.content.id], next(numbers)))
    results = call.with_role(Role.OUTPUT) or tuple(
        replace(one, role=Role.OUTPUT)
        for one in call.with_role(Role.INPUT)
        if ".".join((one.argument or one.name).split(".")[:2]) in written
    )
    outputs = [replace_content(one, next(numbers)) for one in results]
    # Of a layout its class alone was recorded; strided is what it is without one.
    arguments = {key: value for key, value in call.arguments.items() if key != "kwargs.layout"}
    return replace(call, arguments=arguments, records=(*inputs, *outputs), random_state=None)


def with_gradients(call: Call, outputs: Collection[int]) -> Call:
    """The call with drawn gradients of some outputs, and one to be made of every input that rounds."""
    generator = torch.Generator().manual_seed(_SEED + 1)
    numbers = itertools.count(len(call.records))
    arriving, leaving = [], []
    for record in call.with_role(Role.OUTPUT):
        if record.index in outputs:
            shape, dtype = record.shape, torch_dtype(record.dtype)
            gradient = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
            arriving.append(
                replace(_holding(record, gradient, next(numbers)), role=Role.GRAD_OUTPUT)
            )
    for record in call.with_role(Role.INPUT):
        if is_floating(record.dtype):
            leaving.append(replace(replace_content(record, next(numbers)), role=Role.GRAD_INPUT))
    return replace(call, records=(*call.records, *arriving, *leaving))


def with_results(
    call: Call,
    outputs: Mapping[int, torch.Tensor],
    gradients: Mapping[tuple[int, int], tuple[torch.Tensor, ...]],
) -> Call:
    """The call as if it had been recorded with these results.

    Raises CannotReplay if an output is missing, or of another dtype or shape.
    """
    records = []
    for record in call.records:
        if record.role is Role.OUTPUT:
            made = outputs.get(record.index)
            if made is None or _described(made) != (record.dtype, record.shape):
                raise CannotReplay("it gives a result of another dtype or shape")
            record = _holding(record, made, record.content.id)
        elif record.role is Role.GRAD_INPUT:
            found = gradients.get((record.index, record.occurrence))
            if found is None:
                continue
            record = _holding(record, found[0], record.content.id)
        records.append(record)
    return replace(call, records=tuple(records))


def replace_content(record: TensorRecord, number: int) -> TensorRecord:
    """The record of a tensor that is not there yet; memory that it shared with others is its own."""
    content = replace(record.content, id=number, loader=None, digest=None, sketch_loader=None)
    layout = None if record.layout is None else Layout(record.layout.strides)
    return replace(record, content=content, layout=layout)


def _holding(record: TensorRecord, tensor: torch.Tensor, number: int) -> TensorRecord:
    record = replace_content(record, number)
    array = _array(tensor)
    content = replace(record.content, loader=lambda: array)
    return replace(record, content=content)


def _array(tensor: torch.Tensor) -> Array:
    """As a recording holds it: what NumPy has no dtype for is widened."""
    tensor = tensor.detach().contiguous()
    widened = tensor.dtype in _WIDENED or "float8" in str(tensor.dtype)
    array: Array = (tensor.float() if widened else tensor).numpy()
    return array


def _described(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _drawn(content: Content, generator: torch.Generator) -> torch.Tensor:
    dtype, found = torch_dtype(content.dtype), content.statistics
    if content.numel == 0:
        return torch.empty(content.shape, dtype=dtype)
    if found is None and not dtype.is_floating_point:
        raise CannotReplay("which numbers its inputs held is not known")
    if found is None:  # memory as it was found, which is then written to
        return torch.rand(content.shape, generator=generator, dtype=torch.float64).to(dtype)
    if found.nan_count:
        raise CannotReplay("its inputs held NaN, which is not drawn")
    if dtype.is_complex:
        parts = torch.randn((*content.shape, 2), generator=generator, dtype=torch.float64)
        return torch.view_as_complex(parts).to(dtype)
    if not dtype.is_floating_point:
        return _whole(int(found.minimum), int(found.maximum), content, generator).to(dtype)
    numbers = _numbers(found, content, generator)
    if found.inf_count:
        # A mask: -inf stands for what is left out.
        share = found.inf_count / content.numel
        masked = torch.rand(content.shape, generator=generator) < share
        numbers = numbers.masked_fill(masked, -math.inf)
    return numbers.to(dtype)


def _whole(low: int, high: int, content: Content, generator: torch.Generator) -> torch.Tensor:
    """Whole numbers of a range; of one that begins below 0 its first alone, for it may stand for no index at all."""
    if low >= 0 or high < 0:
        return torch.randint(low, high + 1, content.shape, generator=generator)
    whole = torch.randint(0, high + 1, content.shape, generator=generator)
    none = torch.rand(content.shape, generator=generator) < _SHARE_OF_NONE
    return whole.masked_fill(none, low)


def _numbers(found: Statistics, content: Content, generator: torch.Generator) -> torch.Tensor:
    """Numbers in double precision with the mean, the spread and the range of what was recorded."""
    numbers = torch.randn(content.shape, generator=generator, dtype=torch.float64)
    finite = content.numel - found.inf_count
    if finite == 0:
        return numbers
    if found.minimum == found.maximum:
        return _around(found.minimum, torch.sigmoid(numbers), content)
    spread = math.sqrt(max(found.norm**2 / finite - found.mean**2, 0.0))
    return (found.mean + spread * numbers).clamp(found.minimum, found.maximum)


def _around(value: float, shares: torch.Tensor, content: Content) -> torch.Tensor:
    """Numbers around a constant, none of another sign; what is one number alone stays as it is."""
    if content.numel == 1:
        return torch.full(content.shape, value, dtype=torch.float64)
    return shares if value == 0.0 else value * (1.0 + _MOST_SPREAD * (shares - 0.5))
