"""`cached`: a stream whose items are taken from the cache once it has been read to its end twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from lockstep.errors import UsageError
from lockstep_cache.attachment import Attachment
from lockstep_cache.places import address_of
from lockstep_cache.samples import MISSING, Samples, say_once
from lockstep_cache.spot_checks import RATE, SpotChecks
from lockstep_cache.training import Scope, group_rank, inherited, known_rank, named, own_token

_END = "end of "
"""Before the variant of a stream, that of its length."""


class CachedStream(IterableDataset[Any]):
    """As `cached` gives it."""

    pipeline_below = "iterable"

    def __init__(
        self,
        iterable: Iterable[Any],
        session: str,
        part: str,
        address: str,
        ignore: Sequence[str],
        check_rate: float,
    ) -> None:
        if iter(iterable) is iterable:
            raise UsageError(
                "cached() takes what can be iterated anew each epoch, and this is read once"
            )
        self.iterable = iterable
        self._session, self._given_part, self._address = session, part, address_of(address)
        self._ignore, self._check_rate = tuple(ignore), check_rate
        self._scope: Scope | None = None
        self._attachment: Attachment | None = self._unattached()
        self._scope = self._attachment.scope
        self._home = self._rank()
        self._attachment.attach()

    def _unattached(self) -> Attachment:
        return Attachment(
            self._address, self._session, self.iterable, ignored=self._ignore, rows=0,
            about={"samples": "a stream", "random numbers": "not at all"}, is_keyed=False,
            checks=SpotChecks(self._check_rate), scope=self._scope,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        home = {"_home": self._rank(), "_scope": inherited(self._scope)}
        return {**self.__dict__, "_attachment": None, **home}

    def _rank(self) -> str:
        """Whose part of the stream this process reads: its rank's, or nobody else's where no rank is known."""
        if self._given_part:
            return f"part {self._given_part}"
        if get_worker_info() is not None and not group_rank():
            return self._home
        return known_rank() or f"process {own_token()}"

    def _part(self) -> str:
        """Which part of a stream this process reads, where each worker and rank reads another."""
        worker, rank = get_worker_info(), self._rank()
        if self._session and rank.startswith("process"):
            say_once(
                f"cache session {self._session}: nothing says which rank this process is, and ranks read other parts "
                "of a stream: it is shared with nobody; set up torch.distributed first, or give part='all'"
            )
        place = (worker.id, worker.num_workers) if worker else (0, 1)
        return f"stream {place[0]} of {place[1]}, {rank}"

    def __iter__(self) -> Iterator[Any]:
        attachment = self._attachment = self._attachment or self._unattached()
        self._scope = attachment.scope
        attachment.look_again()
        samples, part = attachment.samples(), self._part()
        if samples is None:
            yield from self.iterable
            return
        length = attachment.get(samples, [0], [_END + part])[0]
        if length is MISSING or attachment.checks.is_due_as_a_whole():
            yield from self._recorded(attachment, samples, part)
        else:
            yield from self._given(attachment, samples, part, length)

    def _given(
        self, attachment: Attachment, samples: Samples, part: str, length: int
    ) -> Iterator[Any]:
        """The items from the cache; the first one is loaded, too, and compared."""
        for row in range(length):
            item = attachment.get(samples, [row], [part])[0]
            is_there = item is not MISSING  # and not gone, with its slab or the daemon
            if not is_there or (not row and not self._stands(attachment, samples, item)):
                yield from itertools.islice(iter(self.iterable), row, None)
                return
            yield item

    def _stands(self, attachment: Attachment, samples: Samples, item: Any) -> bool:
        return attachment.stands(samples, 0, item, lambda: next(iter(self.iterable), None))

    def _recorded(self, attachment: Attachment, samples: Samples, part: str) -> Iterator[Any]:
        """The stream itself, put into the cache, or compared with what is there, as long as it is not random and there
        is room."""
        items, is_kept = attachment.computed(samples, lambda: iter(self.iterable), 0)
        end = object()
        for row in itertools.count():
            item, is_exact = attachment.computed(samples, lambda: next(items, end), row)
            is_kept = is_kept and is_exact
            if item is end:
                break
            is_kept = is_kept and attachment.agrees(samples, row, part, item)
            yield item
            if not is_kept:
                yield from items
                return
        if is_kept:
            attachment.agrees(samples, 0, _END + part, row)


def cached(
    iterable: Iterable[Any],
    *,
    session: str | None = None,
    version: str | int | None = None,
    part: str = "",
    address: str = "",
    ignore: Sequence[str] = (),
    check_rate: float = RATE,
) -> CachedStream:
    """Keep the items of a stream in the cache, for all epochs and workers of a training.

    What the stream gives is put into the cache, and compared with that when it is read again; once it was read to its
    end twice, it comes from the cache. Each worker of a DataLoader and each rank has a stream of its own. A stream that
    draws random numbers, or that has no room as a whole, is read each time, and that is said.

    Parameters
    ----------
    iterable
        Can be iterated anew each epoch, and gives the same each time.
    session, version, address, ignore
        As of `CachedDataset`.
    part
        Which part of the stream this process reads, as `"all"`, under which processes share it; "" for the rank of
        torch.distributed, or that of the environment (RANK, WORLD_SIZE). Without any of these it is not shared.
    check_rate
        The share of epochs in which the stream is read to be compared; its first item is in each.

    Raises
    ------
    UsageError
        If it can be iterated once only, or the session holds items of another pipeline.

    Examples
    --------
    >>> from lockstep_cache import cached
    >>> list(cached([{"x": 1}, {"x": 2}]))
    [{'x': 1}, {'x': 2}]
    """
    return CachedStream(iterable, named(session, version), part, address, ignore, check_rate)
