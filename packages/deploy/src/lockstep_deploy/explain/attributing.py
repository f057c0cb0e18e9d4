"""Attributions of a model's answer to its inputs and layers, all of them computed by Captum."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.errors import UsageError
from lockstep.plugin import LoadedModel
from lockstep.terminal import words_of

try:
    from captum import attr as captum
except ModuleNotFoundError as error:  # the extra is not installed
    raise UsageError(
        f"{error.name} is not installed here: pip install 'lockstep-numerics[deploy]'"
    ) from error

Floats = npt.NDArray[np.float64]

_WINDOWS = 8
"""Into how many windows occlusion parts each side of an image."""

_MOST_WINDOWS = 64
"""Into how many windows it parts a table's columns or a text's tokens at most."""


class Method(str, enum.Enum):
    """How an input's parts are weighed; the words are printed."""

    SALIENCY = "saliency"
    """The size of the gradient (Simonyan et al. 2014)."""
    INTEGRATED = "integrated gradients"
    """Gradients along the way from zero, times the way (Sundararajan et al. 2017); 50 steps."""
    OCCLUSION = "occlusion"
    """What the score loses where a window is set to zero (Zeiler and Fergus 2014)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One input of a model with its attributions.

    name: Of the input.
    given: The input itself, samples first.
    values: Attributions, of the input's shape; of whole numbers, which enter an embedding, one for each.
    """

    name: str
    given: npt.NDArray[Any]
    values: Mapping[Method, Floats]


@dataclass(frozen=True, slots=True)
class Explained:
    """The attributions of a model's answer.

    name: Of the model.
    scores: Of each sample and class, as the model gives them.
    classes: Which class of each sample is explained.
    parts: Its inputs.
    layers: Gradient times output of each layer that has parameters, in the order in which they ran.
    gap: How far integrated gradients are from adding up to the score's change, relative to it: the most of all samples.
    outputs: The first output of each module without others in it, in the order in which they ran.
    """

    name: str
    scores: Floats
    classes: tuple[int, ...]
    parts: tuple[Part, ...]
    layers: Mapping[str, Floats]
    gap: float
    outputs: Mapping[str, npt.NDArray[np.float32]]


def explained(model: LoadedModel, classes: Sequence[int] | None = None) -> Explained:
    """Explain a model's answer to its inputs.

    classes: Which class of each sample to explain; None for the one with the highest score.

    Raises UsageError if the model has no inputs that can be explained, or gives no scores.
    """
    with _out_of_place(model.module), _model_errors(model.name):
        run = _Run(model)
        scores = run.scores()
        chosen = scores.argmax(1).tolist() if classes is None else list(classes)
        beyond = max(chosen, default=0) >= scores.shape[1] or len(chosen) != len(scores)
        if beyond:
            raise UsageError(
                f"{model.name}: gives {scores.shape[1]} scores for {len(scores)} samples; a class of it is a number"
                f" below {scores.shape[1]}"
            )
        target = torch.tensor(chosen)
        values, gap = run.inputs(target)
        layers, outputs = run.layers(target), run.outputs()
    parts = tuple(
        Part(name, model.inputs[name].detach().numpy(), {how: values[how][at] for how in Method})
        for at, name in enumerate(run.names)
    )
    return Explained(model.name, _array(scores), tuple(chosen), parts, layers, gap, outputs)


class _Run:
    """A model as a function of what can be attributed to: its floats, and the embeddings of its whole numbers."""

    def __init__(self, model: LoadedModel) -> None:
        self._model, self._module = model, model.module
        self._embeddings = self._found_embeddings()
        self.names = [
            name
            for name, one in model.inputs.items()
            if one.is_floating_point() or name in self._embeddings
        ]
        self._beside = [name for name in model.inputs if name not in self.names]
        self._beside += [name for name in self.names if name in self._embeddings]
        if not self.names:
            raise UsageError(
                f"{model.name}: none of its inputs is a float or enters an embedding, so nothing can be explained"
            )
        samples = {one.shape[0] if one.ndim else 0 for one in model.inputs.values()}
        if len(samples) != 1 or 0 in samples:
            raise UsageError(f"{model.name}: its inputs need one first axis in common, the samples")
        self._given = tuple(self._embedded(name) for name in self.names)
        self._others = tuple(model.inputs[name] for name in self._beside)

    def scores(self) -> torch.Tensor:
        """Return a score for each sample and class."""
        with torch.no_grad():
            return self._forward(*self._given, *self._others)

    def inputs(self, target: torch.Tensor) -> tuple[dict[Method, list[Floats]], float]:
        """Return the attributions of each input by each method, and the gap of integrated gradients."""
        more = {"target": target, "additional_forward_args": self._others}
        integrated, gaps = captum.IntegratedGradients(self._forward).attribute(
            self._given,
            return_convergence_delta=True,
            internal_batch_size=len(self._given[0]),
            **more,
        )
        windows = tuple(map(self._window, self.names, self._given))
        found = {
            Method.SALIENCY: captum.Saliency(self._forward).attribute(self._given, **more),
            Method.INTEGRATED: integrated,
            Method.OCCLUSION: captum.Occlusion(self._forward).attribute(
                self._given, sliding_window_shapes=windows, strides=windows, **more
            ),
        }
        moved = sum(one.flatten(1).sum(1) for one in integrated).abs().clamp(min=1e-12)
        gap = float((gaps.abs() / moved).max().detach())
        return {how: list(map(self._pooled, self.names, one)) for how, one in found.items()}, gap

    def layers(self, target: torch.Tensor) -> dict[str, Floats]:
        """Return gradient times output of each layer with parameters that ran."""
        layers = self._layers_that_ran()
        if not layers:
            return {}
        found = captum.LayerGradientXActivation(self._forward, list(layers.values())).attribute(
            self._given, target=target, additional_forward_args=self._others
        )
        first = (one[0] if isinstance(one, tuple) else one for one in found)
        return {name: _array(one) for name, one in zip(layers, first, strict=True)}

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return what each module without others in it gave at its first call."""
        found: dict[str, npt.NDArray[np.float32]] = {}

        def look(name: str, module: torch.nn.Module, given: Any, result: Any) -> None:
            if (
                name not in found
                and isinstance(result, torch.Tensor)
                and result.is_floating_point()
            ):
                found[name] = result.detach().to(torch.float32).numpy().copy()

        self._seen(look)
        return found

    def _forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        explained, others = tensors[: len(self.names)], tensors[len(self.names) :]
        by_name = dict(zip(self.names, explained, strict=True))
        inputs = by_name | dict(zip(self._beside, others, strict=True))
        replaced = {
            self._embeddings[name]: by_name[name] for name in self.names if name in self._embeddings
        }
        hooks = [
            layer.register_forward_hook(lambda module, given, result, to=to: to)
            for layer, to in replaced.items()
        ]
        try:
            ordered = {name: inputs[name] for name in self._model.inputs}
            return _scores_in(self._module(**ordered), self._model.name)
        finally:
            for hook in hooks:
                hook.remove()

    def _seen(self, look: Callable[[str, torch.nn.Module, Any, Any], None]) -> None:
        """Run the model once, and look at each call of a leaf module."""
        leaves = [
            (name, one) for name, one in self._module.named_modules() if not [*one.children()]
        ]
        hooks = [
            one.register_forward_hook(
                lambda module, given, result, name=name: look(name, module, given, result)
            )
            for name, one in leaves
        ]
        try:
            with torch.no_grad():
                self._module(**self._model.inputs)
        finally:
            for hook in hooks:
                hook.remove()

    def _found_embeddings(self) -> dict[str, torch.nn.Module]:
        """Return the embedding that each input of whole numbers enters."""
        found: dict[str, torch.nn.Module] = {}

        def look(name: str, module: torch.nn.Module, given: Any, result: Any) -> None:
            if isinstance(module, torch.nn.Embedding) and given:
                for own, one in self._model.inputs.items():
                    if own not in found and not one.is_floating_point() and _same(one, given[0]):
                        found[own] = module

        self._seen(look)
        return found

    def _layers_that_ran(self) -> dict[str, torch.nn.Module]:
        found: dict[str, torch.nn.Module] = {}

        def look(name: str, module: torch.nn.Module, given: Any, result: Any) -> None:
            floats = isinstance(result, torch.Tensor) and result.is_floating_point()
            if floats and [*module.parameters(recurse=False)]:
                found.setdefault(name, module)

        self._seen(look)
        replaced = set(self._embeddings.values())
        return {name: one for name, one in found.items() if one not in replaced}

    def _embedded(self, name: str) -> torch.Tensor:
        given = self._model.inputs[name]
        if name in self._embeddings:
            with torch.no_grad():
                given = self._embeddings[name](given)
        return given.detach().clone().requires_grad_()  # type: ignore[no-any-return]

    def _window(self, name: str, given: torch.Tensor) -> tuple[int, ...]:
        """Return the window of occlusion: a token, a column, or an eighth of an image's sides."""
        sides = given.shape[1:]
        if name in self._embeddings:
            return (-(-sides[0] // _MOST_WINDOWS), *sides[1:])
        if len(sides) == 3:
            return (sides[0], *(-(-one // _WINDOWS) for one in sides[1:]))
        return (-(-sides[0] // _MOST_WINDOWS), *sides[1:]) if sides else ()

    def _pooled(self, name: str, values: torch.Tensor) -> Floats:
        """Return attributions of an input's shape: those of an embedding's numbers are added up."""
        return _array(values.sum(-1) if name in self._embeddings else values)


def _same(one: torch.Tensor, other: Any) -> bool:
    return isinstance(other, torch.Tensor) and one.shape == other.shape and torch.equal(one, other)


def _array(tensor: torch.Tensor) -> Floats:
    return tensor.detach().to(torch.float64).numpy()


def _scores_in(returned: Any, name: str) -> torch.Tensor:
    """Return scores, samples first: of a sequence's positions those of the last, of an image's their mean."""
    several = isinstance(returned, Mapping | tuple | list) and len(returned)
    first = getattr(returned, "logits", None)
    if first is None and several:
        first = next(iter(returned.values() if isinstance(returned, Mapping) else returned))
    scores = returned if isinstance(returned, torch.Tensor) else first
    if not isinstance(scores, torch.Tensor) or not scores.is_floating_point():
        raise UsageError(f"{name}: returns no tensor of scores")
    if scores.ndim == 3:
        return scores[:, -1]
    if scores.ndim > 3:
        return scores.flatten(2).mean(2)
    return scores if scores.ndim == 2 else scores.reshape(-1, 1)


@contextmanager
def _model_errors(name: str) -> Iterator[None]:
    """Say in a sentence where the code of a model fails."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {words_of(error).strip().partition(chr(10))[0]}"
        raise UsageError(f"{name}: cannot be explained, as it fails ({why})") from error


@contextmanager
def _out_of_place(module: torch.nn.Module) -> Iterator[None]:
    """Let no module overwrite its input while the block runs: the number it came from is what is attributed to."""
    changed = [one for one in module.modules() if getattr(one, "inplace", False) is True]
    for one in changed:
        one.inplace = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for one in changed:
            one.inplace = True  # type: ignore[assignment]
