"""Layouts of tensors, and the context of calls, as the texts of a recording's tables.

A layout is `8,1` (strides in elements), or `8,1;16;0`: strides, offset and number of the memory that it shares with
other inputs of its call; "" for row after row in memory of its own. Conditions are `grad` or `no_grad`, then what
autocast computes in, such as `grad;cpu=bfloat16`; "" where they were not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from lockstep.core.records import Conditions, Layout

_LAYOUT = re.compile(r"(-?\d{1,19}(?:,-?\d{1,19})*)?(?:;(\d{1,19});(\d{1,9}))?", re.ASCII)
_AUTOCAST = re.compile(r"([a-z]\w*)=([a-z]\w*)")


def layout_text(strides: Sequence[int], offset: int = 0, shares: int = -1) -> str:
    """A layout as text.

    Examples
    --------
    >>> layout_text((1, 4)), layout_text((4, 1), 16, 0)
    ('1,4', '4,1;16;0')
    """
    laid = ",".join(map(str, strides))
    return laid if shares < 0 else f"{laid};{offset};{shares}"


@lru_cache(maxsize=1 << 12)
def layout_in(text: str) -> Layout | None:
    """The layout that a text tells of; None for "". Raises ValueError if it tells of none."""
    if not text:
        return None
    found = _LAYOUT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a layout")
    laid, offset, shares = found.groups()
    strides = tuple(map(int, laid.split(","))) if laid else ()
    return Layout(strides) if shares is None else Layout(strides, int(offset), int(shares))


def conditions_text(conditions: Conditions) -> str:
    """Conditions as text.

    Examples
    --------
    >>> conditions_text(Conditions(autocast=(("cpu", "bfloat16"),)))
    'grad;cpu=bfloat16'
    """
    parts = [f"{device}={dtype}" for device, dtype in conditions.autocast]
    return ";".join(["grad" if conditions.gradients else "no_grad", *parts])


@lru_cache(maxsize=1 << 8)
def conditions_in(text: str) -> Conditions | None:
    """The conditions that a text tells of; None for "". Raises ValueError if it tells of none."""
    if not text:
        return None
    gradients, *parts = text.split(";")
    found = [_AUTOCAST.fullmatch(part) for part in parts]
    if gradients not in ("grad", "no_grad") or None in found:
        raise ValueError(f"{text!r} are no conditions")
    autocast = tuple((one[1], one[2]) for one in found if one is not None)
    return Conditions(gradients == "grad", autocast)
