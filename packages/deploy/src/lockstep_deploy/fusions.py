"""Find the optimizer of the runtime that changes a model's results, by binary search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep_deploy import runtime
from lockstep_deploy.engines import engine
from lockstep_deploy.large_models import array_of_tensor
from lockstep_deploy.optimizers import RULE_SET, Optimizer, rules_of_library
from lockstep_deploy.rounding import SINGLE_EPS, allowed, relative_distance
from lockstep_deploy.runtime import Session, Settings
from lockstep_deploy.sixteen_bits import in_single_precision

Array = npt.NDArray[Any]

DRAWS = 3
"""How often a model is run again, all its numbers moved to neighbours, for what rounding makes of each value."""

_MOST_CULPRITS = 8


@dataclass(frozen=True, slots=True)
class Apart:
    """The value that an optimised graph changes most, measured by its noise.

    value: Its name; "" where all are equal bit by bit.
    relative: Relative Euclidean distance to what it is without optimisation.
    noise: What rounding may make of it, relative too.
    eps: Of its dtype.
    """

    value: str = ""
    relative: float = 0.0
    noise: float = 0.0
    eps: float = SINGLE_EPS

    @property
    def is_beyond(self) -> bool:
        """Whether it is further off than rounding makes it, as `lockstep export` judges it too."""
        return self.relative > allowed(self.noise, self.eps)

    @property
    def times(self) -> float:
        """How many times the noise the distance is."""
        return self.relative / self.noise if self.noise else (np.inf if self.relative else 0.0)


@dataclass(frozen=True, slots=True)
class Trial:
    """A model that was run with some optimizers left out: what it is apart, the operators of the graph that ran."""

    disabled: tuple[str, ...]
    apart: Apart
    operators: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Culprit:
    """An optimizer that changes numbers: what is apart with it and without, what it makes of the graph.

    `removed` and `added` count operators of the graph that runs; both are empty where leaving it out changed nothing.
    """

    name: str
    before: Apart
    after: Apart
    removed: Mapping[str, int]
    added: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Bisection:
    """The result of a search.

    ran: The optimizers that the runtime ran, with none left out.
    whole: What is apart with none left out.
    first: The first value in order of the graph that is beyond its noise; None where none is.
    culprits: Those without which nothing is beyond its noise, in the order in which they were found.
    left: What is apart without them.
    trials: How often the model was run.
    """

    ran: tuple[Optimizer, ...]
    whole: Apart
    first: Apart | None
    culprits: tuple[Culprit, ...]
    left: Apart
    trials: int


def bisect(
    tried: Callable[[tuple[str, ...]], Trial],
    changing: Callable[[tuple[str, ...]], Sequence[str]],
    rules: Sequence[str],
    is_too_far: Callable[[Apart], bool],
) -> tuple[list[Culprit], Trial]:
    """Find optimizers without which nothing is too far apart, each by binary search.

    Parameters
    ----------
    tried
        Runs the model without some optimizers.
    changing
        The optimizers that change the graph when some are left out, in the order in which they run.
    rules
        The rules inside of `RULE_SET`.
    is_too_far
        Whether a value is changed by too much.

    Returns
    -------
    tuple
        The culprits, and the model without them; where no set of optimizers is to blame, too far apart still.
    """
    out: tuple[str, ...] = ()
    culprits: list[Culprit] = []
    found = tried(out)
    while is_too_far(found.apart) and len(culprits) < _MOST_CULPRITS:
        names = [name for name in changing(out) if name not in out]
        if not names:
            break
        name = _first_too_far(names, out, tried, is_too_far)
        if name == RULE_SET:
            beside = (*out, *names[names.index(name) + 1 :])
            name = _first_too_far(rules, beside, tried, is_too_far)
        after = tried((*out, name))
        gone, new = Counter(found.operators), Counter(after.operators)
        culprits.append(Culprit(name, found.apart, after.apart, dict(new - gone), dict(gone - new)))
        out, found = (*out, name), after
    return culprits, found


def _first_too_far(
    names: Sequence[str],
    out: tuple[str, ...],
    tried: Callable[[tuple[str, ...]], Trial],
    is_too_far: Callable[[Apart], bool],
) -> str:
    """The first of some optimizers with which, and with those before it, something is too far apart.

    Where the first of them alone is too far and so is none of them, the last is named: what it leaves is tried next.
    """
    low, high = 0, len(names)  # with `low` of them nothing is too far, with `high` something is
    while high - low > 1:
        middle = (low + high) // 2
        if is_too_far(tried((*out, *names[middle:])).apart):
            high = middle
        else:
            low = middle
    return names[high - 1]


class Trials:
    """Runs a model with optimizers left out, and measures what is apart; the same set is run once.

    model: An `onnx.ModelProto`.
    inputs: What it is given.
    settings: How it is run with none left out.
    """

    def __init__(self, model: Any, inputs: Mapping[str, Array], settings: Settings) -> None:
        self._model, self._inputs, self._whole = model, inputs, settings
        self._names = list(
            dict.fromkeys(one for node in model.graph.node for one in node.output if one)
        )
        self._plain = dict(runtime.every_value(model, inputs, self._names))
        self._noise = self._measured_noise()
        self._done: dict[tuple[str, ...], tuple[Trial, list[Apart]]] = {}

    @property
    def count(self) -> int:
        """How many sets of optimizers were tried."""
        return len(self._done)

    def ran(self, disabled: tuple[str, ...] = ()) -> tuple[Optimizer, ...]:
        """The optimizers that the runtime runs without some."""
        return runtime.ran_by(self._model, self._settings(disabled))

    def changing(self, disabled: tuple[str, ...]) -> list[str]:
        """Those of them that change the graph."""
        return [one.name for one in self.ran(disabled) if one.changed]

    def tried(self, disabled: tuple[str, ...]) -> Trial:
        """The model without some optimizers."""
        key = tuple(sorted(disabled))
        if key not in self._done:
            self._done[key] = self._try(key)
        return self._done[key][0]

    def first_beyond(self, is_too_far: Callable[[Apart], bool]) -> Apart | None:
        """The first value, in order of the graph, that is too far apart with no optimizer left out."""
        self.tried(())
        return next((one for one in self._done[()][1] if is_too_far(one)), None)

    def _settings(self, disabled: tuple[str, ...]) -> Settings:
        return replace(self._whole, disabled=(*self._whole.disabled, *disabled))

    def _try(self, disabled: tuple[str, ...]) -> tuple[Trial, list[Apart]]:
        settings = self._settings(disabled)
        graph = runtime.optimized_graph(self._model, settings)
        names = {one for node in graph.graph.node for one in node.output}
        shared = [name for name in self._names if name in names]
        values = dict(runtime.every_value(graph, self._inputs, shared))
        values.update(Session(self._model, settings).run(self._inputs))  # what is really returned
        aparts = [self._apart(name, values[name]) for name in self._names if name in values]
        worst = max(aparts, key=lambda one: (one.is_beyond, one.times), default=Apart())
        operators = Counter(node.op_type for node in graph.graph.node)
        return Trial(disabled, worst if worst.relative else Apart(), operators), aparts

    def _apart(self, name: str, value: Any) -> Apart:
        plain = self._plain[name]
        if (
            isinstance(value, list)
            or np.shape(value) != np.shape(plain)
            or value.dtype != plain.dtype
        ):
            return Apart()
        return Apart(name, relative_distance(plain, value), self._noise[name], _spacing(plain))

    def _measured_noise(self) -> dict[str, float]:
        """The largest relative distance of each value over the draws, and no less than its dtype's spacing."""
        found = {name: _spacing(value) for name, value in self._plain.items()}
        draws = [np.random.default_rng(number) for number in range(DRAWS)]
        runs = [
            (_moved_model(self._model, one), {k: moved(v, one) for k, v in self._inputs.items()})
            for one in draws
        ]
        half = [name for name, one in self._plain.items() if _is_half(one)]
        if half:  # What each operator rounds, the runtime may leave out between two.
            wide = {k: v.astype("f4") if _is_half(v) else v for k, v in self._inputs.items()}
            runs.append((in_single_precision(self._model, half, "float16"), wide))
        for model, inputs in runs:
            for name, value in runtime.every_value(model, inputs, self._names):
                if not isinstance(value, list):
                    found[name] = max(found[name], relative_distance(self._plain[name], value))
        return found


def search(trials: Trials, *, bitwise: bool) -> Bisection:
    """Find the optimizers that change what a model computes.

    trials: Of the model.
    bitwise: Whether any difference is one too many, or those alone that are beyond rounding.
    """

    def is_too_far(apart: Apart) -> bool:
        return apart.relative > 0 if bitwise else apart.is_beyond

    ran, whole = trials.ran(), trials.tried(()).apart
    culprits, left = bisect(trials.tried, trials.changing, rules_of_library(), is_too_far)
    first = trials.first_beyond(is_too_far)
    return Bisection(ran, whole, first, tuple(culprits), left.apart, trials.count)


def moved(array: Array, draw: np.random.Generator) -> Array:
    """Each element times 1 - u, 1 or 1 + u at random, u the dtype's spacing at 1; whole numbers as they are."""
    if array.dtype.kind != "f":
        return array
    signs = draw.integers(-1, 2, array.shape).astype(array.dtype)
    return np.asarray(array * (1 + np.finfo(array.dtype).eps * signs), dtype=array.dtype)


def _moved_model(model: Any, draw: np.random.Generator) -> Any:
    helper = engine("onnx").numpy_helper
    found = type(model)()
    found.CopyFrom(model)
    for tensor in found.graph.initializer:
        array = array_of_tensor(tensor)
        if array.dtype.kind == "f" and array.ndim:  # a single number is a constant of the program
            tensor.CopyFrom(helper.from_array(moved(array, draw), tensor.name))
    return found


def _is_half(value: Any) -> bool:
    return getattr(value, "dtype", None) == np.float16


def _spacing(value: Any) -> float:
    kind = getattr(value, "dtype", np.dtype("i8"))
    return float(np.finfo(kind).eps) if kind.kind == "f" else 0.0
