"""The memory of a tensor: does it still exist, and can a version tell that it changed?

A version counts what torch's operators write. Nothing counts what is written by others: a loader that fills one NumPy
array again and again, a collective, an extension that was given an address. Memory that others can write to is known by
what torch says of its storage; all else is glanced at each time it is met.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, cast

import torch

from lockstep.capture.silence import Silence
from lockstep.devices.methods import (
    all_,
    as_strided,
    cpu,
    data_ptr,
    element_size,
    index_fill_,
    is_contiguous,
    item,
    numel,
    scatter_,
    set_item,
    storage_offset,
    stride,
    untyped_storage,
)
from lockstep.kernels.glance import glance
from lockstep.kernels.jit import available, ready

_FIRST_SWEEP = 1024
"""How many storages are referred to before those that are gone are looked for."""


class Pins(dict[int, int]):
    """Weak references to storages, by address: none is given out again while they last.

    As plain numbers, which the garbage collector need not look at, in a dictionary that is asked for every tensor.
    """

    _free: Any = staticmethod(torch.UntypedStorage._free_weak_ref)  # torch itself may go first

    def add(self, address: int, storage: Any) -> None:
        """Pin a storage that is not pinned yet."""
        self[address] = storage._weak_ref()

    def clear(self) -> None:
        """Let all of them go."""
        while self:
            self._free(self.popitem()[1])

    __del__ = clear


def memory_of(tensor: torch.Tensor) -> int:
    """Return a number for the memory in which a tensor's elements lie: its storage's, or its own if it has none.

    Sparse tensors, and those inside of a `torch.func` transform, have no storage.
    """
    try:
        return int(untyped_storage(tensor)._cdata)
    except (NotImplementedError, RuntimeError):
        return int(tensor._cdata)


class WeakStorages:
    """Storages of tensors, as long as anybody else has them.

    Tensors themselves are not referred to weakly: torch refuses to swap one that is.
    """

    def __init__(self) -> None:
        self._references: dict[int, int] = {}
        self._swept_at = _FIRST_SWEEP
        self._free: Any = torch.UntypedStorage._free_weak_ref  # torch itself may go first

    def add(self, tensor: torch.Tensor) -> None:
        """Refer to a tensor's storage, where it has one."""
        try:
            storage = untyped_storage(tensor)
        except (NotImplementedError, RuntimeError):
            return
        address = storage._cdata
        if address not in self._references:
            self._references[address] = cast(Any, storage)._weak_ref()
            if len(self._references) > self._swept_at:
                self._sweep()

    def __contains__(self, tensor: torch.Tensor) -> bool:
        if not self._references:
            return False
        with suppress(NotImplementedError, RuntimeError):
            return untyped_storage(tensor)._cdata in self._references
        return False

    def are_gone(self) -> bool:
        """Whether none is left."""
        while self._references:
            address, reference = self._references.popitem()
            if not torch.UntypedStorage._expired(reference):
                self._references[address] = reference
                return False
            self._free(reference)
        return True

    def clear(self) -> None:
        """Refer to none any more."""
        while self._references:
            self._free(self._references.popitem()[1])

    def _sweep(self) -> None:
        expired = torch.UntypedStorage._expired
        for address in [one for one, held in self._references.items() if expired(held)]:
            self._free(self._references.pop(address))
        self._swept_at = 2 * max(len(self._references), _FIRST_SWEEP)

    __del__ = clear


@cache
def plain_keys() -> int:
    """Dispatch keys of a dense tensor on the host that counts its versions.

    They differ for other layouts and devices, wrappers, subclasses, lazy conjugation and negation.
    """
    with Silence(), torch.inference_mode(False):
        keys = torch._C._dispatch_keys(torch.empty(0, device="cpu"))
    return int(keys.raw_repr())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is such a tensor."""
    return bool(torch._C._dispatch_keys(tensor).raw_repr() == plain_keys())


def takes_gradient(tensor: torch.Tensor) -> bool:
    """Whether it is a leaf that autograd gives a gradient.

    Autograd refuses to say so of a view that was made without gradients and written to since, as
    `torch.nn.init.orthogonal_` does it: that is no leaf.
    """
    try:
        return tensor.requires_grad and tensor.is_leaf
    except RuntimeError:
        return False


def is_there(
    tensor: torch.Tensor, storage: torch.UntypedStorage, *, contiguous: bool | None = None
) -> bool:
    """Whether all elements lie inside of the storage, which may have been freed or cut since the tensor was made."""
    if is_contiguous(tensor) if contiguous is None else contiguous:
        needed_bytes = tensor.nbytes
    else:
        needed_bytes = extent(tensor) * element_size(tensor)
    offset = int(storage_offset(tensor))
    if offset:
        needed_bytes += offset * element_size(tensor)
    return needed_bytes <= storage.nbytes() or not numel(tensor)


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last in memory; fewer than there are where some lie at one place."""
    if not numel(tensor):
        return 0
    steps = zip(tensor.shape, stride(tensor), strict=True)
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in steps)


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether there are many times fewer numbers in memory than elements."""
    return numel(tensor) > 4 * extent(tensor)


def is_lent(storage: torch.UntypedStorage) -> bool:
    """Whether others than torch may write to a storage: NumPy and DLPack memory, mapped files, other processes.

    Torch refuses to resize what it did not allocate, and what it has given to NumPy.
    """
    return not storage.resizable() or (storage.is_shared() and storage.device.type == "cpu")


class Sight(NamedTuple):
    """A quick look at a tensor on the host: its elements, or the storage around strided ones."""

    needed_bytes: int
    """How large its storage has to be."""

    address: int
    size: int
    seen: int

    def holds(self, storage: torch.UntypedStorage) -> bool:
        """Whether the memory is still there, torch's own, and looks as it did."""
        return (
            self.needed_bytes <= storage.nbytes()
            and storage.resizable()
            and _glance(self.address, self.size) == self.seen
        )


def sight_of(tensor: torch.Tensor, storage: torch.UntypedStorage) -> Sight | None:
    """A glance at a tensor on the host that is there; None where memory is lent, or cannot be glanced at."""
    if not available() or is_lent(storage):
        return None
    if is_contiguous(tensor):
        address, size = data_ptr(tensor), tensor.nbytes
        needed_bytes = size + int(storage_offset(tensor)) * element_size(tensor)
    else:
        address, size = storage.data_ptr(), storage.nbytes()
        needed_bytes = size
    return Sight(needed_bytes, address, size, _glance(address, size))


class FoundMemory:
    """A storage that was given out as it was found, and what of it was written to since.

    storage: As it is now.
    element_size: Bytes of the elements that are written.
    """

    def __init__(self, storage: torch.UntypedStorage, element_size: int) -> None:
        self._element_size = element_size
        self._written = torch.zeros(storage.nbytes() // element_size, dtype=torch.bool)
        self.look_at(storage)

    def look_at(self, storage: torch.UntypedStorage) -> None:
        """Note that the present content is known: found, or written by recorded code."""
        self._place, self._seen = storage.data_ptr(), self._glance_at(storage)

    def was_filled(self, storage: torch.UntypedStorage) -> bool:
        """Whether somebody else has written to it since, a collective or an extension."""
        return storage.data_ptr() == self._place and self._glance_at(storage) != self._seen

    def written(
        self, tensor: torch.Tensor, storage: torch.UntypedStorage, part: object = ...
    ) -> None:
        """A tensor in it was written to, or a part of that."""
        mask = self._written
        if storage.nbytes() == numel(mask) * element_size(tensor):
            seen = as_strided(mask, tensor.shape, stride(tensor), storage_offset(tensor))
            set_item(seen, part, True)  # type: ignore[arg-type]
        else:  # it has another size by now: written as a whole
            set_item(mask, slice(None), True)

    @property
    def is_full(self) -> bool:
        """Whether all of it was written to."""
        return bool(item(all_(self._written)))

    def _glance_at(self, storage: torch.UntypedStorage) -> int:
        if storage.device.type != "cpu" or not available():
            return 0
        return _glance(storage.data_ptr(), storage.nbytes())


def part_indexed(
    op: str, tensors: Mapping[str, torch.Tensor], arguments: Mapping[str, Any]
) -> torch.Tensor | None:
    """Which elements of its first argument an operator wrote to that goes by an index, as a mask; None where not known.

    `tensors` and `arguments` are the call's, by position and keyword (`args.2`, `kwargs.index`).
    """
    written, index = tensors.get("args.0"), tensors.get("args.2", tensors.get("kwargs.index"))
    dim = arguments.get("args.1", arguments.get("kwargs.dim"))
    name = op.rpartition(".")[2]
    if written is None or index is None or not isinstance(dim, int):
        return None
    with Silence():
        mask = torch.zeros(written.shape, dtype=torch.bool)
        if name == "scatter_":
            return scatter_(mask, dim, cpu(index), True)
        if name in ("index_copy_", "index_fill_"):
            return index_fill_(mask, dim, cpu(index), True)
    return None


def _glance(address: int, size: int) -> int:
    """`lockstep.kernels.glance.glance`, which is looked for at the first call."""
    global _glance
    _glance = ready(glance)
    return _glance(address, size)
