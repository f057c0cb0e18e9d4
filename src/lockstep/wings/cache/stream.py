"""`cached`: a stream whose items are taken from the cache once it has been read to its end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from lockstep.core.errors import UsageError
from lockstep.wings.cache.attachment import Attachment
from lockstep.wings.cache.pipeline_parts import Handles
from lockstep.wings.cache.places import address_of
from lockstep.wings.cache.samples import MISSING, Samples

_END = "end of "
"""Before the variant of a stream, that of its length."""


class CachedStream(IterableDataset[Any]):
    """As `cached` gives it."""

    pipeline_below = "iterable"

    def __init__(
        self, iterable: Iterable[Any], session: str, address: str, ignore: Sequence[str]
    ) -> None:
        if iter(iterable) is iterable:
            raise UsageError(
                "cached() takes what can be iterated anew each epoch, and this is read once"
            )
        self.iterable = iterable
        self._session, self._address, self._ignore = session, address_of(address), tuple(ignore)
        self._handles: Handles = {}
        self._attachment: Attachment | None = self._unattached()
        self._attachment.attach()

    def _unattached(self) -> Attachment:
        return Attachment(
            self._address, self._session, self.iterable, ignored=self._ignore, rows=0,
            about={"samples": "a stream", "random numbers": "not at all"}, is_keyed=False,
            handles=self._handles,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        handles = self._attachment.handles if self._attachment else self._handles
        words = {where: (said, None) for where, (said, _) in handles.items()}
        return {**self.__dict__, "_attachment": None, "_handles": words}

    def __iter__(self) -> Iterator[Any]:
        attachment = self._attachment = self._attachment or self._unattached()
        attachment.look_again()
        samples, part = attachment.samples(), _part()
        if samples is None:
            yield from self.iterable
            return
        length = attachment.get(samples, [0], [_END + part])[0]
        if length is MISSING:
            yield from self._recorded(attachment, samples, part)
            return
        for row in range(length):
            item = attachment.get(samples, [row], [part])[0]
            if item is MISSING:  # gone, with its slab or the daemon
                yield from itertools.islice(iter(self.iterable), row, None)
                return
            yield item

    def _recorded(self, attachment: Attachment, samples: Samples, part: str) -> Iterator[Any]:
        """The stream itself, put into the cache as long as nothing of it is random and there is room."""
        items, is_kept = attachment.computed(samples, lambda: iter(self.iterable), 0)
        end = object()
        for row in itertools.count():
            item, is_exact = attachment.computed(samples, lambda: next(items, end), row)
            is_kept = is_kept and is_exact
            if item is end:
                break
            if is_kept and attachment.get(samples, [row], [part])[0] is MISSING:
                is_kept = attachment.put(samples, [(row, part, item)], self._again(row))
            yield item
            if not is_kept:
                yield from items
                return
        if is_kept:
            attachment.put(samples, [(0, _END + part, row)], lambda place: row)

    def _again(self, row: int) -> Callable[[int], Any]:
        return lambda place: next(itertools.islice(iter(self.iterable), row, None))


def cached(
    iterable: Iterable[Any],
    *,
    session: str | None = None,
    address: str = "",
    ignore: Sequence[str] = (),
) -> CachedStream:
    """Keep the items of a stream in the cache, for all processes and trainings of this machine.

    What it gives is put into the cache when it is read; once that was done to its end, it comes from there. Each worker
    of a DataLoader and each rank has a stream of its own. A stream that draws random numbers, or that has no room as a
    whole, is read each time, and that is said.

    Parameters
    ----------
    iterable
        Can be iterated anew each epoch, and gives the same each time.
    session, address, ignore
        As of `CachedDataset`.

    Raises
    ------
    UsageError
        If it can be iterated once only, or the session holds items of another pipeline.

    Examples
    --------
    >>> from lockstep.cache import cached
    >>> list(cached([{"x": 1}, {"x": 2}]))
    [{'x': 1}, {'x': 2}]
    """
    return CachedStream(iterable, session or "", address, ignore)


def _part() -> str:
    """Which part of a stream this process reads, where each worker and rank reads another."""
    worker = get_worker_info()
    place = (worker.id, worker.num_workers) if worker else (0, 1)
    ranks = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return f"stream {place[0]} of {place[1]}, rank {ranks[0]} of {ranks[1]}"
