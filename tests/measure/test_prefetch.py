"""Pairs measured ahead: the numbers of measuring each alone, errors where they belong, and nothing after the end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from lockstep.core.errors import CorruptError
from lockstep.core.records import Array, Content
from lockstep.measure import prefetch as ahead
from lockstep.measure.metrics import measure
from lockstep.measure.passes import CHUNK_ELEMENTS, STRETCH_CHUNKS
from lockstep.measure.prefetch import Ahead

STRETCH = STRETCH_CHUNKS * CHUNK_ELEMENTS


def content(load: Callable[[], Array], size: int, digest: str | None = None) -> Content:
    return Content(0, "float32", (size,), "cpu", digest, None, loader=load)


def pair_of(size: int, seed: int = 0) -> tuple[Content, Content]:
    random = np.random.default_rng(seed)
    left = random.standard_normal(size).astype(np.float32)
    right = left * np.float32(1.001)
    right[::3] = left[::3]
    return content(partial(np.asarray, left), size), content(partial(np.asarray, right), size)


def damaged() -> Array:
    raise CorruptError("shard", "damaged")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_pairs_measured_ahead_are_measured_alike(threads: int) -> None:
    # given pairs of many sizes, of which some are of several stretches
    sizes = (0, 1, 1000, CHUNK_ELEMENTS + 1, 2 * STRETCH + 5, 7, STRETCH)
    pairs = {number: pair_of(size, number) for number, size in enumerate(sizes)}
    # when they are measured ahead, and asked for in another order
    with patch.object(ahead, "threads", lambda: threads):
        found = Ahead(pairs)
    # then each has the numbers that it has alone, once
    for number in reversed(pairs):
        alone = measure(*pairs[number], read_tensors=True)
        assert repr(found.take(number)) == repr(alone)
        assert found.take(number) is None


def test_what_is_wrong_with_a_pair_is_said_when_it_is_asked_for() -> None:
    # given a damaged tensor between sound ones
    sound = pair_of(10)
    pairs = {0: sound, 1: (sound[0], content(damaged, 10)), 2: sound}
    # when they are measured
    found = Ahead(pairs)
    # then those are measured, and it is named where it is asked for
    assert found.take(0) == found.take(2) == measure(*sound, read_tensors=True)
    with pytest.raises(CorruptError, match="damaged"):
        found.take(1)


def test_a_large_pair_that_fails_halfway_fails_once() -> None:
    def broken(*arguments: Any, **keywords: Any) -> bool:
        raise MemoryError("no room")

    with patch.object(ahead.Pass, "take", broken):
        found = Ahead({0: pair_of(3 * STRETCH)})
        with pytest.raises(MemoryError, match="no room"):
            found.take(0)


def test_the_same_elements_are_measured_once_in_whatever_shape() -> None:
    # given two pairs of the same elements, and one of others
    loads: list[str] = []

    def load(name: str) -> Array:
        loads.append(name)
        return np.full(4, float(len(name)), np.float32)

    def side(name: str, shape: tuple[int, ...]) -> Content:
        return Content(0, "float32", shape, "cpu", name, None, loader=partial(load, name))

    flat, square = ((side("a", shape), side("bb", shape)) for shape in ((4,), (2, 2)))
    # when they are measured ahead
    found = Ahead({0: flat, 1: square, 2: (side("a", (4,)), side("ccc", (4,)))})
    # then all have their numbers, and none was read again for another shape
    assert [metrics.max_abs for metrics in map(found.take, range(3)) if metrics] == [1, 1, 2]
    assert sorted(loads) == ["a", "a", "bb", "ccc"]


def test_nothing_is_measured_after_the_end() -> None:
    # given a pair that takes long to read, and one behind it
    reading, go_on, loads = Event(), Event(), []

    def slow() -> Array:
        reading.set()
        go_on.wait(60)
        return np.zeros(3, np.float32)

    def later() -> Array:
        loads.append(1)
        return np.zeros(3, np.float32)

    with (
        ThreadPoolExecutor(1) as pool,
        patch.object(ahead, "pool", lambda: pool),
        patch.object(ahead, "threads", lambda: 2),
    ):
        found = Ahead({0: (content(slow, 3), content(slow, 3)), 1: (content(later, 3),) * 2})
        assert reading.wait(60)
        # when it is stopped while the first one is read
        found.stop()
        go_on.set()
    # then the other one never is, and nothing is said of either
    assert not loads
    assert found.take(0) is None
    assert found.take(1) is None


def test_who_asks_measures_where_no_other_thread_does() -> None:
    # given a machine of one processor
    pairs = {number: pair_of(10, number) for number in range(3)}
    with patch.object(ahead, "threads", lambda: 1), patch.object(ahead, "pool") as pool:
        found = Ahead(pairs)
        # when the last pair is asked for
        last = found.take(2)
    # then it is measured, and no thread was woken for it
    assert last == measure(*pairs[2], read_tensors=True)
    assert not pool.called


def test_an_interruption_is_not_kept_for_later() -> None:
    # given a user who interrupts while a pair is measured that somebody asked for
    def interrupted() -> Array:
        raise KeyboardInterrupt

    with patch.object(ahead, "threads", lambda: 1):
        found = Ahead({0: (content(interrupted, 3), content(interrupted, 3)), 1: pair_of(3)})
    # then it ends at once, though another pair was asked for
    with pytest.raises(KeyboardInterrupt):
        found.take(1)
