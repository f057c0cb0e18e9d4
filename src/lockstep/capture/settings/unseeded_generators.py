"""Which random generators nobody has seeded, as their own states tell: nothing is drawn from them or wrapped.

Python's `random` and NumPy's global generator are both a Mersenne Twister (Matsumoto and Nishimura 1998). Nobody seeded
one that was fresh when this package was imported, and whose state now follows from that one by drawing alone. A state
that `seed` made of a number is told from one that was read from the operating system: both ways of filling it
(`init_genrand` and `init_by_array` of mt19937ar.c, 2002) can be undone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from lockstep.capture.modules.live_modules import living
from lockstep.core.generators import AT_IMPORT
from lockstep.core.manifest import DEFAULT_RNG

_WORDS = 624
_BLOCKS, _AT_ONCE = 4096, 64
"""Blocks of words that are looked through, 2.5 million numbers, and how many at once. Drawn more is not known."""

_LEAST_DRAWN_BITS = 64
"""`default_rng()` reads 128 bits from the operating system; a seed that somebody types is shorter."""

_LEAST_OF_TORCH = 2**32
"""Torch draws 53 bits for its own seed; a seed that NumPy takes too is below this."""

_MASK = np.uint64(0xFFFFFFFF)
Words = npt.NDArray[np.uint64]


def unseeded_generators() -> dict[str, str]:
    """Return what Python's and NumPy's generators drew from that nobody seeded, by generator: a digest of it.

    A generator that nothing was drawn from is left out.
    """
    states = {"python": random.getstate(), "numpy": np.random.get_state(legacy=True)}
    found = {
        name: _digest(_words_of(state)[0])
        for name, state in states.items()
        if name in AT_IMPORT and _drew_from(AT_IMPORT[name], state)
    }
    entropies = sorted(_entropies())
    return found | ({DEFAULT_RNG: _digest(entropies)} if entropies else {})


def drew_own_seed() -> bool:
    """Whether torch's generator on the CPU has a seed that no number of a script looks like."""
    return _LEAST_OF_TORCH <= torch.initial_seed() < 2**53


def _digest(value: Any) -> str:
    return xxhash.xxh64_hexdigest(repr(value).encode())


def _words_of(state: Any) -> tuple[list[int], int]:
    """The words of a state, and how many of them were taken, as either module gives it."""
    if state[0] == "MT19937":
        return np.asarray(state[1]).tolist(), int(state[2])
    return list(state[1][:-1]), int(state[1][-1])


def _drew_from(first: Any, now: Any) -> bool:
    """Whether a state comes of a fresh one that nobody seeded, by drawing."""
    if first[0] not in ("MT19937", 3):
        return False
    (words, taken), (later, taken_later) = _words_of(first), _words_of(now)
    fresh = (
        (_WORDS, _WORDS - 1) if first[0] == "MT19937" else (_WORDS,)
    )  # NumPy begins at its last word
    if taken not in fresh or is_seeded(words):
        return False
    return taken != taken_later if words == later else _follows(words, later)


def _follows(words: list[int], later: list[int]) -> bool:
    """Whether the later words come of the first ones within so many blocks."""
    twister = np.random.MT19937(0)
    twister.state = {
        "bit_generator": "MT19937",
        "state": {"key": np.array(words, np.uint32), "pos": _WORDS},
    }
    wanted = _tempered(np.array(later, np.uint64))
    for _ in range(_BLOCKS // _AT_ONCE):
        blocks = twister.random_raw(_AT_ONCE * _WORDS).reshape(_AT_ONCE, _WORDS)
        if (blocks == wanted).all(axis=1).any():
            return True
    return False


def _tempered(words: Words) -> Words:
    """The numbers that are drawn from words of a state."""
    words = words ^ (words >> np.uint64(11))
    words = words ^ ((words << np.uint64(7)) & np.uint64(0x9D2C5680))
    words = words ^ ((words << np.uint64(15)) & np.uint64(0xEFC60000))
    return words ^ (words >> np.uint64(18))


# --- the words that a seed makes -------------------------------------------------------------------------------------


def is_seeded(words: list[int]) -> bool:
    """Return whether a number, a text or a short list made all words of a state: none was drawn from it yet."""
    state = np.array(words, np.uint64)
    return np.array_equal(_after(state), state[1:]) or _repeats(_key_of(state))


def _mixed(words: Words, factor: int) -> Words:
    mixed: Words = (words ^ (words >> np.uint64(30))) * np.uint64(factor) & _MASK
    return mixed


def _after(state: Words) -> Words:
    """The words that `init_genrand` lets follow each word but the last."""
    places: Words = np.arange(1, _WORDS, dtype=np.uint64)
    after: Words = np.bitwise_and(_mixed(state[:-1], 1812433253) + places, _MASK)
    return after


def _filled(seed: int) -> Words:
    """What `init_genrand` makes of a seed."""
    words = np.full(_WORDS, seed, np.uint64)
    for index in range(1, _WORDS):
        words[index] = (_mixed(words[index - 1 : index], 1812433253)[0] + np.uint64(index)) & _MASK
    return words


def _key_of(state: Words) -> Words:
    """The key that `init_by_array` made a state of, from its fourth word on; each with its place in the key added."""
    places = np.arange(_WORDS, dtype=np.uint64)
    first = ((state[3:] + places[3:]) & _MASK) ^ _mixed(state[2:-1], 1566083941)
    base = _filled(19650218)
    key: Words = np.bitwise_and(first[1:] - (base[4:] ^ _mixed(first[:-1], 1664525)), _MASK)
    return key


def _repeats(key: Words) -> bool:
    """Whether a key is shorter than half of the state: what the operating system gives is as long as all of it."""
    return any(np.array_equal(key[period:], key[:-period]) for period in range(1, len(key) // 2))


# --- generators that a script made -----------------------------------------------------------------------------------


def _entropies() -> Iterator[int]:
    """What each living `default_rng()` without a seed read from the operating system, where it drew anything."""
    for generator in living(np.random.Generator):
        bits = generator.bit_generator
        entropy = getattr(getattr(bits, "seed_seq", None), "entropy", None)
        if (
            isinstance(entropy, int)
            and entropy.bit_length() > _LEAST_DRAWN_BITS
            and not _is_fresh(bits)
        ):
            yield entropy


def _is_fresh(bits: np.random.BitGenerator) -> bool:
    made: Any = type(bits)
    return repr(made(bits.seed_seq).state) == repr(bits.state)
