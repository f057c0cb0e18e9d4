"""Where two samples differ, in words: bit by bit, so that -0.0 is not 0.0 and a NaN equals itself."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch

from lockstep.recordings import Array


def first_difference(before: Any, now: Any, where: str = "") -> str:
    """Return the first part in which two samples differ, with both values; "" if there is none.

    before, now: Samples of the kinds that can be cached.
    where: The part of the sample that is compared, as `['x'][0]`; "" for the whole.
    """
    at = where or "the whole"
    kinds = [_kind(before), _kind(now)]
    if kinds[0] != kinds[1]:
        return f"{at}: a {kinds[0]} before, a {kinds[1]} now"
    if isinstance(before, dict):
        if list(before) != list(now):
            return f"{at}: keys {_short(list(before))} before, {_short(list(now))} now"
        return _first([first_difference(before[key], now[key], f"{where}[{key!r}]") for key in now])
    if isinstance(before, (list, tuple)):
        if len(before) != len(now):
            return f"{at}: {len(before)} items before, {len(now)} now"
        pairs = enumerate(zip(before, now, strict=True))
        return _first([first_difference(*pair, f"{where}[{place}]") for place, pair in pairs])
    if isinstance(before, (torch.Tensor, np.ndarray, np.generic)):
        return _of_arrays(_array(before), _array(now), at)
    is_same = (
        struct.pack("<d", before) == struct.pack("<d", now)
        if type(before) is float
        else before == now
    )
    return "" if is_same else f"{at}: {_short(before)} before, {_short(now)} now"


def _first(found: list[str]) -> str:
    return next(filter(None, found), "")


def _kind(value: Any) -> str:
    kind = np.ndarray if isinstance(value, np.memmap) else type(value)
    named = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"{named} of {value.dtype}, shape {tuple(value.shape)}"
    return named


def _array(value: Any) -> Array:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    return (value.view(torch.int16) if value.dtype is torch.bfloat16 else value).detach().numpy()


def _of_arrays(before: Array, now: Array, at: str) -> str:
    if not now.nbytes:
        return ""
    bits = [np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (before, now)]
    if np.array_equal(bits[0], bits[1]):
        return ""
    differ = (bits[0] != bits[1]).reshape(now.size, -1).any(axis=1)
    place = np.unravel_index(int(differ.argmax()), now.shape)
    values = f"{_short(before[place].item())} before, {_short(now[place].item())} now"
    which = f", element {', '.join(map(str, place))}" if now.ndim else ""
    return f"{at}{which}: {values} ({int(differ.sum())} of {now.size} elements differ)"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
