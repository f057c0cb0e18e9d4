"""Whether computing a sample drew random numbers, from the generators that all share or from the data set's own."""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_WORDS_BYTES = 624 * 4 + 4
"""State of the Mersenne Twister behind `numpy.random`: 624 words and a position."""


class RandomWatch:
    """Says which generators were drawn from between two moments.

    own: Generators that the data set keeps: of `random`, NumPy or torch.
    """

    def __init__(self, own: Sequence[Any] = ()) -> None:
        self._own = own
        self._numpy: tuple[bytes, bool] = (b"", True)

    def state(self) -> tuple[Any, ...]:
        """Return a value that changes when somebody draws."""
        return (
            torch.default_generator.get_state().numpy().tobytes(),
            random.getstate(),
            self._numpy_state(),
            *(_state(one) for one in self._own),
        )

    def _numpy_state(self) -> object:
        """The legacy generator's state; its words alone while no second normal number waits, which takes words to make.

        Asking NumPy for all of it takes as long as loading a small sample.
        """
        words = _numpy_words()
        if words is None or words != self._numpy[0] or self._numpy[1]:
            whole: Any = np.random.get_state(legacy=False)
            waits = bool(whole.get("has_gauss", True))
            self._numpy = (b"" if words is None else words, waits)
            return repr(whole) if waits or words is None else words
        return words

    def drawn(self, before: tuple[Any, ...]) -> str:
        """Which generators were drawn from since, in words; "" for none."""
        after = self.state()
        names = ("torch's generator", "the module random", "numpy.random")
        found = [
            name for name, old, new in zip(names, before[:3], after[:3], strict=True) if old != new
        ]
        if before[3:] != after[3:]:
            found.append("a generator of its own")
        return " and ".join(found)


def _numpy_words() -> bytes | None:
    generator = np.random.mtrand._rand._bit_generator
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, _WORDS_BYTES)


def is_generator(value: object) -> bool:
    """Whether something gives random numbers, and has a state that can be read."""
    kinds = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return repr(_bits(generator).state)


def _bits(generator: Any) -> Any:
    return (
        generator.bit_generator
        if isinstance(generator, np.random.Generator)
        else generator._bit_generator
    )


@contextmanager
def drawing_by(key: str, own: Sequence[Any]) -> Iterator[None]:
    """Let all generators begin where a key says, and put them back afterwards."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    kept = torch.get_rng_state(), random.getstate(), np.random.get_state()
    kept_own = [_kept(one) for one in own]
    try:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        for one in own:
            _seed(one, seed)
        yield
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        np.random.set_state(kept[2])
        for one, state in zip(own, kept_own, strict=True):
            _put_back(one, state)


def _kept(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return (
        generator.get_state()
        if isinstance(generator, np.random.RandomState)
        else _bits(generator).state
    )


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        bits = _bits(generator)
        bits.state = type(bits)(seed).state


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        _bits(generator).state = state
