"""Plain values and code in words: other values have other words, in whatever process they are described."""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import io
import os
import types
from typing import Any

import numpy as np
import torch
import xxhash

_LONG_TEXT = 120
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Kinds whose `repr` says all."""

_TAKE_FROM_MODULE = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_NAMED = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype,
    torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip


def words_of(value: Any) -> str | None:
    """Return a whole value in words; None if one line cannot hold it."""
    kind = type(value)
    if kind in (bytes, bytearray, memoryview) and len(value) > _LONG_TEXT:
        return f"{kind.__name__}, {len(value)} long, {digest_of(value)}"
    if kind in PLAIN or isinstance(value, enum.Enum):
        return _short(repr(value))
    if isinstance(value, os.PathLike) and not isinstance(value, type):
        return f"{kind.__name__} {os.fspath(value)!r}"
    if isinstance(value, np.memmap):
        return f"{list(value.shape)} {value.dtype} at {value.offset} of {value.filename}"
    if isinstance(value, torch.Tensor):
        return _tensor_words(value)
    # What a subclass adds, as a mask, comes with what it is made of.
    if isinstance(value, np.generic) or (kind is np.ndarray and not value.dtype.hasobject):
        return f"{list(value.shape)} {value.dtype} {_array_digest(value)}"
    if kind in (bytearray, memoryview):
        return f"{kind.__name__} {bytes(value)!r}"
    if kind in (io.BytesIO, io.StringIO):  # how far it is read is no matter
        return f"{kind.__name__} {_short(repr(value.getvalue()))}"
    if kind is types.CodeType:
        return f"code {code_digest(value)}"
    return str(value) if isinstance(value, _NAMED) else None


def is_plain(value: Any, texts: list[str | bytes], depth: int = 8) -> bool:
    """Whether `repr` says all of a value, of what lists, tuples and dicts hold too; texts in it are collected."""
    kind = type(value)
    if kind in (list, tuple):
        return depth > 0 and all(is_plain(one, texts, depth - 1) for one in value)
    if kind is dict:
        return is_plain([*value], texts, depth) and is_plain([*value.values()], texts, depth)
    if kind in (str, bytes):
        texts.append(value)
    return kind in PLAIN


def words_of_key(key: Any) -> str:
    """A key of a dict, where it is a plain one."""
    return _short(repr(key)) if type(key) in PLAIN else "another"


def digest_of(data: Any) -> str:
    """Of bytes, a short one."""
    return xxhash.xxh3_128_hexdigest(data)[:16]


def _short(text: str) -> str:
    if len(text) <= _LONG_TEXT:
        return text
    return f"{text[:40]}... {len(text)} long, {digest_of(text.encode('utf-8', 'surrogatepass'))}"


def _tensor_words(value: torch.Tensor) -> str | None:
    if value.layout is not torch.strided or value.is_quantized:
        return None
    words = f"{list(value.shape)} {value.dtype}"
    if value.device.type == "meta":
        return f"{words} meta"
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return f"{words} {digest_of(plain.view(torch.uint8).numpy()) if plain.numel() else ''}"


def _array_digest(value: Any) -> str:
    found = np.ascontiguousarray(value)
    return digest_of(found.reshape(-1).view(np.uint8)) if found.nbytes else ""


def code_digest(code: types.CodeType) -> str:
    """Of instructions, names and constants; of neither lines nor docstrings' places."""
    digest = hashlib.sha256(code.co_code)
    digest.update(repr((code.co_names, code.co_varnames[: code.co_argcount])).encode())
    for one in code.co_consts:
        text = code_digest(one) if isinstance(one, types.CodeType) else _constant(one)
        digest.update(f"{text}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


def _constant(value: object) -> str:
    """A constant of some code; the order of a set's texts is another in each process."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


@functools.lru_cache(4096)
def names_of(code: types.CodeType) -> frozenset[str]:
    """Names that some code may use, of attributes too, that of functions inside it too."""
    return frozenset(code.co_names).union(*map(names_of, _inside(code)))


@functools.lru_cache(4096)
def globals_of(code: types.CodeType) -> frozenset[str]:
    """Names that some code takes from its module: `config` and not `self.config`, of functions inside it too."""
    own = (one.argval for one in dis.get_instructions(code) if one.opname in _TAKE_FROM_MODULE)
    return frozenset(own).union(*map(globals_of, _inside(code)))


@functools.lru_cache(4096)
def texts_of(code: types.CodeType) -> frozenset[str]:
    """Texts that some code has as constants, also without the signs of `$NAME`, those of functions inside it too."""
    own = (
        part for one in code.co_consts if isinstance(one, str) for part in (one, one.strip("${}"))
    )
    return frozenset(own).union(*map(texts_of, _inside(code)))


def _inside(code: types.CodeType) -> list[types.CodeType]:
    return [one for one in code.co_consts if isinstance(one, types.CodeType)]
