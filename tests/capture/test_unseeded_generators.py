"""Generators that nobody seeded are told from seeded ones by their states."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.capture.settings import unseeded_generators as unseeded
from lockstep.capture.settings.unseeded_generators import is_seeded, unseeded_generators
from lockstep.core.manifest import DEFAULT_RNG


def words(generator: random.Random) -> list[int]:
    return list(generator.getstate()[1][:-1])


@given(st.one_of(st.integers(0, 2**200), st.text(max_size=200)))
def test_any_seed_of_python_is_known_by_what_it_makes(seed: int | str) -> None:
    assert is_seeded(words(random.Random(seed)))


@given(st.one_of(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**32 - 1), min_size=1)))
def test_any_seed_of_numpy_is_known_by_what_it_makes(seed: int | list[int]) -> None:
    assert is_seeded(np.random.RandomState(seed).get_state(legacy=True)[1].tolist())


def test_what_the_operating_system_gives_is_no_seed() -> None:
    assert not is_seeded(words(random.Random()))
    assert not is_seeded(np.random.RandomState().get_state(legacy=True)[1].tolist())


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both generators as nobody has touched them yet; what the tests had is put back."""
    before = random.getstate(), np.random.get_state()
    random.seed()
    np.random.set_state(np.random.RandomState().get_state())  # `seed()` leaves how much was taken
    states = {"python": random.getstate(), "numpy": np.random.get_state()}
    monkeypatch.setattr(unseeded, "AT_IMPORT", states)
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


@pytest.mark.usefixtures("fresh")
def test_only_generators_that_were_drawn_from_are_named() -> None:
    assert not {"python", "numpy"} & unseeded_generators().keys()
    random.random()
    assert "python" in unseeded_generators()
    np.random.rand(100_000)
    assert {"python", "numpy"} <= unseeded_generators().keys()


@pytest.mark.usefixtures("fresh")
def test_a_seed_that_was_set_later_is_known() -> None:
    random.random(), np.random.rand(3)
    random.seed(1), np.random.seed(1)
    random.random(), np.random.rand(3)
    assert not {"python", "numpy"} & unseeded_generators().keys()


def test_a_seed_that_was_set_before_anybody_looked_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unseeded, "AT_IMPORT", {"python": random.Random(3).getstate()})
    later = random.Random(3)
    later.random()
    monkeypatch.setattr(random, "getstate", later.getstate)
    assert "python" not in unseeded_generators()


def test_a_generator_of_the_script_counts_once_it_drew() -> None:
    seeded, own = np.random.default_rng(5), np.random.default_rng()
    seeded.random()
    assert DEFAULT_RNG not in unseeded_generators()
    own.random()
    assert DEFAULT_RNG in unseeded_generators()
