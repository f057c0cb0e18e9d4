"""Shapes of recurrent layers while a model is exported, so that sequences may be of any length."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._decomp import decomposition_table

_OPERATORS = ("lstm", "gru")
"""Those that ONNX has too; plain recurrent layers are written out step by step, and must be run."""


@contextlib.contextmanager
def any_length() -> Iterator[None]:
    """Give recurrent layers with free axes their shapes without running them.

    torch 2.13 runs their steps one by one in a trace, which fixes how many there are. The program keeps the whole layer
    as one operator, so only its shapes matter.
    """
    operators = [getattr(torch.ops.aten, name).input for name in _OPERATORS]
    held: list[tuple[Any, Any]] = [(one.py_kernels, dict(one.py_kernels)) for one in operators]
    held.append((decomposition_table, {one: decomposition_table[one] for one in operators}))
    try:
        for table, kernels in held:
            table.update({key: _shapes_alone(kernel) for key, kernel in kernels.items()})
        _forget_dispatch(operators)
        yield
    finally:
        for table, kernels in held:
            table.update(kernels)
        _forget_dispatch(operators)


def _forget_dispatch(operators: Any) -> None:
    for one in operators:
        one._dispatch_cache.clear()


def _shapes_alone(kernel: Any) -> Any:
    def shapes(data: Any, *more: Any) -> Any:
        is_free = any(isinstance(one, torch.SymInt) for one in data.shape)
        return (_shapes if is_free else kernel)(data, *more)

    return shapes


def _shapes(data: Any, states: Any, *more: Any) -> Any:
    """Results for states, weights, has_biases, layers, dropout, train, bidirectional, batch_first."""
    every = states if isinstance(states, (list, tuple)) else [states]
    wide = every[0].shape[-1] * (2 if more[5] else 1)
    return data.new_empty((*data.shape[:2], wide)), *(torch.empty_like(one) for one in every)
