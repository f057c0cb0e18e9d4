"""What one process has of the cache for one data set: a session if there is one, and a watch over what is computed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lockstep.wings.cache.client import AGAIN_S, DaemonGoneError, RefusedError
from lockstep.wings.cache.pipeline_checksum import Pipeline, differences
from lockstep.wings.cache.pipeline_parts import Handles
from lockstep.wings.cache.places import Address
from lockstep.wings.cache.random_watch import RandomWatch, system_draws
from lockstep.wings.cache.sample_layout import Laid
from lockstep.wings.cache.samples import MISSING, OtherPipelineError, Samples, say_gone, say_once
from lockstep.wings.cache.twin import come_out_otherwise, threads

_TWINS, _TWINS_OF_BATCHES = 2, 8
"""Samples of a new session that are computed twice; more where whole batches are, in which the others may matter."""

_SUSPECTS = 64
"""Samples that ask the system for randomness and are computed twice: so does a generator that is then given a seed."""

_MOST_CHANGES = 64
"""How often what a data set is set to may change from outside before this process asks the cache no more."""

_LOOK_AFTER = 1 << 16
"""Samples after which the whole pipeline is looked at again, its files too."""

_RANDOM = "; it is not cached: give transform_key, or cache the data set below what is random"
_BY_BATCH = ", or by what else is in its batch"

T = TypeVar("T")


class Attachment:
    """Attaches to a session when it is needed, and again where the daemon, the process or the pipeline is another.

    Parameters
    ----------
    address
        Of the daemon.
    session
        A name, or "".
    source
        What computes samples.
    ignored
        Attributes that do not count.
    about
        What else makes pipelines differ, by name.
    rows
        How many samples there are, 0 where that is not known.
    is_keyed
        Whether random numbers are drawn by a key, and nobody has to watch them.
    is_in_batches
        Whether the source computes whole batches.
    handles
        What was open where the source was looked at in another process.
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
        is_in_batches: bool = False,
        handles: Handles | None = None,
    ) -> None:
        self._address, self._session, self._source = address, session, source
        self._ignored, self._about, self._rows, self._is_keyed = ignored, about, rows, is_keyed
        self._process = os.getpid()
        self._samples: Samples | None = None
        self._twins = _TWINS_OF_BATCHES if is_in_batches else _TWINS
        self._random = f"{_BY_BATCH if is_in_batches else ''}{_RANDOM}"
        self._suspects, self._has_asked = _SUSPECTS, dict[int, bool]()
        self._threads = threads()
        self._refused, self._changes, self._again_s = False, 0, 0.0
        self._unseen = self._unseen_files = 0
        self.handles = handles or {}
        self._describe()

    @property
    def generators(self) -> Sequence[Any]:
        """Random generators that the source keeps."""
        return self._pipeline.generators

    def attach(self) -> None:
        """Attach at once.

        Raises
        ------
        OtherPipelineError
            If the session is another pipeline's.
        """
        self._attach()

    def look_again(self) -> None:
        """Look at the whole pipeline again before the next sample, as at the start of an epoch: lists may have been
        shuffled in place."""
        self._unseen_files = _LOOK_AFTER

    def samples(self, count: int = 1) -> Samples | None:
        """The session for the pipeline as it is now; None where nothing may be taken from one or given to it.

        Parameters
        ----------
        count
            How many samples are to be handed out.
        """
        self._unseen += count
        self._unseen_files += count
        if self._process != os.getpid():
            self._process, self._samples, self._again_s = os.getpid(), None, 0.0
            self.look_again()
        if self._threads != threads():
            self._threads, self._samples = threads(), None
            self._again_s = 0.0
        if self._unseen_files > _LOOK_AFTER:
            self._unseen = self._unseen_files = 0
            self._look_for_changes(None)
        elif self._unseen > (self._rows or _LOOK_AFTER) or self._pipeline.has_changed():
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

    def _describe(self, files: str | None = None) -> Pipeline:
        self._pipeline = Pipeline(self._source, self._ignored, self._about, self.handles, files)
        self.handles = self._pipeline.handles
        self._watch = RandomWatch(self._pipeline.generators)
        return self._pipeline

    def _attach(self) -> None:
        self._again_s = time.monotonic() + AGAIN_S
        try:
            self._samples = Samples(
                self._address,
                self._session,
                self._pipeline,
                self._rows,
                f"{self._threads} threads/",
            )
        except DaemonGoneError as error:
            say_gone(self._address, error)
        except RefusedError as error:
            if error.later:
                say_once(f"{error}; samples are loaded as without the cache until there is")
            else:
                self._refuse_here(str(error))

    def _attach_or_say(self) -> None:
        try:
            self._attach()
        except OtherPipelineError as error:
            self._refuse_here(str(error))

    def _refuse_here(self, why: str) -> None:
        self._refused = True
        say_once(f"{why}; samples are loaded as without the cache")

    def _look_for_changes(self, files: str | None) -> None:
        before = self._pipeline.checksum
        if self._describe(files).checksum == before:
            return
        self._changes += 1
        self._samples, self._refused = None, False
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
        before, asked = () if self._is_keyed else self._watch.state(), system_draws()
        found = compute()
        self._has_asked[threading.get_ident()] = not self._is_keyed and system_draws() != asked
        drawn = "" if self._is_keyed else self._watch.drawn(before)
        why = f"sample {row} draws from {drawn}{_RANDOM}" if drawn else self._changed_by_computing()
        if why:
            self._trying(lambda: samples.refuse(why))
        return found, not why

    def _changed_by_computing(self) -> str:
        if not self._pipeline.has_changed():
            return ""
        before = self._pipeline
        if (
            self._describe(before.files).checksum == before.checksum
        ):  # a file was opened, or the like
            return ""
        words = differences(
            before.description, self._pipeline.description, now="now", then="before"
        )
        return f"computing a sample changes the data set ({words}); name what does not matter in ignore=(...)"

    def put(
        self,
        samples: Samples,
        found: Sequence[tuple[int | None, str, Any]],
        again: Callable[[int], Any],
    ) -> bool:
        """Put samples into the cache: rows, variants and what was computed; `again` computes one of them once more."""
        return self._trying(lambda: self._put(samples, found, again)) == (True,)

    def _put(
        self,
        samples: Samples,
        found: Sequence[tuple[int | None, str, Any]],
        again: Callable[[int], Any],
    ) -> bool:
        laid = [
            (place, one)
            for place, (row, _, sample) in enumerate(found)
            if row is not None and (one := samples.laid_out(sample)) is not None
        ]
        is_suspect = self._has_asked.get(threading.get_ident(), False) and self._suspects > 0
        twins = [] if samples.proven else laid[: self._twins]
        if is_suspect:
            twins, self._suspects = laid, self._suspects - len(laid)
        if twins and not self._come_out_the_same(samples, twins, found[twins[0][0]][0] or 0, again):
            return False
        by_variant: dict[str, list[tuple[int, Laid]]] = {}
        for place, one in laid:
            by_variant.setdefault(found[place][1], []).append((found[place][0] or 0, one))
        done = [samples.put(some, variant) for variant, some in by_variant.items()]
        return len(laid) == len(found) and all(done)

    def _come_out_the_same(
        self,
        samples: Samples,
        twins: Sequence[tuple[int, Laid]],
        row: int,
        again: Callable[[int], Any],
    ) -> bool:
        other = come_out_otherwise(
            lambda: [again(place) for place, _ in twins], [one.checksum for _, one in twins]
        )
        if other:
            samples.refuse(f"sample {row} comes out otherwise each time{self._random}")
            return False
        self._twins = max(self._twins - len(twins), 0)
        if other is None:
            samples.say_once("whether samples come out the same twice could not be seen")
        elif not self._twins and not samples.proven:
            samples.prove()
        return True
