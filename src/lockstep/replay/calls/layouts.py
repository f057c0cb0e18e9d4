"""Tensors laid in memory as they were when they were recorded: kernels have been wrong for one layout alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from lockstep.core.records import Layout

_MOST_SPREAD = 64
"""Times the elements of a tensor that the memory it is laid in may have: what lay further apart, a column of a large
table, is laid row after row."""


def laid(tensor: torch.Tensor, layout: Layout | None) -> torch.Tensor:
    """A copy with the strides of a layout; the tensor itself where that is row after row, or impossible.

    What lies between its elements is zero.
    """
    if layout is None or not _fits(tensor, layout):
        return tensor
    memory = tensor.new_zeros(_span(tensor, layout))
    return _placed(tensor, memory, layout.strides, 0)


def in_order(tensor: torch.Tensor, layout: Layout | None) -> torch.Tensor:
    """A tensor whose axes lie in memory in the order that a layout has them; gradients go through.

    The tensor itself where the layout leaves gaps between elements, or shares some.
    """
    if layout is None or len(layout.strides) != tensor.dim():
        return tensor
    order = sorted(range(tensor.dim()), key=lambda axis: -layout.strides[axis])
    found = tensor.permute(order).contiguous().permute([order.index(n) for n in range(len(order))])
    steps = zip(found.shape, found.stride(), layout.strides, strict=True)
    return found if all(extent < 2 or one == two for extent, one, two in steps) else tensor


def laid_together(
    tensors: Mapping[int, torch.Tensor], layouts: Mapping[int, Layout | None]
) -> dict[int, torch.Tensor]:
    """Tensors of one call by number, each with its strides, those that shared memory in the same memory again.

    tensors: In any layout.
    layouts: By the same numbers.
    """
    found = dict(tensors)
    sharing: dict[tuple[int, torch.dtype], dict[int, Layout]] = {}
    for number, tensor in tensors.items():
        layout = layouts[number]
        if layout is not None and layout.shares >= 0 and _fits(tensor, layout):
            sharing.setdefault((layout.shares, tensor.dtype), {})[number] = layout
        else:
            found[number] = laid(tensor, layout)
    for members in sharing.values():
        found |= _sharing({number: tensors[number] for number in members}, members)
    return found


def _sharing(
    tensors: Mapping[int, torch.Tensor], layouts: Mapping[int, Layout]
) -> dict[int, torch.Tensor]:
    first = min(layout.offset for layout in layouts.values())
    ends = [layout.offset - first + _span(tensors[n], layout) for n, layout in layouts.items()]
    if max(ends) > _most(tensors.values()):
        return {number: laid(tensor, layouts[number]) for number, tensor in tensors.items()}
    memory = next(iter(tensors.values())).new_zeros(max(ends))
    return {
        number: _placed(tensor, memory, layouts[number].strides, layouts[number].offset - first)
        for number, tensor in tensors.items()
    }


def _fits(tensor: torch.Tensor, layout: Layout) -> bool:
    strides = layout.strides
    possible = len(strides) == tensor.dim() and min(strides, default=0) >= 0 and tensor.numel() > 0
    return possible and _span(tensor, layout) <= _most([tensor])


def _span(tensor: torch.Tensor, layout: Layout) -> int:
    """Elements from the first to the last in memory."""
    steps = zip(tensor.shape, layout.strides, strict=True)
    return 1 + sum((extent - 1) * stride for extent, stride in steps)


def _most(tensors: Iterable[torch.Tensor]) -> int:
    return _MOST_SPREAD * sum(tensor.numel() for tensor in tensors)


def _placed(
    tensor: torch.Tensor, memory: torch.Tensor, strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """The tensor's elements in some memory, as a view of it."""
    place = memory.as_strided(tensor.shape, strides, offset)
    if torch._debug_has_internal_overlap(place) == 0:
        place.copy_(tensor)
    else:  # elements share their memory: those of an expanded tensor, of overlapping windows
        where = torch.arange(memory.numel()).as_strided(tensor.shape, strides, offset)
        memory[where.reshape(-1)] = tensor.reshape(-1)
    return place
