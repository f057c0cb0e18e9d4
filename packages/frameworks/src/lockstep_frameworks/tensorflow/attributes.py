"""Attributes of TensorFlow's operators as plain settings, the same in eager code and in graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_LEFT_OUT = frozenset(
    {"dtype", "out_type", "container", "shared_name", "use_cudnn_on_gpu", "explicit_paddings",
     "output_types", "output_shapes", "validate_indices", "parallel_iterations", "name"}
)  # fmt: skip
"""Attributes that follow from the tensors, or say nothing of what is computed where they have their default."""

_MOST_ELEMENTS = 8


def settings_of(attributes: Sequence[Any]) -> dict[str, Any]:
    """Plain settings of the names and values that an operator was made with, alternating.

    Types (`T`, `Tidx`) are left out: dtypes of tensors tell them.
    """
    found = {}
    for name, value in zip(attributes[::2], attributes[1::2], strict=False):
        name = _text(name)
        if name[:1].isupper() or name.startswith("_") or name in _LEFT_OUT:
            continue
        plain = _plain(value)
        if plain is not None:
            found[name] = plain
    return found


def constant_of(array: Any) -> Any:
    """A small constant as a plain setting; None for one that stays a tensor."""
    value = np.asarray(array)
    small = value.ndim == 0 or (value.dtype.kind in "iub" and value.size <= _MOST_ELEMENTS)
    if not small or value.dtype.kind not in "iubf":
        return None
    return [_plain(one) for one in value.ravel()] if value.ndim else _plain(value[()])


def plain_settings(config: Any) -> dict[str, Any]:
    """What of a layer's or an optimizer's configuration is plain, without its name and dtype."""
    left_out = ("name", "dtype", "trainable", "batch_input_shape", "batch_shape", "layers")
    found = {name: _plain(value) for name, value in dict(config).items() if name not in left_out}
    return {name: value for name, value in found.items() if value is not None}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    """A value as JSON holds it; None for what is neither a number, a text nor a short list of them."""
    which = getattr(value, "WhichOneof", None)
    if which is not None:
        return _of_protocol(value, which("value"))
    if isinstance(value, (bytes, str)):
        return _text(value)
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return _shortest(float(value))
    if isinstance(value, (list, tuple)) and len(value) <= _MOST_ELEMENTS:
        inside = [_plain(one) for one in value]
        return None if None in inside else inside
    return None


def _of_protocol(value: Any, field: str | None) -> Any:
    if field in ("s", "i", "f", "b"):
        return _plain(getattr(value, field))
    if field == "list":
        lists = (list(getattr(value.list, name)) for name in ("s", "i", "f", "b"))
        return _plain(next(filter(None, lists), []))
    return None


def _shortest(value: float) -> float:
    """The shortest decimal that is the same in single precision: 0.2 rather than 0.20000000298023224."""
    single = np.float32(value)
    return (
        float(str(single))
        if np.isfinite(single) and abs(float(single) - value) <= 1e-6 * abs(value)
        else value
    )
