"""Which tensors of a recording belong to a site, and how they are called in a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockstep.core.errors import UsageError
from lockstep.core.records import Array, Call, TensorRecord
from lockstep.reading import calls_matching, check_choice
from lockstep.store.later_tensors import ReadLater
from lockstep.store.reader import Recording
from lockstep.store.record_command import command_for_tensors
from lockstep.store.stored_tensor import StoredTensor
from lockstep.store.tensors import can_store


@dataclass(frozen=True, slots=True)
class SiteTensor:
    """One whole tensor of a site, read when it is asked for.

    Parameters
    ----------
    name
        `RANK/stepN/MODULE/OPERATOR#CALL/ROLE.NAME`, where NAME is what the code calls it: "args.0", "0.weight".
    dtype, shape
        As recorded, e.g. "bfloat16", (4, 128).
    stored
        Where it lies.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: StoredTensor | ReadLater

    def widened(self) -> Array:
        """The tensor as NumPy has it, of this shape; bfloat16 and float8 as float32, exactly.

        Raises
        ------
        CorruptError
            If it is not there or is damaged.
        """
        return self.stored()

    def undecoded(self) -> Array:
        """Its elements as they were in memory, shape (numel,), bfloat16 as uint16 and float8 as uint8.

        Raises
        ------
        CorruptError
            If it is not there or is damaged.
        """
        return self.stored.undecoded(self.dtype)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tensors of a site.

    Parameters
    ----------
    tensors
        Those that can be written.
    missing
        Names of those that were not saved whole.
    calls
        Number of calls that they are of.
    """

    tensors: tuple[SiteTensor, ...]
    missing: tuple[str, ...]
    calls: int


def choose(recording: Recording, site: str, *, step: int | None, rank: str | None) -> Chosen:
    """The tensors of the calls that a pattern, or a printed site, names.

    Raises
    ------
    UsageError
        If there is no such rank, step or site, or nothing of it was saved whole.
    """
    check_choice(recording, step=step, rank=rank)
    calls = calls_matching(recording, site, step=step, rank=rank)
    tensors: list[SiteTensor] = []
    missing: list[str] = []
    for name, record in _named(calls):
        content = record.content
        if isinstance(content.loader, (StoredTensor, ReadLater)) and can_store(content.dtype):
            tensors.append(SiteTensor(name, content.dtype, content.shape, content.loader))
        else:
            missing.append(f"{name} ({content.note})" if content.note else name)
    if not tensors:
        raise UsageError(
            f"{recording.path}: none of the {len(missing)} tensors of {site} was saved whole; record it with",
            command=command_for_tensors(recording, calls),
        )
    return Chosen(tuple(tensors), tuple(missing), len(calls))


def _named(calls: Iterable[Call]) -> Iterator[tuple[str, TensorRecord]]:
    """All records of some calls by name; `~2` tells the second of a name from the first (a second backward)."""
    seen: Counter[str] = Counter()
    for call in calls:
        site = f"{call.site.module or '(model)'}/{call.site.op}#{call.site.call}"
        for record in call.records:
            name = f"{call.rank}/step{call.step}/{site}/{record.role.value}.{record.name}"
            seen[name] += 1
            yield (name if seen[name] == 1 else f"{name}~{seen[name]}"), record
