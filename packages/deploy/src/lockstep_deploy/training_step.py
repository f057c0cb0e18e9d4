"""One step of training as a program without side effects: forward, loss, backward, update; state in, state out."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.export import ExportedProgram
from torch.func import functional_call, grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from lockstep.errors import UsageError
from lockstep_deploy.engines import first_line
from lockstep_deploy.program_run import moved
from lockstep_deploy.stage import TARGET

Tensors = dict[str, torch.Tensor]

LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": nn.functional.cross_entropy,
    "mse": nn.functional.mse_loss,
}


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer and its settings, as `--train-step` says them: `sgd:lr=0.1,momentum=0.9`.

    name: "sgd", "adam" or "adamw".
    settings: As torch's optimizer of this name takes them.
    """

    name: str
    settings: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Update:
        """The update of a text. Raises UsageError if it names another optimizer or setting."""
        name, _, rest = text.partition(":")
        if name not in _DEFAULTS:
            raise UsageError(
                f"--train-step {text}: no optimizer {name}; there are {', '.join(_DEFAULTS)}"
            )
        settings = dict(_DEFAULTS[name])
        for part in filter(None, rest.split(",")):
            key, _, value = part.partition("=")
            if key not in settings:
                raise UsageError(
                    f"--train-step {text}: {name} has no setting {key}; it has {', '.join(settings)}"
                )
            try:
                settings[key] = float(value)
            except ValueError:
                raise UsageError(f"--train-step {text}: {key}={value} is not a number") from None
        return cls(name, settings)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        """The same by torch's own class."""
        kept: dict[str, Any] = dict(self.settings)
        if self.name == "sgd":
            return torch.optim.SGD(parameters, **kept)
        betas = kept.pop("beta1"), kept.pop("beta2")
        kind = torch.optim.AdamW if self.name == "adamw" else torch.optim.Adam
        return kind(parameters, betas=betas, **kept)

    def first_state(self, parameters: Mapping[str, torch.Tensor]) -> Tensors:
        """Return its state before the first update."""
        if self.name == "sgd":
            return {f"momentum.{name}": torch.zeros_like(one) for name, one in parameters.items()}
        moments = {
            f"{which}.{name}": torch.zeros_like(one)
            for which in ("first", "second")
            for name, one in parameters.items()
        }
        # Powers in double precision, each made of the last: 1 - 0.999 has an error of 6e-5 in single, and the
        # exporter writes the base of a power in single precision.
        betas = {"first": self.settings["beta1"], "second": self.settings["beta2"]}
        shares = {f"share.{which}": _double(beta) for which, beta in betas.items()}
        return {**shares, **{f"power.{which}": _double(1.0) for which in betas}, **moments}

    def apply(
        self, parameters: Tensors, gradients: Tensors, state: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Parameters and state after an update (torch.optim.SGD, Adam and AdamW, as their pages have them)."""
        rule = _sgd if self.name == "sgd" else _adam
        settings = dict(self.settings)
        if self.name == "adamw":  # its decay is apart from the gradient
            left = 1 - settings["lr"] * settings.pop("weight_decay")
            settings["weight_decay"] = 0.0
            parameters = {name: one * left for name, one in parameters.items()}
        return rule(parameters, gradients, state, settings)


_DEFAULTS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.01, "momentum": 0.0, "weight_decay": 0.0},
    "adam": {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01},
}


def _sgd(
    parameters: Tensors, gradients: Tensors, state: Tensors, settings: Mapping[str, float]
) -> tuple[Tensors, Tensors]:
    new, kept = {}, {}
    for name, one in parameters.items():
        gradient = gradients[name] + settings["weight_decay"] * one
        momentum = settings["momentum"] * state[f"momentum.{name}"] + gradient
        kept[f"momentum.{name}"] = momentum
        new[name] = one - settings["lr"] * momentum
    return new, kept


def _adam(
    parameters: Tensors, gradients: Tensors, state: Tensors, settings: Mapping[str, float]
) -> tuple[Tensors, Tensors]:
    powers = {one: state[f"power.{one}"] * state[f"share.{one}"] for one in ("first", "second")}
    kept = {f"power.{which}": power for which, power in powers.items()}
    kept |= {f"share.{which}": state[f"share.{which}"].clone() for which in powers}
    first_share, second_share = settings["beta1"], settings["beta2"]
    first_part, second_part = 1 - powers["first"], (1 - powers["second"]).sqrt()
    new = {}
    for name, one in parameters.items():
        gradient = gradients[name] + settings["weight_decay"] * one
        first = first_share * state[f"first.{name}"] + (1 - first_share) * gradient
        second = second_share * state[f"second.{name}"] + (1 - second_share) * gradient * gradient
        below = second.sqrt() / second_part.to(one.dtype) + settings["eps"]
        new[name] = one - settings["lr"] / first_part.to(one.dtype) * first / below
        kept[f"first.{name}"], kept[f"second.{name}"] = first, second
    return new, kept


def _double(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@dataclass
class TrainingStep:
    """A step of training to export.

    module: In training mode; its dropout off.
    loss: One of `LOSSES`.
    update: What follows the backward.
    batch: What a step is given, by name: the module's inputs, and `TARGET`.
    """

    module: nn.Module
    loss: str
    update: Update
    batch: Tensors

    def first_state(self) -> Tensors:
        """Return the inputs of each step that come out again, by name: parameters, buffers, optimizer state."""
        parameters = {name: one.detach().clone() for name, one in self.module.named_parameters()}
        buffers = {name: one.detach().clone() for name, one in self.module.named_buffers()}
        held = self.update.first_state(parameters)
        return {
            **{f"param.{name}": one for name, one in parameters.items()},
            **{f"buffer.{name}": one for name, one in buffers.items()},
            **{f"state.{name}": one for name, one in held.items()},
        }

    def program(self) -> ExportedProgram:
        """The step as a program of `torch.export`, given `state` and `batch`; returns the loss and the state.

        Raises UsageError if torch cannot trace it.
        """
        state = self.first_state()
        try:
            # A function: of a bound method the tracer counts its object among the arguments.
            with plain_kernels(), sdpa_kernel(SDPBackend.MATH):
                graph = make_fx(
                    lambda *given: self._step(*given),
                    decomposition_table=_backwards(),
                    tracing_mode="fake",
                )(state, self.batch)
            return torch.export.export(
                _Given(graph), (), {"state": state, "batch": self.batch}, strict=False
            )
        except Exception as error:
            raise UsageError(
                f"the training step cannot be exported ({type(error).__name__}: {first_line(error)}); train a part of"
                " the model, or export it without --train-step"
            ) from error

    def _step(self, state: Tensors, batch: Tensors) -> tuple[torch.Tensor, Tensors]:
        parameters, buffers, held = (
            _under(state, kind) for kind in ("param.", "buffer.", "state.")
        )
        inputs = {name: one for name, one in batch.items() if name != TARGET}

        def loss_of(own: Tensors) -> tuple[torch.Tensor, Tensors]:
            changed = {name: one.clone() for name, one in buffers.items()}
            returned = functional_call(self.module, (own, changed), (), inputs)
            return LOSSES[self.loss](first_tensor(returned), batch[TARGET]), changed

        gradients, (loss, changed) = grad_and_value(loss_of, has_aux=True)(parameters)
        new, kept = self.update.apply(parameters, gradients, held)
        made = {
            **{f"param.{name}": one for name, one in new.items()},
            **{f"buffer.{name}": one for name, one in changed.items()},
            **{f"state.{name}": one for name, one in kept.items()},
        }
        return loss, {name: made[name] for name in state}

    def eager_losses(
        self, batches: list[Tensors], draw: np.random.Generator | None = None
    ) -> list[float]:
        """Losses of torch's own training: its autograd, its optimizer, a copy of the module.

        batches: One a step.
        draw: Moves parameters to neighbours before each step, as rounding of the last one might; None lets them be.
        """
        module = copy.deepcopy(self.module)
        optimizer = self.update.optimizer(module.parameters())
        losses = []
        for batch in batches:
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.copy_(parameter if draw is None else moved(parameter, draw))
            optimizer.zero_grad()
            inputs = {name: one for name, one in batch.items() if name != TARGET}
            loss = LOSSES[self.loss](first_tensor(module(**inputs)), batch[TARGET])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


@contextlib.contextmanager
def plain_kernels() -> Iterator[None]:
    """Leave oneDNN out: its LSTM is one operator that cannot be taken apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a flag that is put back as it was
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def first_tensor(returned: Any) -> torch.Tensor:
    """The first tensor of what a module returns: scores, of an output of transformers its logits.

    Raises UsageError if there is none.
    """
    leaves = torch.utils._pytree.tree_leaves(getattr(returned, "logits", returned))
    found = next((one for one in leaves if isinstance(one, torch.Tensor)), None)
    if found is None:
        raise UsageError("the model returns no tensor to measure a loss on")
    return found


class _Given(nn.Module):
    """A graph as a module whose inputs have names."""

    def __init__(self, graph: nn.Module) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, state: Tensors, batch: Tensors) -> Any:
        return self.graph(state, batch)


def _under(state: Mapping[str, torch.Tensor], prefix: str) -> Tensors:
    return {
        name.removeprefix(prefix): one for name, one in state.items() if name.startswith(prefix)
    }


# ------------------------------------------------------------- backwards that ONNX has no rule for


def _backwards() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    # The exporter's rule for a batch norm that trains normalises by the running statistics (torch 2.13).
    norms = [
        aten.native_batch_norm,
        aten._native_batch_norm_legit,
        aten._native_batch_norm_legit_functional,
    ]
    return {
        **core_aten_decompositions(),
        **get_decompositions(norms),
        aten.empty_permuted.default: _empty,
        aten.convolution_backward.default: _convolution_backward,
        aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    }


def _empty(size: list[int], order: list[int], **options: Any) -> torch.Tensor:
    """Room for numbers; in which order it lies in memory is nothing that a file says."""
    return torch.zeros(size, dtype=options.get("dtype"))


def _convolution_backward(
    gradient: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, bias_sizes: Any, stride: list[int],
    padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int, mask: list[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """A convolution's gradients as convolutions (Dumoulin and Visin, A guide to convolution arithmetic, ch. 4)."""
    if transposed or groups != 1:
        raise UsageError(
            "a transposed or grouped convolution has no backward here; train without it"
        )
    convolve, axes = torch.ops.aten.convolution.default, range(len(stride))
    to_inputs = to_weight = to_bias = None
    if mask[0]:
        reach = [dilation[at] * (weight.shape[2 + at] - 1) + 1 - 2 * padding[at] for at in axes]
        made = [(gradient.shape[2 + at] - 1) * stride[at] + reach[at] for at in axes]
        short = [inputs.shape[2 + at] - made[at] for at in axes]
        to_inputs = convolve(gradient, weight, None, stride, padding, dilation, True, short, 1)
    if mask[1]:
        swapped = inputs.transpose(0, 1), gradient.transpose(0, 1)
        turned = convolve(*swapped, None, dilation, padding, stride, False, [0] * len(stride), 1)
        to_weight = turned.transpose(0, 1)
        for at in axes:
            to_weight = to_weight.narrow(2 + at, 0, weight.shape[2 + at])
    if mask[2]:
        to_bias = gradient.sum([0, *range(2, gradient.dim())])
    return to_inputs, to_weight, to_bias


def _max_pool_backward(
    gradient: torch.Tensor, inputs: torch.Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
    indices: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """What goes back through a maximum goes to where it was found."""
    flat = torch.zeros_like(inputs).flatten(2)
    return flat.scatter_add(2, indices.flatten(2), gradient.flatten(2)).view(inputs.shape)
