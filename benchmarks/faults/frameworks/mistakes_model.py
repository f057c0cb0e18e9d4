"""Mistakes in the model's own code: layers, attention, norms, precision, hand-written backward passes."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from frameworks.mistakes import Answers, Mistake, Place, register
from frameworks.script import Script
from frameworks.ways import Way
from lockstep.core.finding import Kind

Alter = Callable[[nn.Module], None]
"""Changes one module in place."""

_SETUP = (Kind.SETUP,)


def _at(alter: Alter) -> Callable[[Script, Place], None]:
    """Plant by altering the module at the place."""

    def plant(script: Script, place: Place) -> None:
        script.edits.append(lambda model: alter(model.get_submodule(place)))

    return plant


def _config(**settings: Any) -> Callable[[Script, Place], None]:
    def plant(script: Script, place: Place) -> None:
        script.config = {**script.config, **settings}

    return plant


def _of(*names: str) -> Callable[[Way, Any], bool]:
    return lambda way, subject: subject.name in names


def _eager(way: Way, subject: Any) -> bool:
    return "compiled" not in way.traits


def _rewritten(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Give a module other code."""
    module.forward = MethodType(forward, module)  # type: ignore[method-assign]


def _answering(change: Callable[[Any], Any]) -> Alter:
    """A module that changes what it returns."""

    def alter(module: nn.Module) -> None:
        original = module.forward
        _rewritten(module, lambda self, *args, **kwargs: change(original(*args, **kwargs)))

    return alter


# ------------------------------------------------------------------------------------ graph and layers


def _detached(module: nn.Module) -> None:
    _answering(lambda value: value.detach())(module)


def _without_bias(module: nn.Module) -> None:
    def forward(self: Any, value: Tensor) -> Tensor:
        if isinstance(self, nn.Conv2d):
            return F.conv2d(value, self.weight, None, self.stride, self.padding)
        weight = self.weight if isinstance(self, nn.Linear) else self.weight.t()
        return F.linear(value, weight)

    _rewritten(module, forward)


def _has_bias(way: Way, subject: Any) -> bool:
    """DDP refuses parameters that are not used."""
    return subject.name != "llama" and "adapters" not in way.traits and way.group != "ddp"


def _without_residual(module: nn.Module) -> None:
    original = module.forward

    def forward(self: Any, *args: Any) -> Any:
        value = original(*args)
        return (
            value - args[0] if len(args) == 1 else self.LayerNorm(self.dropout(self.dense(args[0])))
        )

    _rewritten(module, forward)


def _other_norm(module: nn.Module) -> None:
    """1e-5 where it was less, as many a library has it, else 1e-6."""
    name = next(name for name in ("eps", "variance_epsilon") if hasattr(module, name))
    setattr(module, name, 1e-5 if getattr(module, name) < 1e-5 else 1e-6)


def _other_activation(module: nn.Module) -> None:
    from transformers.activations import NewGELUActivation

    name = next(
        name
        for name in ("act", "activation_fn", "intermediate_act_fn", "act_fn")
        if hasattr(module, name)
    )
    kind = type(getattr(module, name)).__name__
    other: nn.Module = (
        nn.GELU()
        if kind in ("NewGELUActivation", "SiLU", "SiLUActivation")
        else NewGELUActivation()
    )
    setattr(module, name, other)


def _other_dropout(module: nn.Module) -> None:
    assert isinstance(module, nn.Dropout)
    module.p = 0.25


def _evaluating(module: nn.Module) -> None:
    module.eval()
    module.train = MethodType(lambda self, mode=True: self, module)  # type: ignore[method-assign]


register(
    Mistake(
        "stray-detach",
        _at(_detached),
        Answers(calls=("detach",), words=("graph is cut",)),
        "linear",
        _eager,
    )
)
register(Mistake("dropped-bias", _at(_without_bias), Answers(), "linear", _has_bias))
register(Mistake("dropped-residual", _at(_without_residual), Answers(), "residual", share=6))
register(Mistake("norm-epsilon", _at(_other_norm), Answers(), "norm"))
register(Mistake("activation-variant", _at(_other_activation), Answers(), "activation", share=6))
register(Mistake("dropout-probability", _at(_other_dropout), Answers(kinds=_SETUP), "dropout"))
register(
    Mistake(
        "left-in-evaluation",
        _at(_evaluating),
        Answers(kinds=_SETUP, words=("eval", "training mode")),
        "dropout",
    )
)
register(
    Mistake(
        "norm-in-evaluation",
        _at(_evaluating),
        Answers(kinds=_SETUP, words=("eval", "training mode")),
        "running",
    )
)


# ----------------------------------------------------------------------------------------- attention


def _without_mask(module: nn.Module) -> None:
    original = module.forward
    module.is_causal = False  # type: ignore[assignment]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["attention_mask"] = None
        return original(*args[:1], **kwargs)

    _rewritten(module, forward)


def _shifted_mask(module: nn.Module) -> None:
    """Every token sees the next one too, or its padding is cut one token late."""
    original = module.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["attention_mask"] = kwargs["attention_mask"].roll(1, dims=-1)
        return original(*args[:1], **kwargs)

    _rewritten(module, forward)


def _other_scale(module: Any) -> None:
    module.scaling = module.scaling * 1.05


def _text_only(way: Way, subject: Any) -> bool:
    return "text" in subject.traits


_ATTENTION = Answers(calls=("scaled_dot_product_attention",))
register(Mistake("mask-missing", _at(_without_mask), _ATTENTION, "attention", _text_only))
register(Mistake("mask-off-by-one", _at(_shifted_mask), _ATTENTION, "attention", _text_only))
register(Mistake("attention-scale", _at(_other_scale), _ATTENTION, "attention"))


def _other_rotation(module: Any) -> None:
    module.inv_freq = module.inv_freq * 0.98


register(
    Mistake(
        "rotary-base",
        _at(_other_rotation),
        Answers(phases=("init",), words=("inv_freq",)),
        "rotary",
        share=5,
    )
)


def _late_positions(module: nn.Module) -> None:
    """Positions counted from one."""
    original = module.forward
    _rewritten(module, lambda self, ids, *rest: original(ids + 1, *rest))


register(Mistake("positions-from-one", _at(_late_positions), Answers(), "positions"))


# ------------------------------------------------------------------------------------------ precision


def _in(dtype: torch.dtype) -> Alter:
    """A layer that computes in a shorter type, and gives back what it was given."""

    def alter(module: nn.Module) -> None:
        original = module.forward

        def forward(self: Any, value: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                parameters = {
                    name: item.to(dtype) for name, item in self.named_parameters(recurse=False)
                }
                short = _Bare(original)
                return short(value.to(dtype), parameters, self).to(value.dtype)

        _rewritten(module, forward)

    return alter


class _Bare:
    """A layer's own code with other parameters."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        self.forward = forward

    def __call__(self, value: Tensor, parameters: dict[str, Tensor], module: Any) -> Tensor:
        weight, bias = parameters["weight"], parameters.get("bias")
        if isinstance(module, nn.Conv2d):
            return F.conv2d(value, weight, bias, module.stride, module.padding)
        if isinstance(module, nn.LayerNorm):
            return F.layer_norm(value, module.normalized_shape, weight, bias, module.eps)
        if isinstance(module, nn.Linear):
            return F.linear(value, weight, bias)
        if isinstance(module, nn.BatchNorm2d):
            return F.batch_norm(value, None, None, weight, bias, training=True, eps=module.eps)
        if bias is None:
            scale = torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + module.variance_epsilon)
            return weight * (value * scale)
        return F.linear(value, weight.t(), bias)


def _autocast_here(module: nn.Module) -> None:
    original = module.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = original(*args, **kwargs)
        return value.float() if isinstance(value, Tensor) else value

    _rewritten(module, forward)


def _whole_precision(way: Way, subject: Any) -> bool:
    return "autocast" not in way.traits and "adapters" not in way.traits


_PRECISION = Answers(uniform=True, calls=("bfloat16", "half"))
register(
    Mistake("layer-bf16", _at(_in(torch.bfloat16)), _PRECISION, "linear", _whole_precision, share=6)
)
register(Mistake("layer-fp16", _at(_in(torch.float16)), _PRECISION, "linear", _whole_precision))
register(Mistake("norm-bf16", _at(_in(torch.bfloat16)), _PRECISION, "norm", _whole_precision))
register(Mistake("block-autocast", _at(_autocast_here), _PRECISION, "block", _whole_precision))
register(
    Mistake(
        "router-bf16", _at(_in(torch.bfloat16)), _PRECISION, "router", _whole_precision, share=6
    )
)


# ------------------------------------------------------------------------------------ backward passes


class _HalfBackward(torch.autograd.Function):
    """Passes its input on, and half of the gradient."""

    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 0.5 * gradient


class _Square(torch.autograd.Function):
    """x + 0.1 x^2 with a backward pass written by hand, which forgets a factor of two."""

    @staticmethod
    def forward(context: Any, value: Tensor, factor: float) -> Tensor:
        context.save_for_backward(value)
        context.factor = factor
        return value + 0.1 * value * value

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (value,) = context.saved_tensors
        return gradient * (1 + 0.1 * context.factor * value), None


def _half_backward(module: nn.Module) -> None:
    _answering(_HalfBackward.apply)(module)


def _square(factor: float) -> Alter:
    return _answering(lambda value: _Square.apply(value, factor))


register(
    Mistake(
        "halved-backward",
        _at(_half_backward),
        Answers(calls=("_halfbackward",)),
        "linear",
        share=6,
    )
)


def _plant_square(script: Script, place: Place) -> None:
    script.edits.pop()
    _at(_square(1.0))(script, place)


register(
    Mistake(
        "custom-backward",
        _plant_square,
        Answers(calls=("_square",)),
        "linear",
        share=6,
        prepare=_at(_square(2.0)),
    )
)


def _hooked(module: nn.Module) -> None:
    """A hook left over from debugging makes a parameter's gradient larger."""
    parameter = next(module.parameters())
    parameter.register_hook(lambda gradient: gradient * 1.5)


register(
    Mistake(
        "gradient-hook",
        _at(_hooked),
        Answers(near_phases=("backward",)),
        "linear",
        lambda way, subject: "sharded" not in way.traits and "adapters" not in way.traits,
    )
)


# ---------------------------------------------------------------------------- what trains, what is tied


def _frozen(module: nn.Module) -> None:
    module.requires_grad_(False)


def _plant_frozen_body(script: Script, place: Place) -> None:
    def edit(model: nn.Module) -> None:
        head = {id(item) for item in model.get_submodule(place).parameters()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in head)

    script.edits.append(edit)


def _all_trains(way: Way, subject: Any) -> bool:
    return "adapters" not in way.traits


def _untied(module: Any) -> None:
    module.weight = nn.Parameter(module.weight.detach().clone())


def _untied_otherwise(module: Any) -> None:
    """Left with the values it was made with."""
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randn(module.weight.shape, generator=generator) * module.weight.std().detach()
    module.weight = nn.Parameter(drawn)


_FROZEN = Answers(
    kinds=_SETUP, near_phases=("init", "backward", "optimizer"), words=("frozen", "requires_grad")
)
register(Mistake("frozen-layer", _at(_frozen), _FROZEN, "linear", _all_trains))
register(
    Mistake(
        "frozen-body",
        _plant_frozen_body,
        Answers(kinds=_SETUP, near=False, words=("frozen", "requires_grad")),
        "head",
        _all_trains,
    )
)
register(
    Mistake(
        "untied-head", _at(_untied), Answers(kinds=_SETUP, words=("tied",)), "tied", _all_trains
    )
)
register(
    Mistake(
        "head-not-loaded",
        _at(_untied_otherwise),
        Answers(kinds=_SETUP, words=("tied",)),
        "tied",
        _all_trains,
    )
)


def _transposed(module: Any) -> None:
    with torch.no_grad():
        module.weight.copy_(module.weight.flip(0))


def _dropped_key(module: nn.Module) -> None:
    """A layer that the checkpoint has under another name keeps the values it was made with."""
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


register(Mistake("weights-not-loaded", _at(_dropped_key), Answers(near_phases=("init",)), "linear"))
register(Mistake("weight-flipped", _at(_transposed), Answers(near_phases=("init",)), "linear"))


# ------------------------------------------------------------------------------------------- buffers


def _momentum(module: Any) -> None:
    module.momentum = 0.01


def _no_follow(model: Any) -> None:
    model.follow = lambda features: None


def _plant_no_follow(script: Script, place: Place) -> None:
    script.edits.append(_no_follow)


register(Mistake("running-momentum", _at(_momentum), Answers(kinds=_SETUP), "running"))
register(
    Mistake(
        "buffer-not-updated",
        _plant_no_follow,
        Answers(calls=("mul_", "add_", "std"), words=("spread",)),
        "",
        _of("mlp"),
        share=6,
    )
)
