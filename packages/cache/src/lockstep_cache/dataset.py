"""`CachedDataset`: a data set whose samples are taken from the cache where they are there, and put there where not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from lockstep.errors import UsageError
from lockstep_cache.attachment import Attachment
from lockstep_cache.places import address_of
from lockstep_cache.random_watch import drawing_by
from lockstep_cache.samples import MISSING, Samples
from lockstep_cache.spot_checks import RATE, SpotChecks
from lockstep_cache.training import Scope, inherited, named

Compute = Callable[[list[Any]], list[Any]]
TransformKey = Callable[[int], object] | str | None


class CachedDataset(Dataset[Any]):
    """A map-style data set that keeps its samples in the cache, for all epochs, workers and ranks of a training.

    The data set gives each sample twice, and the cache gives it from then on if both were the same bit by bit. A share
    of what the cache gives is loaded again and compared, for ever; a difference ends the cache for this data set. A
    cache that is not there, is full or dies costs speed, never a sample. What a training writes into a sample stays its
    own.

    Parameters
    ----------
    dataset
        With `len()` and `[index]`. If one sample draws random numbers, or is different the second time, or if the data
        set holds something that cannot be read, as shared memory or an open file, nothing is cached, and that is said.
    session
        A name under which trainings share samples, now and later: by giving it you say that they load the same ones.
        None for this training alone.
    version
        Of the data, where `session` does not say it; give another one when the data change.
    transform_key
        What a sample depends on besides its index: a text, or a function from the index to one, as in
        `lambda index: f"epoch {epoch}"`. Random numbers are then drawn by this key and the index, with the cache
        and without it, and the training's own generators stay where they were.
    address
        Of the daemon; "" for what LOCKSTEP_CACHE names, or this user's own.
    ignore
        Names of attributes that Lockstep does not look at: you say that samples do not change with them, as with a
        counter, or with a file that stays open.
    check_rate
        The least share of hits that are loaded again and compared. Each sample is, in rotation, at the latest after
        `1 / check_rate` hits; so are the first two hits of each epoch.

    Raises
    ------
    UsageError
        If the session holds samples of another pipeline: the text says what differs. If there is a version and no
        session, or the share is none.

    Examples
    --------
    >>> from lockstep_cache import CachedDataset
    >>> samples = CachedDataset([{"x": 1.5}, {"x": 2.5}])
    >>> samples[1], len(samples)
    ({'x': 2.5}, 2)
    """

    pipeline_below = "dataset"

    def __init__(
        self,
        dataset: Any,
        *,
        session: str | None = None,
        version: str | int | None = None,
        transform_key: TransformKey = None,
        address: str = "",
        ignore: Sequence[str] = (),
        check_rate: float = RATE,
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise UsageError(
                "CachedDataset takes a data set with len() and [index]; cached() takes a stream"
            )
        self.dataset = dataset
        self._session, self._key, self._ignore = (
            named(session, version),
            transform_key,
            tuple(ignore),
        )
        self._address, self._check_rate = address_of(address), check_rate
        self._scope: Scope | None = None
        self._attachment: Attachment | None = self._unattached()
        self._scope = self._attachment.scope
        self._attachment.attach()

    def _unattached(self) -> Attachment:
        drawn = "not at all" if self._key is None else "by key"
        return Attachment(
            self._address, self._session, self.dataset, ignored=self._ignore, rows=len(self.dataset),
            about={"samples": str(len(self.dataset)), "random numbers": drawn}, is_keyed=self._key is not None,
            is_in_batches=self._whole() is not None, checks=SpotChecks(self._check_rate, len(self.dataset)),
            scope=self._scope,
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_attachment": None, "_scope": inherited(self._scope)}

    def __len__(self) -> int:
        if self._attachment is not None:  # samplers ask at the start of an epoch
            self._attachment.look_again()
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """What else the data set has, as `classes`."""
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitem__(self, index: Any) -> Any:
        """The sample of an index."""
        return self._found([index], None)[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """The samples of several indices, as DataLoader asks for a batch."""
        return self._found(indices, self._whole())

    def _whole(self) -> Compute | None:
        """What computes a batch, where the data set has that."""
        return getattr(self.dataset, "__getitems__", None) if self._key is None else None

    def _found(self, indices: Sequence[Any], whole: Compute | None) -> list[Any]:
        """Samples from the cache, and those that are not there as they are computed."""
        if self._attachment is None:  # unpickled in another process
            self._attachment = self._unattached()
            self._scope = self._attachment.scope
        attachment = self._attachment
        samples = attachment.samples(len(indices))
        compute = whole or self._one_by_one
        if samples is None:
            return compute(list(indices))
        length = len(self.dataset)
        rows = [
            index if type(index) is int and 0 <= index < length else self._row(index)
            for index in indices
        ]
        variants = self._variants(indices, whole)
        found = attachment.get(samples, rows, variants)
        if not self._stand(attachment, samples, indices, whole, rows, found):
            return compute(list(indices))
        left = [place for place, sample in enumerate(found) if sample is MISSING]
        if left:
            wanted = [indices[place] for place in left]
            asked = [(rows[place], variants[place]) for place in left]
            computed, is_exact = attachment.computed(
                samples, partial(compute, wanted), asked[0][0] or 0
            )
            for place, sample in zip(left, computed, strict=True):
                found[place] = sample
            if is_exact:
                attachment.put(
                    samples, [(*one, sample) for one, sample in zip(asked, computed, strict=True)]
                )
        return found

    def _stand(
        self,
        attachment: Attachment,
        samples: Samples,
        indices: Sequence[Any],
        whole: Compute | None,
        rows: Sequence[int | None],
        found: Sequence[Any],
    ) -> bool:
        """Load some of what came from the cache again, and say whether it was right."""
        hits = [place for place, hit in enumerate(found) if hit is not MISSING]
        due = [hits[one] for one in attachment.checks.due([rows[place] or 0 for place in hits])]
        return all(
            attachment.stands(
                samples, rows[place] or 0, found[place], partial(self._again, indices, whole, place)
            )
            for place in due
        )

    def _one_by_one(self, indices: Sequence[Any]) -> list[Any]:
        return [self._compute(one) for one in indices]

    def _again(self, indices: Sequence[Any], whole: Compute | None, place: int) -> Any:
        """One of the samples once more; of a batch in another batch, for it must not matter what else is in one."""
        index = indices[place]
        if whole is None:
            return self._compute(index)
        return whole([index, (index + 1) % len(self.dataset)] if len(indices) == 1 else [index])[0]

    def _row(self, index: Any) -> int | None:
        """A whole number from 0 on; None for what the data set has to make of it itself."""
        if type(index) is not int and not isinstance(index, np.integer):
            return None
        return int(index) if 0 <= index < len(self.dataset) else None

    def _variants(self, indices: Sequence[Any], whole: Compute | None) -> list[str]:
        """The table of each sample: by the key of the user's, and by what the data set was given."""
        first = "in batches/" if whole else ""
        if self._key is None and set(map(type, indices)) == {int}:
            return [first] * len(indices)
        return [first + self._variant(index) for index in indices]

    def _variant(self, index: Any) -> str:
        kind = "" if type(index) is int else type(index).__name__
        return (
            kind
            if self._key is None or self._row(index) is None
            else f"{kind}/{self._key_of(int(index))}"
        )

    def _key_of(self, row: int) -> str:
        return str(self._key(row) if callable(self._key) else self._key)

    def _compute(self, index: Any) -> Any:
        if self._key is None or self._row(index) is None:
            return self.dataset[index]
        own = self._attachment.generators if self._attachment else ()
        with drawing_by(f"{self._key_of(int(index))}/{int(index)}", own):
            return self.dataset[index]
