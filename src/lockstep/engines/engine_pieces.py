"""A piece of a comparison: which it is, and what a worker does with it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, Protocol

import xxhash

from lockstep.align.ranks import shared_steps
from lockstep.comparison import Rule, compare_recordings
from lockstep.core.errors import LockstepError, UsageError
from lockstep.core.known_results import KnownResults, Values, Work, using
from lockstep.core.version import VERSION
from lockstep.kernels.jit import load_without_blas
from lockstep.store.reader import RankRecording, Recording, open_recording
from lockstep.store.schema import MANIFEST

_MOST_RANKS = 4
"""Ranks of one piece: enough to share what opening costs, few enough that the first piece is there early."""


@dataclass(frozen=True, slots=True)
class Job:
    """A comparison whose pieces workers compute.

    folder: Where the command was given: paths are relative to it.
    reference, candidate: The two recordings, by path.
    options: Arguments of `lockstep.comparison.compare_recordings`.
    forms: What other tools wrote the recordings, as `open_recording` takes it.
    states: For each rank of each recording, by its path, a digest of what tells that it is the same.
    version: Of Lockstep.
    """

    folder: str
    reference: str
    candidate: str
    options: Mapping[str, Any]
    forms: tuple[str, str] = ("", "")
    states: Mapping[str, str] = field(default_factory=dict)
    version: str = VERSION

    @property
    def recordings(self) -> tuple[str, str]:
        """Both, the reference first."""
        return self.reference, self.candidate


@dataclass(frozen=True, slots=True)
class Piece:
    """Some ranks of the two, in all steps or in some.

    ranks: Names in the reference, each with that in the candidate.
    steps: None for all that are compared.
    """

    ranks: tuple[tuple[str, str], ...]
    steps: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """What tells it from other pieces of its job."""
        steps = "all" if self.steps is None else ",".join(map(str, self.steps))
        return f"{'+'.join(name for name, _ in self.ranks)} {steps}"

    def holds(self, step: int, rank: str) -> bool:
        """Return whether a step of a rank is in it."""
        is_of_rank = any(name == rank for name, _ in self.ranks)
        return is_of_rank and (self.steps is None or step in self.steps)


class Engine(Protocol):
    """Has pieces computed, in the order in which they are submitted."""

    @property
    def workers(self) -> int:
        """How many pieces are computed at once."""
        ...

    @property
    def on_one_machine(self) -> int:
        """How many of these on one machine, which share its memory."""
        ...

    def submit(self, job: Job, piece: Piece | Work) -> Future[Values]:
        """Return what will hold the results of a piece, or of a single question.

        One whose worker ends is computed again.
        """
        ...

    def close(self) -> None:
        """Let go of all workers; what they are at is not finished."""
        ...


class StateError(UsageError):
    """A worker cannot take part: another version of Lockstep, or a different recording."""


def computed(job: Job, piece: Piece | Work) -> Values:
    """Compute a piece or a question, in a worker, and return all results that a comparison may look up.

    What is wrong with a recording is not said here: the comparison comes to it by itself.

    Raises StateError if this is a different version of Lockstep, or the recordings are not those that the comparison
    has.
    """
    here = f"worker {os.uname().nodename if hasattr(os, 'uname') else ''} ({os.getpid()})"
    if job.version != VERSION:
        raise StateError(
            f"{here}: has Lockstep {VERSION}, and the comparison {job.version}; install the same version there"
        )
    try:
        os.chdir(job.folder)
    except OSError as error:
        raise StateError(
            f"{here}: has no folder {job.folder} ({error.strerror}); mount it there under the same path"
        ) from error
    if not isinstance(piece, Piece):
        _opened(job, [list(job.states)] * 2, here)
        return piece.results()
    results = KnownResults()
    with using(results):
        names = [
            [f"{path}/{both[n]}" for both in piece.ranks] for n, path in enumerate(job.recordings)
        ]
        sides = _opened(job, names, here)
        load_without_blas()
        options = dict(job.options)
        options["rule"] = Rule(options["rule"])
        if piece.steps is not None:
            options["steps"] = piece.steps
        with suppress(LockstepError):
            compare_recordings(*sides, **options)
    return results.values


def _opened(job: Job, ranks: Sequence[Sequence[str]], here: str) -> tuple[Recording, Recording]:
    """Both recordings with some ranks alone, by their paths; those of another recording are left out."""
    opened = []
    for path, form, paths in zip(job.recordings, job.forms, ranks, strict=True):
        names = [one.rpartition("/")[2] for one in paths if one.rpartition("/")[0] == path]
        try:
            recording = open_recording(path, form=form, ranks=names)
        except LockstepError as error:
            raise StateError(f"{here}: {error}") from error
        for name in names:
            rank = recording.ranks.get(name)
            if rank is None or state_of(rank) != job.states[f"{path}/{name}"]:
                raise StateError(
                    f"{here}: {path}/{name} is not the recording that the comparison has, or changes; put the same"
                    " files there, and compare when it is written"
                )
        opened.append(recording)
    return opened[0], opened[1]


def state_of(rank: RankRecording) -> str:
    """Return a digest of a rank's manifest, which lists digests of files, and of the files that it does not list."""
    digest = xxhash.xxh3_128((rank.path / MANIFEST).read_bytes())
    for file in sorted(rank.path.iterdir()):
        if file.name not in rank.manifest.files and file.is_file() and file.name != MANIFEST:
            about = file.stat()
            digest.update(f"{file.name} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()


class Pieces:
    """A comparison, cut: a few ranks each; of few ranks, each step by itself.

    ranks: Those that are opened.
    steps: Those that are compared; None for all.
    """

    def __init__(
        self,
        ranks: Mapping[str, tuple[RankRecording, RankRecording]],
        steps: Collection[int] | None,
    ) -> None:
        self._ranks, self._chosen = ranks, steps

    @cached_property
    def all(self) -> Sequence[Piece]:
        """In the order in which the comparison comes to them."""
        names = [(name, both[1].path.name) for name, both in self._ranks.items()]
        if len(names) > _MOST_RANKS:
            chosen = None if self._chosen is None else tuple(sorted(self._chosen))
            starts = range(0, len(names), _MOST_RANKS)
            return [Piece(tuple(names[start : start + _MOST_RANKS]), chosen) for start in starts]
        numbers = sorted({number for steps in self._steps.values() for number in steps})
        return [
            Piece((both,), (number,))
            for number in numbers
            for both in names
            if number in self._steps[both[0]]
        ]

    def left(self, step: int, rank: str) -> int:
        """How many steps of ranks are left where the comparison, step by step, comes to one of a rank.

        0 of a rank that is in no piece.
        """
        if rank not in self._ranks:
            return 0
        before = set(takewhile(lambda name: name != rank, self._ranks))
        return sum(
            number > step or (number == step and name not in before)
            for name, numbers in self._steps.items()
            for number in numbers
        )

    def from_on(self, step: int, rank: str) -> list[Piece]:
        """The pieces that are not over yet, that of this step of this rank first."""
        first = next((n for n, piece in enumerate(self.all) if piece.holds(step, rank)), 0)
        before = [
            piece
            for piece in self.all[:first]
            if any(number > step for name, _ in piece.ranks for number in self._steps[name])
        ]
        return [*self.all[first:], *(before if len(self._ranks) > _MOST_RANKS else ())]

    @cached_property
    def _steps(self) -> dict[str, list[int]]:
        """By rank; this opens all of them, as the comparison does."""
        return {name: shared_steps(*both, self._chosen) for name, both in self._ranks.items()}
