"""Mutations of JSON: a value changed for one that no writer would write, wherever JSON stands in a recording."""

from __future__ import annotations

import json
from random import Random
from typing import Any

NAMES = (
    "",
    "\x1b[31mred\x1b]0;title\x07",
    "a\nDIVERGED at step 0",
    "\u202egnihton",
    "x" * 10_000,
    "a." * 3000,
    "\x00",
    "..",
    "=cmd|' /C calc'!A0",
    "<script>",
    "torch.nn.functional.linear",
    "[bold red]x[/nothing]",
    "rank0",
    "-1",
    "NaN",
    "part of (99999999999999, 99999999999999): ",
)
"""Names and texts that terminals, tables, paths and patterns might trip over."""

NUMBERS = ("-1", "0", "1", "2", "3.5", "2147483648", "9223372036854775807", "9223372036854775808",
           "-9223372036854775809", "1e308", "-1e308", "1e999", "NaN", "-Infinity", "9" * 400, "9" * 6000)  # fmt: skip
_RAW = (
    *NUMBERS,
    "null", "true", "false", "[]", "{}", '"a"', '"\\ud800"', '"\\u001b[2J"', '""',
    "[" * 60 + "]" * 60, "[" * 100 + "]" * 100, '{"a":' * 50_000 + "1" + "}" * 50_000,
    "[" + "0," * 30_000 + "0]", '{"a": 1, "a": 2}', '{"\\ud800": {"": null}}',
    '[["a", 1], null, {"b": [true]}]', '{"tensor": 0}', '["tensor", 0, 0]',
)  # fmt: skip
_PLAIN = ("null", "true", "[]", "{}", "1")
"""What any reader passes over where it does not know the key."""
_PLACE = "\x01here\x01"


def hostile(draw: Random) -> str:
    """A JSON text of one value."""
    return draw.choice((draw.choice(_RAW), json.dumps(draw.choice(NAMES))))


def mutated(draw: Random, text: str) -> tuple[str, str, bool]:
    """A JSON text changed in one place; what was done, and whether it means the same.

    Parameters
    ----------
    text
        A JSON object with an indent of 1, which is kept.
    """
    value = json.loads(text)
    owner, key, path = _place(draw, value)
    kind = draw.choice(("put", "put", "put", "swap", "remove", "add", "twice", "reorder"))
    raw = hostile(draw)
    if kind == "add":
        value["nobody knows"] = _PLACE
        return _filled(value, raw), f"adds {raw:.60}", raw in _PLAIN
    if kind == "reorder" or owner is None:
        return json.dumps(dict(reversed(value.items())), indent=1), "keys reversed", True
    if kind == "remove":
        del owner[key]
        return json.dumps(value, indent=1), f"removes {path}", False
    if kind == "twice":
        found = json.dumps(value, indent=1)
        name = json.dumps(str(path[0]))
        return (
            found.replace("{", "{\n " + f"{name}: {raw},", 1),
            f"{path[0]} twice, {raw:.60}",
            raw in _PLAIN,
        )
    if kind == "swap":
        other, there, path_there = _place(draw, value)
        within = path[: len(path_there)] == path_there or path_there[: len(path)] == path
        if other is not None and not within:
            owner[key], other[there] = other[there], owner[key]
        return json.dumps(value, indent=1), f"swaps {path} and {path_there}", False
    owner[key] = _PLACE
    return _filled(value, raw), f"{path} = {raw:.60}", False


def _filled(value: Any, raw: str) -> str:
    return json.dumps(value, indent=1).replace(json.dumps(_PLACE), raw)


def _place(draw: Random, value: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """Some place in nested values: what holds it, under which key, and the way there."""
    owner, key, path = None, None, ()
    while isinstance(value, (list, dict)) and value and (owner is None or draw.random() < 0.8):
        owner = value
        key = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value, path = owner[key], (*path, key)
    return owner, key, path
