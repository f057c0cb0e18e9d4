"""Sizes in bytes as people write them: `512MB`, `8GiB`, `1000000`. Every option and setting reads them here."""

from __future__ import annotations

import re
from decimal import Decimal

from lockstep.core.arguments import integer_of
from lockstep.core.errors import UsageError

_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 1000))

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s?([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def bytes_of(name: str, value: object, *, least: int = 1) -> int:
    """Return a number of bytes that was given as a whole number or as text.

    Parameters
    ----------
    name
        The argument's name, for the message.
    value
        A whole number of bytes, or text: `kB`, `MB`, `GB` and `TB` are powers of 1000, `KiB`, `MiB`, `GiB` and `TiB`
        powers of 1024 (IEC 80000-13). A `B` may be left out.
    least
        The smallest size that is accepted, in bytes.

    Raises
    ------
    UsageError
        If it is no size, or a smaller one than `least`.

    Examples
    --------
    >>> bytes_of("memory", "8GB"), bytes_of("memory", "1.5 GiB"), bytes_of("memory", 4096)
    (8000000000, 1610612736, 4096)
    """
    if not isinstance(value, str):
        return integer_of(name, value, least=least)
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise UsageError(f"{name} is {value!r:.40}; write a size as 512MB, 8GB or 8GiB")
    step = 1024 if found[3] else 1000
    return integer_of(name, int(Decimal(found[1]) * step ** _POWERS[found[2].lower()]), least=least)


def size_text(size_bytes: int) -> str:
    """Return the shortest text that `bytes_of` reads as this size or up to a tenth of its unit more.

    >>> size_text(2_000_000_000), size_text(1_240_000), size_text(12)
    ('2GB', '1.3MB', '12B')
    """
    for unit, factor in _UNITS:
        if size_bytes >= factor:
            tenths = -(-10 * size_bytes // factor)
            return f"{tenths // 10}.{tenths % 10}{unit}".replace(".0", "")
    return f"{size_bytes}B"
