"""Which tensors of a recording belong to a site, and how they are called in a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockstep.commands.record_again import command_for_tensors
from lockstep.core.errors import UsageError
from lockstep.core.records import Call, TensorRecord
from lockstep.reading.chosen_calls import ChosenRanks, ChosenSteps, calls_matching, check_choice
from lockstep.store.named_files import NamedTensor, whole_tensor
from lockstep.store.reader import Recording


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tensors of a site.

    tensors: Those that can be written.
    missing: Names of those that were not saved whole.
    calls: Number of calls that they are of.
    """

    tensors: tuple[NamedTensor, ...]
    missing: tuple[str, ...]
    calls: int


def choose(recording: Recording, site: str, *, step: ChosenSteps, rank: ChosenRanks) -> Chosen:
    """The tensors of the calls that a pattern, or a printed site, names.

    Raises UsageError if there is no such rank, step or site, or nothing of it was saved whole.
    """
    check_choice(recording, step=step, rank=rank)
    calls = calls_matching(recording, site, step=step, rank=rank)
    tensors: list[NamedTensor] = []
    missing: list[str] = []
    for name, record in _named(calls):
        tensor, content = whole_tensor(name, record), record.content
        if tensor is not None:
            tensors.append(tensor)
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
