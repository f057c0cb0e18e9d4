"""Run a model on variants of a batch, and keep what each operator gives."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_flatten

from lockstep.plugin import own_folders
from lockstep.recordings import unit_roundoff
from lockstep_sampling.invariance.module_arguments import (
    Inputs,
    ModuleCall,
    floating_leaves,
)
from lockstep_sampling.invariance.row_draws import KnownDraws, RowDraws

_HIDDEN = (str(Path(torch.__file__).parent) + os.sep, *own_folders())


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of an operator.

    name: As `torch.nn.functional.linear`.
    module: Path of the module that calls it; "" for the model itself.
    file, line: Where the model's code calls it.
    outputs: Its results with floating-point numbers.
    sources: Places of the operators whose results it is given.
    """

    name: str
    module: str
    file: str
    line: int
    outputs: tuple[torch.Tensor, ...]
    sources: frozenset[int] = frozenset()

    def is_as(self, other: Operator) -> bool:
        """Whether another run made the same call."""
        return (self.name, self.module, self.file, self.line) == (
            other.name, other.module, other.file, other.line,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """A batch whose rows stand among others than in the batch as given.

    name: How they do, for a person.
    rows: Which row of the given batch each of its rows is.
    compared: Which of its rows are compared.
    """

    name: str
    rows: tuple[int, ...]
    compared: tuple[int, ...]


def variants_of(rows: int) -> list[Variant]:
    """Return the variants of a batch of so many rows, 2 or more; the first two have its own size."""
    every = tuple(range(rows))
    last = rows - 1
    found = [
        Variant("other neighbours of the first row", (0,) * rows, (0,)),
        Variant("other neighbours of the last row", (last,) * rows, (last,)),
        Variant("permuted", every[::-1], every),
        Variant("twice in one batch", (*every, *every), every),
        Variant("the first row alone", (0,), (0,)),
        Variant("the last row alone", (last,), (0,)),
    ]
    if rows > 3:
        half = every[: rows // 2]
        found.append(Variant("half of the batch", half, half))
    return found


def rows_of(inputs: Inputs, axis: int = 0) -> int:
    """Return the number of rows: the extent of the first input that has this axis; 0 for none."""
    return next((int(one.shape[axis]) for one in inputs.values() if one.ndim > axis), 0)


def taken(inputs: Inputs, rows: Sequence[int], axis: int = 0) -> dict[str, torch.Tensor]:
    """Return the inputs with these rows; what has no axis of rows stays."""
    count = rows_of(inputs, axis)
    index = torch.tensor(rows)
    return {
        name: one.index_select(axis, index.to(one.device))
        if one.ndim > axis and one.shape[axis] == count
        else one.clone()
        for name, one in inputs.items()
    }


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a model.

    operators: Its calls of operators, in order.
    result: What the model gives, as if by an operator.
    draws: Random numbers that were drawn, in order.
    hidden_draws: Operators that draw random numbers which cannot be given to the same rows again.
    """

    operators: list[Operator]
    result: Operator
    draws: list[torch.Tensor]
    hidden_draws: list[str]


def run_of(
    call: ModuleCall, inputs: Inputs, *, seed: int, known: KnownDraws | None = None,
    rows: Sequence[int] = (),
) -> Run:  # fmt: skip
    """Run a copy of a module; each row draws the random numbers that it has in `known`, and else those of the seed."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]), _same_python_draws(seed):
        torch.manual_seed(seed)
        own = copy.deepcopy(call.module)
        args, kwargs = call.arguments(inputs)
        paths: list[str] = []
        watch = _Watch(lambda: paths[-1] if paths else "")
        with _paths(own, paths), RowDraws(known, rows) as draws, watch:
            result = own(*args, **kwargs)
    leaves, sources = floating_leaves(result), watch.sources_of(result)
    given = Operator("the model's result", "", "", 0, leaves, sources)
    return Run(watch.found, given, draws.values, draws.hidden)


@contextmanager
def _same_python_draws(seed: int) -> Iterator[None]:
    """Seed the generators of Python and NumPy, and put them back."""
    state, arrays = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(arrays)


class _Watch(TorchFunctionMode):
    """Keeps the results of each call of torch that code outside of torch makes."""

    def __init__(self, module: Callable[[], str]) -> None:
        super().__init__()
        self.found: list[Operator] = []
        self._module = module
        self._made: dict[int, tuple[torch.Tensor, frozenset[int]]] = {}

    def sources_of(self, given: Any) -> frozenset[int]:
        """Return the places of the operators that gave these tensors."""
        known = (self._made.get(id(one)) for one in tree_flatten(given)[0])
        return frozenset().union(*(one[1] for one in known if one is not None))

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        sources = self.sources_of((args, dict(kwargs or {})))
        result = func(*args, **(kwargs or {}))
        outputs = tuple(one.detach().clone() for one in _floating(result))
        if outputs:
            name = resolve_name(func) or getattr(func, "__name__", str(func))
            where = caller_place()
            self.found.append(Operator(name, self._module(), *where, outputs, sources))
            sources = frozenset({len(self.found) - 1})
        # what gives nothing has written into what it was given, as `x[0] = 1` does
        for one in tree_flatten(args[:1] if result is None else result)[0]:
            if isinstance(one, torch.Tensor):
                self._made[id(one)] = (
                    one,
                    sources,
                )  # kept, as its number is another's once it is gone
        return result


def _floating(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        if result.is_floating_point():
            yield result
    elif isinstance(result, (tuple, list)):
        for one in result:
            yield from _floating(one)


def caller_place() -> tuple[str, int]:
    """File and line of the innermost code that is neither torch's nor Lockstep's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


@contextmanager
def _paths(module: torch.nn.Module, paths: list[str]) -> Iterator[None]:
    """Keep the paths of the modules that are running."""
    with ExitStack() as stack:
        for path, one in module.named_modules():
            enter = one.register_forward_pre_hook(lambda _, __, path=path: paths.append(path))
            leave = one.register_forward_hook(lambda _, __, ___: (paths.pop(), None)[1])
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        yield


def in_double(call: ModuleCall) -> ModuleCall:
    """Return the same call of a copy of the module in double precision."""
    wide = {
        name: one.double() if one.is_floating_point() else one for name, one in call.inputs.items()
    }
    module = copy.deepcopy(call.module).double()
    return dataclasses.replace(call, module=module, inputs=wide)


def beginning(one: Sequence[Operator], other: Sequence[Operator]) -> int:
    """Return how many calls both runs begin with."""
    for count, (left, right) in enumerate(zip(one, other, strict=False)):
        if not left.is_as(right):
            return count
    return min(len(one), len(other))


def borders_of(operators: Sequence[Operator]) -> list[float]:
    """Return for each operator the border of the coarsest result so far."""
    worst, found = 0.0, []
    for one in operators:
        dtypes = (str(output.dtype).removeprefix("torch.") for output in one.outputs)
        worst = max(worst, *map(unit_roundoff, dtypes))
        found.append(math.sqrt(worst))
    return found


def relative_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference of an element by the largest element; infinite where one alone is."""
    wide, narrow = one.double(), other.double()
    same = (wide == narrow) | (wide.isnan() & narrow.isnan())
    if bool(same.all()):
        return 0.0
    apart = (wide - narrow)[~same].abs()
    largest = float(wide[wide.isfinite()].abs().max()) if bool(wide.isfinite().any()) else 0.0
    most = float(apart.max())
    return most / largest if largest and math.isfinite(most) else math.inf


__all__ = [
    "Inputs",
    "Operator",
    "Run",
    "Variant",
    "beginning",
    "borders_of",
    "caller_place",
    "in_double",
    "relative_difference",
    "rows_of",
    "run_of",
    "taken",
    "variants_of",
]
