"""Lists of public names, so that no name is written that its package lacks.

Each list is a text file beside this one: `#` lines that say where it comes from, then one dotted name a line, sorted.
`benchmarks/migrate/torch_names.py` and `benchmarks/migrate/source_names.py` make them anew.
"""

from __future__ import annotations

import functools
from importlib import resources

# A script for a device has torch and what belongs to the device. torch itself brings those of xpu and mps along.
_TORCH = ("torch", "xpu", "mps")
_LISTS = {
    "torch": _TORCH,
    "neutral": _TORCH,
    "xpu": _TORCH,
    "mps": _TORCH,
    "npu": (*_TORCH, "npu"),
    "hpu": (*_TORCH, "hpu"),
    "npu_bridge": ("npu_bridge",),
}

TARGETS = tuple(_LISTS)
"""The targets that have names."""


def names_of(target: str) -> frozenset[str]:
    """Every listed dotted name that a script for a target can use.

    Parameters
    ----------
    target
        One of `TARGETS`: a device, `torch` for what torch itself has, `npu_bridge` for TensorFlow on the NPU.

    Raises
    ------
    ValueError
        If there is no such target.

    Examples
    --------
    >>> "torch.npu.synchronize" in names_of("npu")
    True
    """
    if target not in _LISTS:
        raise ValueError(f"no names are listed for {target!r}: choose among {', '.join(TARGETS)}")
    return _names(target)


def has_name(target: str, dotted: str) -> bool:
    """Whether a target has a name: a module, or something in one.

    Examples
    --------
    >>> has_name("npu", "torch.npu.nvtx")
    False
    """
    return dotted in names_of(target)


@functools.cache
def _names(target: str) -> frozenset[str]:
    return frozenset().union(*map(_list, _LISTS[target]))


@functools.cache
def _list(name: str) -> frozenset[str]:
    text = resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))
