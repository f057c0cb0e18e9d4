"""Distinct tensor contents: known by identity first, by digest second, measured once.

Identity is (storage, address, extents, strides, dtype, version). A storage's address is reused after
it is freed, so every storage met in a step is pinned by a weak reference, which keeps the address
from being given out again; and a change through an alias that does not share the version counter
(`x.data.mul_()`) is counted per storage. Identity is worth as much as versions are (`memory`): what
came from outside of the step, and what others than torch may write to, is digested at each meeting.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from xxhash import xxh3_128_hexdigest

from lockstep.capture.tensors.content_sink import ContentSink
from lockstep.capture.tensors.measurements import NOT_MEASURED, Measured, Measurements
from lockstep.capture.tensors.memory import (
    FoundMemory,
    Pins,
    Sight,
    extent,
    is_expanded,
    is_lent,
    is_plain,
    is_there,
    plain_keys,
    sight_of,
    takes_gradient,
)
from lockstep.capture.tensors.shards import local_part, placement_of
from lockstep.capture.tensors.whole_sources import WholeSources
from lockstep.core.content_notes import NoteKind
from lockstep.core.formulas import Formula, Stored, View
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.devices.methods import (
    as_strided,
    contiguous,
    cpu,
    data_ptr,
    detach,
    element_size,
    is_conj,
    is_contiguous,
    is_inference,
    is_neg,
    numel,
    resolve_conj,
    resolve_neg,
    storage_offset,
    stride,
    untyped_storage,
)
from lockstep.devices.on_device.choice import is_captured
from lockstep.devices.tensor_numbers import digest_of, dtype_name
from lockstep.kernels.jit import available
from lockstep.store.content_rows import content_row
from lockstep.store.small_tensors import can_wait

UNRECORDED = -1
"""Content number of a tensor that is known to come from inside the step but was not measured."""

_LARGEST_EXPANDED_BYTES = 1 << 26
"""Up to which size a tensor whose elements share their memory is written out to take its numbers."""

_Identity = tuple[Any, ...]
"""Storage, address, dtype (and placement), version, epoch of changes without one, extents, strides, laziness."""


_UNMET = (UNRECORDED, None)

_dispatch_keys = torch._C._dispatch_keys  # asked for every tensor


@dataclass(frozen=True, slots=True)
class _Kind:
    """What plain tensors of one dtype and shape have in common, and the contents of them that are known, by digest.

    `is_small` stands for those whose bytes are digested sooner than their identity is taken, and `waits` for those
    that the writer may measure.
    """

    dtype: str
    shape: tuple[int, ...]
    is_small: bool
    size_bytes: int
    element_bytes: int
    memory: type[ctypes.Array[ctypes.c_char]]
    waits: bool
    known: dict[str, int]


class Contents:
    """Gives every distinct tensor content of one rank a number, and measures it the first time.

    sink: Takes the rows and tensors.
    save: "stats", "sketch", "program" or "tensors".
    trust_versions: Whether all operators are seen, so that a tensor known by identity has not changed. If not, bytes
        may have been written behind autograd's back: every tensor is digested anew.
    sketch_parameters: With "stats": whether parameters have sketches all the same.
    trust_results: Whether a version and a glance are enough for what is neither a parameter nor `exact`: for rules,
        which ask for a result's numbers and not whether two runs agree in it.
    finite_alone: Whether of a large tensor that is finite throughout no more than that and its norm is asked for.
    sources: With "program": decides which contents are kept whole.

    keeps_tensors: Whether tensors are saved whole.
    sources: As given.
    keeps_what_enters: Whether what enters a step is kept whole at all, so that it may be run again.
    keeps_inputs: Whether what enters a step, or is drawn or decided in it, is kept whole though not all tensors are.
    """

    def __init__(
        self,
        sink: ContentSink,
        save: str,
        *,
        trust_versions: bool = True,
        sketch_parameters: bool = False,
        trust_results: bool = False,
        finite_alone: bool = False,
        sources: WholeSources | None = None,
    ) -> None:
        self.sources = sources
        self.keeps_inputs = sources is not None and sources.batches
        self.keeps_what_enters = self.keeps_inputs or save == "tensors"
        self._sink = sink
        self._save = save
        self.keeps_tensors = save == "tensors"
        self._sketched: type | tuple[()] = torch.nn.Parameter if sketch_parameters else ()
        self._trust_versions, self._trust_results = trust_versions, trust_results
        self._measurements = Measurements(
            sink, keeps_tensors=self.keeps_tensors, finite_alone=finite_alone
        )
        self._small_wait = available()
        self._next = 0
        self._lock = threading.RLock()
        self._by_identity: dict[_Identity, tuple[int, Sight | None]] = {}
        self._flat_by_identity: dict[Hashable, Measured] = {}
        self._plain_keys = plain_keys()
        self._pins = Pins()
        self._epochs: dict[int, int] = {}
        self._arrived: set[int] = set()
        self._found: dict[int, FoundMemory] = {}
        self._looks = itertools.count(-1, -1)
        self._by_digest: dict[tuple[str, tuple[int, ...], str], dict[str, int]] = {}
        self._kinds: dict[tuple[torch.dtype, torch.Size], _Kind] = {}
        self._spans: dict[Hashable, list[tuple[int, int, Stored]]] = {}
        self._places: dict[int, Stored] = {}
        self._whole: dict[tuple[str, str], Stored] = {}
        self._asked_for: set[int] = set()

    def stored(self, number: int) -> Stored | None:
        """Where a content is saved whole, None where it is not."""
        return self._places.get(number)

    def known(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor, or one on its storage that came from inside, was met in this step."""
        storage, (here, note) = _storage_of(tensor), _here(tensor)
        if storage is None:
            return True
        address = storage._cdata
        if address not in self._pins:
            return False
        if address not in self._arrived:
            return True
        before = self._by_identity.get(self._identity(here, storage, note))
        return before is not None and self.of(tensor, source=self.keeps_inputs) == before[0]

    def arrived(self, tensor: torch.Tensor) -> int:
        """Number of the content of a tensor that comes from outside of the step."""
        storage = _storage_of(tensor)
        if storage is not None:
            self._arrived.add(storage._cdata)
        return self.entering(tensor) if self.keeps_inputs else self.of(tensor)

    def expect(self, tensors: Iterable[torch.Tensor]) -> None:
        """Tell that these are to be kept whole, where sources are, so that none is kept if there is no room for all."""
        if self.sources is not None:
            size = {
                id(one): _here(one)[0].nbytes for one in tensors if not unreadable(_here(one)[0])
            }
            self.sources.expects(sum(size.values()))

    def entering(self, tensor: torch.Tensor) -> int:
        """Number of the content of a parameter or buffer as training begins with it, or of what arrives in a step.

        Where sources are kept whole, it is kept though a recorded call made it, as initialization does, or a call that
        was set aside: under a number of its own, since what the call made was written without its elements.
        """
        number = self.of(tensor, source=True)
        if self.sources is None or number in self._asked_for or not numel(tensor):
            return number
        with self._lock:
            for known in self._by_digest.values():
                for digest in [one for one, other in known.items() if other == number]:
                    del known[digest]
            for key in [one for one, (other, _) in self._by_identity.items() if other == number]:
                del self._by_identity[key]
            return self.of(tensor, source=True)

    def of(
        self, tensor: torch.Tensor, formula: Formula | None = None, *, source: bool = False
    ) -> int:
        """Number of the tensor's content as it is now.

        `formula` is what may give its elements; `source` tells that, where nothing like it was met before, no
        recorded call makes it.
        """
        with self._lock:
            if _dispatch_keys(tensor).raw_repr() != self._plain_keys:
                return self._of_any(tensor, formula, source=source)
            storage = untyped_storage(tensor)
            try:
                kind = self._kinds[tensor.dtype, tensor.shape]
            except KeyError:
                kind = self._kind_of(tensor)
            address = storage._cdata
            if address not in self._pins:
                # As `Pins.add`, in one call less.
                self._pins[address] = storage._weak_ref()  # type: ignore[assignment]
            if kind.is_small and address not in self._found:
                # The bytes are all that has to be taken now: the writer measures many such contents at once.
                if is_contiguous(tensor):
                    read, end_bytes = tensor, kind.size_bytes
                    if offset := storage_offset(tensor):
                        end_bytes += int(offset) * kind.element_bytes
                    is_here = end_bytes <= storage.nbytes() or not kind.size_bytes
                else:
                    is_here = is_there(tensor, storage, contiguous=False)
                    read = (
                        contiguous(tensor) if is_here else tensor
                    )  # lives until its bytes are read
                if is_here:
                    data = bytes(kind.memory.from_address(data_ptr(read)))
                    digest = xxh3_128_hexdigest(data)
                    small = kind.known.get(digest)
                    if small is None and kind.waits:
                        small = self._add_small(tensor, kind, digest, data, source=source)
                    if small is not None:
                        if self._arrived and address in self._arrived:
                            key = self._identity(tensor, storage, plain=True)
                            self._by_identity[key] = small, None
                        return small
            key = self._identity(tensor, storage, plain=True)
            number, sight = self._by_identity.get(key, _UNMET)
            if sight is not None:
                if sight.holds(storage) and address not in self._arrived:
                    return number
                key = self._changed_identity(key)
            return self._met(tensor, storage, key, formula, kind=kind, source=source)

    def _of_any(self, tensor: torch.Tensor, formula: Formula | None, *, source: bool) -> int:
        """As `of`, for what is not a dense tensor on the host; of what ranks share, this rank's part."""
        tensor, note = _here(tensor)
        why_not = unreadable(tensor)
        if why_not:
            return self._add(tensor, NOT_MEASURED, why_not)
        storage = untyped_storage(tensor)
        key = self._identity(tensor, storage, note)
        number, sight = self._by_identity.get(key, _UNMET)
        if number != UNRECORDED and self._trusts(tensor, storage) and is_there(tensor, storage):
            if sight is None or sight.holds(storage):
                return number
            key = self._changed_identity(key)
        return self._met(tensor, storage, key, formula, note, source=source)

    def _trusts(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> bool:
        """Whether versions tell all of a storage: the script did not get it elsewhere, nor give it to others."""
        is_result = self._trust_results and not takes_gradient(tensor)
        if not (self._trust_versions or is_result):
            return False
        return storage._cdata not in self._arrived and not is_lent(storage)

    def _met(
        self,
        tensor: torch.Tensor,
        storage: torch.UntypedStorage,
        key: _Identity,
        formula: Formula | None,
        note: str = "",
        kind: _Kind | None = None,
        *,
        source: bool,
    ) -> int:
        """Number of the content of a tensor that is met for the first time, or that may have changed.

        `kind` is that of a plain one.
        """
        if not is_there(tensor, storage):
            return self._add(tensor, NOT_MEASURED, "its memory was freed")
        if self._found and self._is_as_found(storage):
            number = self._by_identity.get(key, _UNMET)[0]
            if number != UNRECORDED:
                return number
            number = self._add(tensor, NOT_MEASURED, NoteKind.UNWRITTEN.value)
            self._by_identity[key] = number, None
            return number
        trusted = self._trusts(tensor, storage)
        sight = sight_of(tensor, storage) if trusted and (kind or is_plain(tensor)) else None
        is_run = is_contiguous(tensor) and not key[-1]
        if trusted and is_run:
            # All contiguous views of the same elements share what is measured.
            flat_key = (*key[:5], numel(tensor), None if sight is None else sight.seen)
            measured = self._flat_by_identity.get(flat_key)
            if measured is None:
                measured = self._measured(tensor, key, formula, is_run=True)
                self._flat_by_identity[flat_key] = measured
                if measured.place is not None:
                    span = (int(storage_offset(tensor)), numel(tensor), measured.place)
                    self._spans.setdefault((key[0], *key[2:5]), []).append(span)
        else:
            measured = self._measured(tensor, key, formula, is_run=is_run)
        number = self._add(tensor, measured, measured.note or note, kind, source=source)
        self._by_identity[key] = number, sight
        return number

    def _changed_identity(self, key: _Identity) -> _Identity:
        """The identity of a tensor that was written to without a version, as its whole storage may have been."""
        epoch = self._epochs[key[0]] = self._epochs.get(key[0], 0) + 1
        return (*key[:4], epoch, *key[5:])

    def _add_small(
        self, tensor: torch.Tensor, kind: _Kind, digest: str, data: bytes, *, source: bool
    ) -> int:
        number = kind.known[digest] = self._next
        self._next += 1
        if source:
            self._asked_for.add(number)
        is_kept = self.keeps_tensors or self._is_source(tensor, len(data), source=source)
        dtype, shape = kind.dtype, kind.shape
        with_sketch = self._save != "stats" or isinstance(tensor, self._sketched)
        content = number, dtype, shape, "cpu", digest, data, with_sketch, is_kept
        shard = self._sink.add_small_content(content)
        if is_kept:
            self._places[number] = Stored(shard, number)
        return number

    def _kind_of(self, tensor: torch.Tensor) -> _Kind:
        """What plain tensors of a dtype and shape have in common."""
        dtype, shape = dtype_name(tensor.dtype), tuple(map(int, tensor.shape))
        is_small = self._small_wait and numel(tensor) <= SKETCH_SIZE
        size = tensor.nbytes if is_small else 0
        kind = self._kinds[tensor.dtype, tensor.shape] = _Kind(
            dtype,
            shape,
            is_small,
            size,
            element_size(tensor),
            ctypes.c_char * size,
            can_wait(dtype),
            self._known_as(dtype, shape),
        )
        return kind

    def _known_as(self, dtype: str, shape: tuple[int, ...], device: str = "cpu") -> dict[str, int]:
        """Numbers of the contents of some dtype and shape, by digest."""
        return self._by_digest.setdefault((dtype, shape, device), {})

    def note(self, tensor: torch.Tensor) -> None:
        """Remember that the tensor comes from inside the step, without measuring it."""
        with self._lock:
            here, note = _here(tensor)
            if not unreadable(here):
                key = self._identity(here, untyped_storage(here), note)
                self._by_identity.setdefault(key, _UNMET)

    def exactly(self, tensor: torch.Tensor) -> int:
        """As `of`, and read anew: no version and no glance is trusted."""
        if self._trust_results:
            self.changed(tensor)
        return self.of(tensor)

    def changed(self, tensor: torch.Tensor) -> None:
        """Tell that the tensor's bytes were written to."""
        storage = _storage_of(tensor)
        if storage is not None:
            address = storage._cdata
            with self._lock:
                self._epochs[address] = self._epochs.get(address, 0) + 1
                if address in self._found:
                    self._found[address].look_at(storage)

    def found(self, tensor: torch.Tensor) -> None:
        """Tell that the tensor is memory as it was found (`torch.empty`), without a meaning."""
        storage, (here, _) = _storage_of(tensor), _here(tensor)
        if storage is not None and numel(here):
            with self._lock:
                self._identity(here, storage)
                self._found[storage._cdata] = FoundMemory(storage, element_size(here))

    def was_found(self, tensor: torch.Tensor) -> bool:
        """Whether not all of the tensor's memory was written to since `found`."""
        storage = _storage_of(tensor) if self._found else None
        return storage is not None and storage._cdata in self._found

    def written(self, tensor: torch.Tensor, part: Any = ...) -> None:
        """Tell that such memory was written to; once all of it was, its numbers count.

        `part` is an index into the tensor where not all of it was written.
        """
        storage = _storage_of(tensor)
        found = None if storage is None else self._found.get(storage._cdata)
        if storage is not None and found is not None:
            with self._lock:
                found.written(_here(tensor)[0], storage, part)
                if found.is_full:
                    del self._found[storage._cdata]

    def _is_as_found(self, storage: torch.UntypedStorage) -> bool:
        """Whether memory of a tensor holds what was there before, as far as recorded writes and a glance tell."""
        found = self._found.get(storage._cdata)
        if found is None:
            return False
        if found.was_filled(storage):
            del self._found[storage._cdata]
            return False
        return True

    def forget_identities(self) -> None:
        """Drop everything known by identity, at the end of a step; digests stay known."""
        with self._lock:
            self._by_identity.clear()
            self._flat_by_identity.clear()
            self._spans.clear()
            self._epochs.clear()
            self._arrived.clear()
            self._found.clear()
            self._pins.clear()

    def _identity(
        self,
        tensor: torch.Tensor,
        storage: torch.UntypedStorage,
        note: str = "",
        *,
        plain: bool = False,
    ) -> _Identity:
        address = storage._cdata
        if address not in self._pins:
            self._pins.add(address, storage)
        if plain:
            version, lazy = tensor._version, False
        else:
            version = next(self._looks) if is_inference(tensor) else tensor._version
            lazy = is_conj(tensor) or is_neg(tensor)
        epoch = self._epochs.get(address, 0)
        start, shape, strides = data_ptr(tensor), tensor.shape, stride(tensor)
        dtype = (tensor.dtype, note) if note else tensor.dtype
        return address, start, dtype, version, epoch, shape, strides, lazy

    def _measured(
        self, tensor: torch.Tensor, key: _Identity, formula: Formula | None, *, is_run: bool
    ) -> Measured:
        """Numbers about a tensor; `is_run` tells that its elements lie behind each other as they are."""
        with_sketch = self._save != "stats" or isinstance(tensor, self._sketched)
        if not is_run:
            tensor = detach(tensor)
            if tensor.nbytes > _LARGEST_EXPANDED_BYTES and is_expanded(tensor):
                return _expanded(tensor)
        try:
            if self.keeps_tensors:
                formula = formula or self._view(tensor, key)
            run = tensor if is_run else contiguous(resolve_neg(resolve_conj(tensor)))
            return self._measurements.of(run, self._next, formula, with_sketch=with_sketch)
        except (RuntimeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            return Measured(note=f"its numbers cannot be taken: {reason}")

    def _view(self, tensor: torch.Tensor, key: _Identity) -> View | None:
        """The tensor as a view of one that was saved and has its elements in the same storage."""
        spans = self._spans.get((key[0], *key[2:5]), ())
        if key[-1] is True or not (spans and numel(tensor)):
            return None
        first = int(storage_offset(tensor))
        extents, strides = tuple(map(int, tensor.shape)), tuple(map(int, stride(tensor)))
        steps = zip(extents, strides, strict=True)
        last = first + sum((extent - 1) * stride for extent, stride in steps)
        for start, count, place in spans:
            if start <= first and last < start + count:
                return View(place, first - start, extents, strides)
        return None

    def _is_source(self, tensor: torch.Tensor, size_bytes: int, *, source: bool) -> bool:
        """Whether a new content is kept whole though not all are."""
        sources = self.sources
        if sources is None or not (source or sources.takes_small(numel(tensor))):
            return False
        return sources.takes(size_bytes)

    def _whole_source(
        self, tensor: torch.Tensor, measured: Measured, number: int, *, source: bool
    ) -> Stored | None:
        """Where a new content is kept whole, with another one of the same bytes if there is one."""
        key = measured.digest or "", dtype_name(tensor.dtype)
        place = self._whole.get(key)
        if place is not None or measured.digest is None or measured.statistics is None:
            return place
        here = _here(tensor)[0]
        is_zero = measured.statistics.zero_count == numel(here)
        if not self._is_source(here, 0 if is_zero else here.nbytes, source=source):
            return None
        run = cpu(contiguous(resolve_neg(resolve_conj(detach(here)))))
        place = self._measurements.place(run, number, None, measured.statistics)
        if place is not None:
            self._whole[key] = place
        return place

    def _add(
        self,
        tensor: torch.Tensor,
        measured: Measured,
        note: str,
        kind: _Kind | None = None,
        *,
        source: bool = False,
    ) -> int:
        """Number a content, the same number for the same bytes, dtype, shape and device."""
        if kind is not None and not note:
            dtype, shape, device, known = kind.dtype, kind.shape, "cpu", kind.known
        else:
            dtype, device = dtype_name(tensor.dtype), str(tensor.device)
            shape = () if tensor.is_nested else tuple(map(int, tensor.shape))
            known = self._known_as(dtype, shape, device + note)
        if measured.digest is not None:
            found = known.get(measured.digest)
            if found is not None:
                if measured.place is not None and measured.place.number == self._next:
                    self._next += 1  # its elements were just saved under this number
                return found
            known[measured.digest] = self._next
        number, place = self._next, measured.place
        self._next += 1
        if source:
            self._asked_for.add(number)
        if place is None and self.sources is not None:
            place = self._whole_source(tensor, measured, number, source=source)
        if place is not None:
            self._places[number] = place
        numbers = measured.digest, measured.statistics, measured.sketch, place
        self._sink.add_content(content_row(number, dtype, shape, device, *numbers, note))
        return number


def _expanded(tensor: torch.Tensor) -> Measured:
    """What many elements of a tensor share is digested, with its shape and strides; nothing is written out."""
    count = extent(tensor)
    shared = digest_of(cpu(as_strided(tensor, (count,), (1,))))
    laid = f"{shared} {tuple(tensor.shape)} {stride(tensor)}"
    note = (
        f"expanded from {count} elements: it would take {tensor.nbytes >> 20} MB to read as a whole"
    )
    return Measured(xxh3_128_hexdigest(laid.encode()), note=note)


def unreadable(tensor: torch.Tensor) -> str:
    """Why a tensor's numbers cannot be read here, or ""."""
    if tensor.is_nested:
        return "nested tensor"
    if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
        if tensor.layout is not torch.strided:
            return f"{str(tensor.layout).removeprefix('torch.')} layout"
    elif getattr(type(tensor), "__torch_dispatch__", None) not in (
        None,
        torch._C._disabled_torch_dispatch_impl,
    ):
        return f"tensor subclass {type(tensor).__name__}"
    elif tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} layout"
    if tensor.device.type == "meta":
        return "meta tensor, it has no data"
    if tensor.is_quantized:
        return "quantized tensor"
    if is_captured(tensor.device):
        return "inside a CUDA graph that is captured: it has numbers once the graph is replayed"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside a torch.func transform"
    return ""


def _here(tensor: torch.Tensor) -> tuple[torch.Tensor, str]:
    """A tensor, or this rank's part of one and how it was placed."""
    part = local_part(tensor)
    return (tensor, "") if part is None else (part, placement_of(tensor))


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    here, _ = _here(tensor)
    return None if unreadable(here) else untyped_storage(here)
