"""Mutations of shards of whole tensors: their header, the formulas in it, and the bytes behind."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from hostile_json import NUMBERS, hostile, mutated

_FORMULAS = (
    '["tensor", 0, SELF]', '["tensor", 0, OTHER]', '["tensor", 7, 0]', '["tensor", 0, 999]', '["tensor", -1, 0]',
    '["add", ["tensor", 0, SELF], 1]', '["add", ["tensor", 0, OTHER], ["tensor", 0, OTHER]]', '["add", 1]',
    '["view", 0, OTHER, 0, [COUNT], [1]]', '["view", 0, OTHER, 0, [COUNT], [0]]', '["view", 0, SELF, 0, [COUNT], [1]]',
    '["view", 0, OTHER, 9223372036854775807, [COUNT], [9223372036854775807]]', '["sqrt", -1]', '["div", 0, 0]',
    '["view", 0, OTHER, 0, [4294967296, 4294967296], [0, 0]]', '["fma", 1e999, 2, 3]', "0", "1e999", "NaN",
)  # fmt: skip


def mutate(draw: Random, path: Path) -> tuple[str, bool]:
    """Change one thing of a shard; returns what, and whether it means the same."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    kind = draw.choice(("header", "entry", "entry", "formula", "formula", "length", "body", "pad"))
    if kind == "length":
        wrong = draw.choice(
            (0, 1, 2, length - 1, length + 8, len(data), 2**31, 2**63 - 1, 2**64 - 1)
        )
        path.write_bytes(wrong.to_bytes(8, "little") + data[8:])
        return f"a header of {wrong} bytes", False
    if kind == "body" and body:
        at = draw.randrange(len(body))
        value = draw.choice((b"\xff" * 16, b"\0" * 16, b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f"))
        path.write_bytes(data[: 8 + length + at] + value + body[at + len(value) :])
        return f"{value!r} at {at} of its tensors", False
    if kind == "header":
        text, words, keeps = mutated(draw, json.dumps(header))
        _write(path, text, body)
        return f"header {words}", keeps and words == "keys reversed"
    if kind == "pad":
        _write(path, json.dumps(header) + " " * draw.choice((1, 4096)), body)
        return "padded", True
    words = _formula(draw, header) if kind == "formula" else _entry(draw, header)
    text = json.dumps(header).replace('"\\u0001', "").replace('\\u0001"', "")
    _write(path, text, body)
    return words, False


def _write(path: Path, text: str, body: bytes) -> None:
    data = text.encode()
    path.write_bytes(len(data).to_bytes(8, "little") + data + body)


def _raw(text: str) -> str:
    """Stands for JSON that `json.dumps` would not write."""
    return f"\x01{text}\x01"


def _entry(draw: Random, header: dict[str, Any]) -> str:
    """Change how one tensor is described."""
    name = draw.choice([name for name in header if name != "__metadata__"])
    other = draw.choice([name for name in header if name != "__metadata__"])
    entry = header[name]
    kind = draw.choice(("shape", "dtype", "offsets", "overlap", "extent", "offset", "swap", "gone"))
    if kind == "shape":
        entry["shape"] = draw.choice(
            ([], [0], [-1], [2**62, 4], [1] * 100, [2**32, 2**32], [1.5], None)
        )
    elif kind == "dtype":
        entry["dtype"] = draw.choice(("F64", "F16", "BF16", "F8_E4M3", "BOOL", "C128", "I4", "", 7))
    elif kind == "offsets":
        entry["data_offsets"] = draw.choice(
            ([0, 0], [-8, 0], [8, 0], [0, 2**63], [0], [2**62, 2**62 + 4])
        )
    elif kind == "overlap":
        entry["data_offsets"] = header[other]["data_offsets"]
    elif kind in ("extent", "offset"):
        key = "shape" if kind == "extent" else "data_offsets"
        entry[key] = [_raw(draw.choice(NUMBERS)), *entry[key][1:]]
    elif kind == "swap":
        header[name], header[other] = header[other], entry
    else:
        del header[name]
    return f"tensor {name}: {kind} {str(header.get(name))[:80]}"


def _formula(draw: Random, header: dict[str, Any]) -> str:
    """Change what a tensor follows from, or make one follow from others."""
    formulas = json.loads(header.get("__metadata__", {}).get("derived", "{}"))
    stored = [name for name in header if name.isdigit()]
    name = draw.choice([*formulas, *stored])
    entry = header.pop(name, {"dtype": "F32", "shape": [4]})
    count = 1
    for extent in entry["shape"]:
        count *= extent
    made = formulas.setdefault(
        name, {"dtype": entry["dtype"], "count": count, "block": 64, "formula": 0}
    )
    key = draw.choice(("formula", "formula", "count", "block", "dtype", "chain"))
    if key == "chain":
        for number in range(3000, 3000 + draw.choice((3, 40, 5000))):
            formulas[str(number)] = {
                **made,
                "formula": ["add", ["tensor", 0, number + 1], ["tensor", 0, number + 1]],
            }
        made["formula"] = ["tensor", 0, 3000]
    elif key == "formula":
        text = draw.choice((*_FORMULAS, hostile(draw)))
        words = {"SELF": name, "OTHER": draw.choice([*formulas, *stored]), "COUNT": made["count"]}
        for word, value in words.items():
            text = text.replace(word, str(value))
        made[key] = _raw(text)
    else:
        made[key] = _raw(draw.choice((*NUMBERS, '"F32"', '"F8_E5M2"')))
    derived = json.dumps(formulas).replace('"\\u0001', "").replace('\\u0001"', "")
    header["__metadata__"] = {"derived": derived}
    return f"formula of {name}: {key} {str(made.get(key, key))[:80]}"
