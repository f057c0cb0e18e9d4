"""A glance at memory: a few words from all over it, which tell that it was written to without reading all of it."""

from __future__ import annotations

from typing import Any

from lockstep.kernels.jit import compiled, from_numba, part

_WORDS = 16
"""How many words are looked at; each costs a cache line."""

_SAMPLE = 1024
"""How many words a sample has."""

_PRIME = 0x9E3779B97F4A7C15 - (1 << 64)
"""Spreads what a word says over all bits of the result: 2**64 divided by the golden ratio, as a signed number."""


def _loader(numba: Any) -> Any:
    """The eight bytes at an address, which need not be aligned, as a signed number."""

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def word_at(_: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = context.get_value_type(numba.types.int64)
            return builder.load(builder.inttoptr(arguments[0], word.as_pointer()), align=1)

        return numba.types.int64(numba.types.int64), generate

    return word_at


_word_at = from_numba(_loader)


@part
def _seen(address: int, size: int, words: int) -> int:
    seen = size
    if size >= 8:
        step = (size - 8) // (words - 1)
        for word in range(words):
            seen = (seen ^ _word_at(address + word * step)) * _PRIME
            seen ^= seen >> 29
    return seen


@compiled("int64(int64, int64)")
def glance(address: int, size: int) -> int:
    """A number that is the same as long as nobody writes to some words of the memory there.

    Parameters
    ----------
    address
        Where it begins.
    size
        Its bytes; of fewer than eight nothing is looked at.

    Returns
    -------
    int
        Equal for equal bytes; mostly another one where many of them changed.
    """
    return _seen(address, size, _WORDS)


@compiled("int64(int64, int64)")
def sample(address: int, size: int) -> int:
    """As `glance`, of so many words that memory of which most is alike is told apart too."""
    return _seen(address, size, _SAMPLE)
