"""A cache that is read at other places than it was filled: named with the places, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lockstep_sampling.invariance.cached_places import Begun, Displaced

Moved = Callable[[torch.Tensor, bool], torch.Tensor]


class Cache:
    """Keys and values of all tokens so far; `moves` puts those that are read into another order."""

    def __init__(self, keys: Moved | None = None, values: Moved | None = None) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.moves = keys, values

    def put(self, keys: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
        self.keys.append(keys)
        self.values.append(values)
        read = torch.cat(self.keys, 1), torch.cat(self.values, 1)
        is_further = len(self.keys) > 1
        return [
            one if moved is None else moved(one, is_further)
            for one, moved in zip(read, self.moves, strict=True)
        ]


class Engine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(16, 8)
        self.key, self.value, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 20)

    def forward(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        begins = sum(one.shape[1] for one in cache.keys)
        places = torch.arange(begins, begins + ids.shape[1])
        h = self.words(ids) + self.places(places)
        keys, values = cache.put(self.key(h), self.value(h))
        later = torch.arange(keys.shape[1])[None] > places[:, None]
        scores = (3 * h @ keys.transpose(1, 2)).masked_fill(later, -torch.inf)
        return self.head(scores.softmax(-1) @ values)


def told(
    cache: Any, module: nn.Module | None = None, tokens: tuple[int, int] = (5, 1)
) -> Displaced | None:
    """What is found of a second call after a first one."""
    engine = module or Engine()
    ids = torch.arange(1, 1 + sum(tokens))[None]
    first, second = ids.split(tokens, 1)
    begun = Begun.of(engine, (first, cache), {})
    with torch.no_grad():
        engine(first, cache)
    return begun.displaced_in(engine, (second, cache), {}, seed=0)


def rolled(one: torch.Tensor, is_further: bool) -> torch.Tensor:
    return one.roll(1, 1) if is_further else one


def exchanged(one: torch.Tensor, is_further: bool) -> torch.Tensor:
    return one[:, [0, 3, 2, 1, *range(4, one.shape[1])]] if is_further else one


@pytest.mark.parametrize("tokens", [(5, 1), (3, 3)])
def test_keys_that_are_off_by_one_are_named_with_their_places(tokens: tuple[int, int]) -> None:
    found = told(Cache(rolled), tokens=tokens)
    assert found is not None
    assert found.operator.name == "torch.Tensor.roll"
    assert found.places == (5, 0, 1, 2, 3, 4)
    assert found.said == "all 6 places stand 1 later than their tokens"


def test_exchanged_places_are_named() -> None:
    found = told(Cache(exchanged))
    assert found is not None
    assert found.places == (0, 3, 2, 1, 4, 5)
    assert found.said == "2 of 6 places are of other tokens: place 1 holds that of token 3"


@pytest.mark.parametrize(
    "cache",
    [
        Cache(),
        Cache(exchanged, exchanged),  # an order of pages, of the last token no later one
        Cache(lambda one, _: one.contiguous()),
    ],
    ids=["plain", "pages", "copied"],
)
def test_a_sound_cache_is_not_named(cache: Cache) -> None:
    assert told(cache) is None


def test_what_is_no_order_of_places_is_not_named() -> None:
    # given values of the cache that are wrong, in their places
    assert told(Cache(lambda one, is_further: one * 1.5 if is_further else one)) is None


class Summing(nn.Module):
    """Keeps something else than tokens: its result depends on which call it is."""

    def forward(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
        cache.keys.append(ids.double()[:, :, None])
        return torch.cat(cache.keys, 1).flip(1).cumsum(1) * len(cache.keys)


def test_a_module_with_another_state_is_not_named() -> None:
    found = told(Cache(), Summing())
    assert found is None


def test_a_module_that_drops_at_random_is_not_compared() -> None:
    class Dropping(Engine):
        def forward(self, ids: torch.Tensor, cache: Any) -> torch.Tensor:
            return nn.functional.dropout(super().forward(ids, cache), 0.5)

    assert told(Cache(exchanged, exchanged), Dropping()) is None


def test_the_cache_of_another_sequence_is_not_compared() -> None:
    engine, ids = Engine(), torch.arange(1, 6)[None]
    begun = Begun.of(engine, (ids, Cache()), {})
    other = Cache(rolled)
    with torch.no_grad():
        engine(ids, other)
    assert begun.displaced_in(engine, (ids[:, -1:], other), {}, seed=0) is None
