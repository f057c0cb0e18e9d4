"""The connection of one process and data set to the cache: a session, and a watch over computed samples."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import get_worker_info

from lockstep.terminal import say
from lockstep_cache.client import AGAIN_S, DaemonGoneError, RefusedError
from lockstep_cache.pipeline_checksum import Pipeline, differences
from lockstep_cache.places import Address
from lockstep_cache.random_watch import RandomWatch
from lockstep_cache.sample_difference import first_difference
from lockstep_cache.samples import (
    MISSING,
    Computed,
    OtherPipelineError,
    OtherSampleError,
    Samples,
    closed,
    say_gone,
    say_once,
)
from lockstep_cache.spot_checks import SpotChecks
from lockstep_cache.training import Scope, scope_of

_MOST_CHANGES = 64
"""How often what a data set is set to may change from outside before this process asks the cache no more."""

_LOOK_AFTER = 1 << 16
"""Samples after which the whole pipeline is looked at again, its files too."""

_RANDOM = "; it is not cached: give transform_key, or cache the data set below what is random"
_BY_BATCH = ", or by what else is in its batch"

T = TypeVar("T")


class Attachment:
    """Attaches to a session when it is needed, and again where the daemon, the process or the pipeline is another.

    address: Of the daemon.
    session: A name of the user's; "" for one that this training alone has.
    source: What computes samples.
    ignored: Attributes that do not count.
    about: What else makes pipelines differ, by name.
    rows: How many samples there are, 0 where that is not known.
    is_keyed: Whether random numbers are drawn by a key, and nobody has to watch them.
    is_in_batches: Whether the source computes whole batches.
    checks: Which hits are loaded again.
    scope: Who shares it without a name, where it was made in another process; None where it is made now.
    """

    def __init__(
        self,
        address: Address,
        session: str,
        source: Any,
        *,
        ignored: Sequence[str],
        about: dict[str, str],
        rows: int,
        is_keyed: bool,
        checks: SpotChecks,
        is_in_batches: bool = False,
        scope: Scope | None = None,
    ) -> None:
        self._address, self._session, self._source = address, session, source
        self._ignored, self._about, self._rows, self._is_keyed = ignored, about, rows, is_keyed
        self._process = os.getpid()
        self._samples: Samples | None = None
        self.checks = checks
        self._random = f"{_BY_BATCH if is_in_batches else ''}{_RANDOM}"
        self._threads = torch.get_num_threads()
        self._refused, self._changes, self._again_s = False, 0, 0.0
        self._unseen = self._unseen_files = 0
        self._describe(is_first=scope is None)
        self.scope = scope or scope_of(self._pipeline.checksum)
        if scope is None:
            _made_here.add(self)

    @property
    def generators(self) -> Sequence[Any]:
        """Random generators that the source keeps."""
        return self._pipeline.generators

    @property
    def was_wrong(self) -> str:
        """The session in which a hit was found to be wrong; "" if none was."""
        samples = self._samples
        return samples.session if samples is not None and samples.was_wrong else ""

    def attach(self) -> None:
        """Attach at once, if anything may be cached. Raises OtherPipelineError if the session is another pipeline's."""
        if not self._refused:
            self._attach()

    def look_again(self) -> None:
        """Look at the whole pipeline again before the next sample, and check the first hits, as at the start of an
        epoch: lists may have been shuffled in place."""
        self._unseen_files = _LOOK_AFTER
        self.checks.begin_epoch()

    def samples(self, count: int = 1) -> Samples | None:
        """The session for the pipeline as it is now; None where nothing may be taken from one or given to it.

        count: How many samples are to be handed out.
        """
        self._unseen += count
        self._unseen_files += count
        if self._process != os.getpid():
            self._process, self._samples, self._again_s = os.getpid(), None, 0.0
            self.look_again()
        if self._threads != torch.get_num_threads():
            self._threads, self._samples = torch.get_num_threads(), None
            self._again_s = 0.0
        if self._unseen_files > _LOOK_AFTER:
            self._unseen = self._unseen_files = 0
            self._look_for_changes(None)
        elif self._unseen > self._rows_of_an_epoch() or self._pipeline.has_changed():
            if self._unseen > self._rows_of_an_epoch():
                self.checks.begin_epoch()
            self._unseen = 0
            self._look_for_changes(self._pipeline.files)
        is_missing = self._samples is None or not self._samples.is_alive
        if is_missing and not self._refused and time.monotonic() >= self._again_s:
            self._attach_or_say()
        samples = None if self._refused else self._samples
        if samples is None or not samples.is_closed:
            return samples
        samples.let_go()
        return None

    def _rows_of_an_epoch(self) -> int:
        """How many samples this process reads in one, as a worker that lives for several does."""
        worker = get_worker_info()
        return (self._rows or _LOOK_AFTER) // (worker.num_workers if worker else 1)

    def _describe(self, files: str | None = None, *, is_first: bool = False) -> Pipeline:
        self._pipeline = Pipeline(
            self._source, self._ignored, self._about, files, is_first=is_first
        )
        self._watch = RandomWatch(self._pipeline.generators)
        if self._pipeline.unknown:
            self._refuse_here(_words_of_unknown(self._pipeline))
        return self._pipeline

    def _attach(self) -> None:
        self._again_s = time.monotonic() + AGAIN_S
        _leave_forgotten()
        name = self._session or self.scope.session(self._pipeline.checksum)
        try:
            self._samples = Samples(
                self._address,
                name,
                self._pipeline,
                self._rows,
                f"{self._threads} threads/{self._pipeline.environment}",
                is_lasting=bool(self._session),
                training=self.scope.training,
                checked_within=self.checks.within,
            )
            gone = weakref.finalize(self, _forgotten.append, (os.getpid(), self._samples))
            gone.atexit = False
        except DaemonGoneError as error:
            say_gone(self._address, error)
        except RefusedError as error:
            if error.later:
                say_once(f"{error}; samples are loaded as without the cache until there is")
            else:
                self._refused = True
                say_once(f"{error}; samples are loaded as without the cache", closed(name))

    def _attach_or_say(self) -> None:
        try:
            self._attach()
        except OtherPipelineError as error:
            self._refuse_here(str(error))

    def _refuse_here(self, why: str) -> None:
        self._refused = True
        say_once(f"{why}; samples are loaded as without the cache")

    def _look_for_changes(self, files: str | None) -> None:
        was, was_refused, self._refused = self._pipeline, self._refused, False
        now = self._describe(files)
        if (now.checksum, now.environment) == (was.checksum, was.environment):
            self._refused = self._refused or was_refused
            return
        self._changes += 1
        self._samples = None
        if self._changes > _MOST_CHANGES:
            self._refuse_here("what the data set is set to changes again and again")
        else:
            self._again_s = 0.0

    def get(
        self, samples: Samples, rows: Sequence[int | None], variants: Sequence[str]
    ) -> list[Any]:
        """Samples, `MISSING` for those that are not there, and where there is no row."""
        found = self._trying(lambda: samples.get(rows, variants))
        return [MISSING] * len(rows) if found is None else found[0]

    def _trying(self, work: Callable[[], T]) -> tuple[T] | None:
        """What some work with the daemon gives; None where that is gone, or says no."""
        try:
            return (work(),)
        except DaemonGoneError as error:
            say_gone(self._address, error)
        except RefusedError as error:
            say_once(f"{error}; samples are loaded as without the cache")
        return None

    def computed(self, samples: Samples, compute: Callable[[], T], row: int) -> tuple[T, bool]:
        """Compute something, and say whether it may be cached: nothing was drawn and the pipeline is the same."""
        before = () if self._is_keyed else self._watch.state()
        found = compute()
        why = self._why_not(before, row)
        if why:
            self._trying(lambda: samples.refuse(why))
        return found, not why

    def _why_not(self, before: tuple[Any, ...], row: int) -> str:
        """Why what was computed since must not be cached; "" if it may."""
        drawn = "" if self._is_keyed else self._watch.drawn(before)
        return (
            f"sample {row} draws from {drawn}{_RANDOM}" if drawn else self._changed_by_computing()
        )

    def _changed_by_computing(self) -> str:
        if not self._pipeline.has_changed():
            return ""
        before = self._pipeline
        now = self._describe(before.files)
        if now.unknown:
            return _words_of_unknown(now)
        if now.environment != before.environment:
            return "computing a sample changes a variable of the environment that it reads"
        if now.checksum == before.checksum:
            return ""
        words = differences(before.description, now.description, now="now", then="before")
        return f"computing a sample changes the data set ({words}); name what does not matter in ignore=(...)"

    def put(self, samples: Samples, found: Sequence[tuple[int | None, str, Any]]) -> bool:
        """Put samples into the cache, or compare them with what was put there before: rows, variants, samples.

        Returns
        -------
        bool
            Whether all of them are there.
        """
        by_variant: dict[str, list[Computed]] = {}
        for row, variant, sample in found:
            laid = None if row is None else samples.laid_out(sample)
            if row is not None and laid is not None:
                by_variant.setdefault(variant, []).append(Computed(row, variant, sample, laid))
        try:
            done = self._trying(lambda: [samples.put(some) for some in by_variant.values()])
        except OtherSampleError as error:
            why = f"{error}{self._random}"
            self._trying(lambda: samples.refuse(why))
            return False
        count = sum(map(len, by_variant.values()))
        return done is not None and count == len(found) and all(done[0])

    def agrees(self, samples: Samples, row: int, variant: str, item: Any) -> bool:
        """Put an item of a stream into the cache, or compare it with that which is there."""
        hit = self.get(samples, [row], [variant])[0]
        if hit is MISSING:
            return self.put(samples, [(row, variant, item)])
        words = first_difference(hit, item)
        if words:
            self._end(samples, f"item {row} is not what the cache gave: {words}")
        return not words

    def stands(self, samples: Samples, row: int, hit: Any, again: Callable[[], Any]) -> bool:
        """Load a sample again that came from the cache, and compare; a difference ends the session for all.

        samples, row: Where it came from.
        hit: As it came from there.
        again: Loads it.
        """
        before = () if self._is_keyed else self._watch.state()
        fresh = again()
        words = first_difference(hit, fresh)
        why = (
            f"sample {row} is not what the cache gave: {words}"
            if words
            else self._why_not(before, row)
        )
        if why:
            self._end(samples, why)
        return not why

    def _end(self, samples: Samples, why: str) -> None:
        """A sample that was given out may have been wrong."""
        ended = f"{why}. Samples are loaded from the data set from now on; earlier ones may have been wrong, too"
        self._trying(lambda: samples.refuse(ended, is_wrong=True))
        self._refused = True


def _words_of_unknown(pipeline: Pipeline) -> str:
    more = len(pipeline.unknown) - 1
    return f"nothing is cached: {pipeline.unknown[0]}" + (f" ({more} more like it)" if more else "")


_forgotten: deque[tuple[int, Samples]] = deque()
"""Of data sets that are no more, by process; told when it is safe to speak, which it is not while memory is freed."""


def _leave_forgotten() -> None:
    while _forgotten:
        process, samples = _forgotten.popleft()
        if process == os.getpid():
            samples.leave()


_made_here: weakref.WeakSet[Attachment] = weakref.WeakSet()


def _ended_in_error() -> Iterator[str]:
    return (one.was_wrong for one in _made_here if one.was_wrong)


@atexit.register
def _last_words() -> None:
    """Say again at the end of a training that the cache has given wrong samples, for the line may be far up."""
    for session in sorted(set(_ended_in_error())):
        say(
            f"cache session {session} gave a wrong sample and was ended: do not rely on this training's result"
        )
