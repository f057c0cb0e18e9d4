"""A training without dropout, or with its samples in order, where `lockstep record` was asked for one.

Functions of torch are given a probability of 0, samplers of torch their indices in order; from the import of torch to
the end of the process, not in recorded steps alone. What draws masks or an order itself is left as it is.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.jit import _builtins
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from lockstep.core.manifest import NotSeen, Options

NO_DROPOUT, NO_SHUFFLE = "off (--no-dropout)", "off (--no-shuffle)"

_DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout")
_OF_FUNCTIONAL = (*_DROPOUTS, "dropout1d", "dropout2d", "dropout3d")
_OF_TORCH = (
    *_DROPOUTS,
    "feature_dropout",
    *(f"{name}_" for name in (*_DROPOUTS, "feature_dropout")),
)

_IN_ORDER = (SequentialSampler, BatchSampler)
_MADE_SEQUENTIAL = (RandomSampler, SubsetRandomSampler, DistributedSampler)

_begun: WithoutDraws | None = None


def without_draws(options: Options) -> WithoutDraws | None:
    """Begin the requested change once in a process; None if nothing was requested."""
    global _begun
    if _begun is None and (options.no_dropout or options.no_shuffle):
        _begun = WithoutDraws(options)
    return _begun


class WithoutDraws:
    """Turns dropout and shuffling off in this process, for good."""

    def __init__(self, options: Options) -> None:
        self._untouched: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        if options.no_dropout:
            _turn_dropout_off()
        if options.no_shuffle:
            self._turn_shuffling_off()

    def gaps(self) -> Iterator[NotSeen]:
        """The samplers that were left to draw their own order."""
        for _, kind in list(self._untouched.items()):
            what = f"shuffling by {kind}"
            yield NotSeen(what, "--no-shuffle turns that of torch's own samplers off, not this")

    def _turn_shuffling_off(self) -> None:
        _replace(RandomSampler, "__iter__", self._sequential(_first_samples))
        _replace(SubsetRandomSampler, "__iter__", self._sequential(lambda one: one.indices))
        _replace(DistributedSampler, "__iter__", self._unshuffled)
        _replace(DataLoader, "__iter__", self._watching)

    def _sequential(self, indices_of: Callable[[Any], Sequence[int]]) -> Callable[..., Any]:
        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def sequential(sampler: Any) -> Iterator[int]:
                self._untouched.pop(sampler, None)
                return iter(indices_of(sampler))

            return sequential

        return wrap

    def _unshuffled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def unshuffled(sampler: Any) -> Any:
            self._untouched.pop(sampler, None)
            asked, sampler.shuffle = sampler.shuffle, False
            try:
                return original(sampler)  # it makes the whole order at once
            finally:
                sampler.shuffle = asked

        return unshuffled

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Note what may draw an order of its own; what comes to torch's own drawing after all is taken back there."""

        @functools.wraps(original)
        def watching(loader: Any) -> Any:
            own = vars(loader)
            for one in (own.get("dataset"), own.get("batch_sampler"), own.get("sampler")):
                if _may_shuffle(one):
                    self._untouched.setdefault(one, type(one).__qualname__)
            return original(loader)

        return watching


def _may_shuffle(item: Any) -> bool:
    if isinstance(item, IterableDataset):
        return True
    if not isinstance(item, Sampler) and not hasattr(item, "set_epoch"):
        return False
    draws = getattr(type(item), "__iter__", None)
    return all(draws is not kind.__iter__ for kind in (*_IN_ORDER, *_MADE_SEQUENTIAL))


def _first_samples(sampler: RandomSampler) -> Sequence[int]:
    many = len(sampler.data_source)
    if sampler.num_samples <= many:
        return range(sampler.num_samples)
    return [number % many for number in range(sampler.num_samples)]


def _turn_dropout_off() -> None:
    for name in _OF_FUNCTIONAL:
        _replace(functional, name, _dropping_nothing)
    _replace(functional, "scaled_dot_product_attention", _given_zero(4, "dropout_p"))
    for name in _OF_TORCH:
        _replace(torch, name, _dropping_nothing)
        setattr(torch._VF, name, getattr(torch, name))
    _replace(torch, "native_dropout", _given_zero(1, "p"))
    torch.nn.RNNBase.dropout = _NoneBetweenLayers()  # type: ignore[assignment]


def _replace(owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    setattr(owner, name, wrap(getattr(owner, name)))


def _given_zero(place: int, name: str) -> Callable[..., Any]:
    """Give a function 0 as its argument of this name, which stands at this place."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def without_dropout(*args: Any, **kwargs: Any) -> Any:
            if len(args) > place:
                return original(*args[:place], 0.0, *args[place + 1 :], **kwargs)
            return original(*args, **{**kwargs, name: 0.0})

        return _scripted_as(original, without_dropout)

    return wrap


def _dropping_nothing(original: Callable[..., Any]) -> Callable[..., Any]:
    given_zero = _given_zero(1, "p")(original)

    @functools.wraps(original)
    def without_dropout(*args: Any, **kwargs: Any) -> Any:
        if (
            torch.compiler.is_compiling()
        ):  # Dynamo knows torch's functions by the place that ours is at
            return args[0] if args else kwargs["input"]
        return given_zero(*args, **kwargs)

    return _scripted_as(original, without_dropout)


class _NoneBetweenLayers:
    """Stands for the dropout of recurrent layers; what a module was made with is kept and not told."""

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        return self if module is None else 0.0

    def __set__(self, module: Any, value: float) -> None:
        vars(module)["dropout"] = value


def _scripted_as(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.jit.script` compiles the original, since it cannot take arguments of any number."""
    values = vars(ours)
    if hasattr(original, "__code__"):
        values["__script_if_tracing_wrapper"], values["__original_fn"] = True, original
    elif operator := _builtins._find_builtin(original):
        _builtins._register_builtin(ours, operator)
    return ours
