"""The ways of training: loops, libraries, and what is laid around a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from frameworks.libraries import train_with_lightning, train_with_trainer
from frameworks.loops import (
    AccelerateLoop,
    BareLoop,
    ClosureLoop,
    DistributedLoop,
    FlatShardedLoop,
    Loop,
    ShardedLoop,
    by,
)
from frameworks.script import Outcome, Script, Teacher
from frameworks.subjects import SUBJECTS, Subject

Prepare = Callable[[Script], None]


@dataclass(frozen=True)
class Way:
    """One way of training.

    Parameters
    ----------
    train
        Runs a script.
    prepare
        What this way asks of every script.
    subjects
        The models that are trained this way.
    group
        Ways of a group compute the same training, up to rounding.
    traits
        What mistakes may look for: "loop" (the script writes its own), "optimizer" (it names its own), "compiled" ...
    ranks
        Processes that train together.
    setup
        Whether its optimizer is set up otherwise than that of the group's first way.
    """

    name: str
    train: Callable[[Script], Outcome]
    prepare: Prepare
    subjects: tuple[str, ...]
    group: str
    traits: frozenset[str] = frozenset()
    ranks: int = 1
    setup: bool = False

    def script(self, subject: Subject) -> Script:
        """A sound script of this way, its batches not drawn yet."""
        script = Script(subject)
        self.prepare(script)
        return script


WAYS: dict[str, Way] = {}

_ALL = ("bert", "gpt2", "llama", "vit", "conv", "mlp")
_UNCOUNTED = tuple(name for name in _ALL if name != "conv")
"""What is computed again leaves its mark in batch norm's running statistics: checkpointed, they are other ones."""
_TEXT = ("bert", "gpt2", "llama")
_LOOP = frozenset({"loop", "optimizer"})


def _settings(**settings: Any) -> Prepare:
    """Lay values over the script's."""

    def prepare(script: Script) -> None:
        for name, value in settings.items():
            if isinstance(value, dict):
                value = {**getattr(script, name), **value}
            setattr(script, name, value)

    return prepare


def _wrapped(*wraps: Callable[[Script, nn.Module], nn.Module], **settings: Any) -> Prepare:
    def prepare(script: Script) -> None:
        _settings(**settings)(script)
        script.wraps.extend(partial(wrap, script) for wrap in wraps)

    return prepare


def _way(
    name: str,
    train: Callable[[Script], Outcome],
    subjects: tuple[str, ...],
    prepare: Prepare = lambda script: None,
    *,
    group: str = "plain",
    traits: frozenset[str] | set[str] = _LOOP,
    ranks: int = 1,
    setup: bool = False,
) -> None:
    WAYS[name] = Way(name, train, prepare, subjects, group, frozenset(traits), ranks, setup)


# ------------------------------------------------------------------------------ around the model


def _compiled(script: Script, model: nn.Module, **options: Any) -> nn.Module:
    return torch.compile(model, **{"backend": "aot_eager", **options})  # type: ignore[return-value]


def _compiled_blocks(script: Script, model: nn.Module) -> nn.Module:
    for name in script.subject.places["block"]:
        parent, _, last = name.rpartition(".")
        owner: Any = model.get_submodule(parent)
        owner[int(last)] = torch.compile(owner[int(last)], backend="aot_eager")
    return model


def _checkpointed(script: Script, model: nn.Module, *, reentrant: bool) -> nn.Module:
    """Activations are computed again in backward."""
    if "transformers" in script.subject.traits:
        enable: Any = model.gradient_checkpointing_enable
        enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        return model
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        CheckpointImpl,
        apply_activation_checkpointing,
        checkpoint_wrapper,
    )

    kind = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    blocks = [model.get_submodule(name) for name in script.subject.places["block"]]
    apply_activation_checkpointing(
        model, partial(checkpoint_wrapper, checkpoint_impl=kind), lambda item: item in blocks
    )
    return model


def _channels_last(script: Script, model: nn.Module) -> nn.Module:
    script.batches = [
        [
            {
                name: item.contiguous(memory_format=torch.channels_last) if item.ndim == 4 else item
                for name, item in batch.items()
            }
            for batch in step
        ]
        for step in script.batches
    ]
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _adapted(script: Script, model: nn.Module) -> nn.Module:
    """LoRA adapters on some layers, all else frozen."""
    from peft import LoraConfig, get_peft_model

    targets = {
        "bert": ["query", "dense"],
        "gpt2": ["c_attn", "c_fc"],
        "llama": ["q_proj", "up_proj"],
    }
    torch.manual_seed(script.model_seed)
    settings = {"r": 4, "lora_alpha": 8, **script.arguments.pop("adapter", {})}
    config = LoraConfig(
        target_modules=targets[script.subject.name],
        init_lora_weights=False,
        fan_in_fan_out=script.subject.name == "gpt2",
        **settings,
    )
    return get_peft_model(model, config)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- the registry

_PLAIN = by(Loop)
_way("plain", _PLAIN, _ALL)
_way("eager-attention", _PLAIN, ("bert", "gpt2", "llama", "vit"),
     _settings(config={"attn_implementation": "eager"}), traits=_LOOP | {"eager attention"})  # fmt: skip
_way("checkpoint", _PLAIN, _UNCOUNTED, _wrapped(partial(_checkpointed, reentrant=False)))
_way("checkpoint-reentrant", _PLAIN, _UNCOUNTED, _wrapped(partial(_checkpointed, reentrant=True)))
_way("channels-last", _PLAIN, ("conv", "vit"), _wrapped(_channels_last))
_way("adamw-for-loop", _PLAIN, ("gpt2", "conv"), _settings(options={"foreach": False}), setup=True)
_way("adamw-foreach", _PLAIN, ("llama", "mlp"), _settings(options={"foreach": True}), setup=True)
_way("adamw-fused", _PLAIN, ("bert", "conv"), _settings(options={"fused": True}), setup=True)

_COMPILED = _LOOP | {"compiled"}
_way("compile", _PLAIN, _ALL, _wrapped(_compiled), traits=_COMPILED)
_way("compile-blocks", _PLAIN, _ALL, _wrapped(_compiled_blocks), traits=_COMPILED)
_way("compile-fullgraph", _PLAIN, ("gpt2", "conv", "mlp"),
     _wrapped(partial(_compiled, fullgraph=True)), traits=_COMPILED)  # fmt: skip
_way("compile-dynamic", _PLAIN, ("conv", "mlp"),
     _wrapped(partial(_compiled, dynamic=True)), traits=_COMPILED)  # fmt: skip
_way("compile-inductor", _PLAIN, _ALL,
     _wrapped(partial(_compiled, backend="inductor")), traits=_COMPILED)  # fmt: skip

_TRAINER = {"trainer"}
_way("trainer", train_with_trainer, _ALL, traits=_TRAINER)
_way("trainer-compile", train_with_trainer, ("gpt2", "bert"), traits=_TRAINER | {"compiled"},
     prepare=_settings(arguments={"torch_compile": True, "torch_compile_backend": "aot_eager"}))  # fmt: skip
_way("trainer-checkpoint", train_with_trainer, ("gpt2", "vit"), traits=_TRAINER,
     prepare=_settings(arguments={"gradient_checkpointing": True}))  # fmt: skip
_way("accelerate", by(AccelerateLoop), _ALL, traits=_LOOP | {"accelerate"})
_way(
    "lightning",
    train_with_lightning,
    ("gpt2", "vit", "conv", "mlp"),
    traits={"optimizer", "lightning"},
)

_TWICE = _settings(accumulate=2)
_SHORT = ("bert", "gpt2", "vit", "mlp")
_way(
    "accumulate",
    _PLAIN,
    ("bert", "gpt2", "conv", "mlp"),
    _TWICE,
    group="accumulate",
    traits=_LOOP | {"accumulates"},
)
_way("trainer-accumulate", train_with_trainer, _SHORT, _TWICE, group="accumulate", traits=_TRAINER)
_way("accelerate-accumulate", by(AccelerateLoop), ("gpt2", "mlp"), _TWICE, group="accumulate",
     traits=_LOOP | {"accelerate", "accumulates"})  # fmt: skip
_way("lightning-accumulate", train_with_lightning, ("bert", "conv"), _TWICE, group="accumulate",
     traits={"optimizer", "lightning"})  # fmt: skip

_HALF = _settings(autocast=True)
_way("autocast", _PLAIN, _ALL, _HALF, group="autocast", traits=_LOOP | {"autocast"})
_way("trainer-bf16", train_with_trainer, ("bert", "gpt2", "vit"), _HALF, group="autocast",
     traits=_TRAINER | {"autocast"})  # fmt: skip
_way("accelerate-bf16", by(AccelerateLoop), ("llama", "conv"), _HALF, group="autocast",
     traits=_LOOP | {"accelerate", "autocast"})  # fmt: skip
_way("lightning-bf16", train_with_lightning, ("vit", "mlp"), _HALF, group="autocast",
     traits={"optimizer", "lightning", "autocast"})  # fmt: skip

_way(
    "scaler",
    _PLAIN,
    ("gpt2", "vit", "mlp"),
    _settings(scaled=True),
    group="scaler",
    traits=_LOOP | {"scaled"},
)
_way("ema", _PLAIN, ("bert", "conv", "mlp"), lambda script: setattr(script, "teacher", Teacher()),
     group="ema", traits=_LOOP | {"teacher"})  # fmt: skip
_way("sgd", _PLAIN, ("gpt2", "conv", "mlp"), group="sgd", traits=_LOOP, prepare=_settings(
    optimizer=torch.optim.SGD, options={"lr": 0.05, "momentum": 0.9}))  # fmt: skip
_way("lbfgs", by(ClosureLoop), ("mlp", "conv"), group="lbfgs", traits={"lbfgs"}, prepare=lambda script: (
    setattr(script, "optimizer", _lbfgs), setattr(script, "options", {"lr": 0.1, "max_iter": 3}))[0])  # fmt: skip
_way("hand-written", by(BareLoop), ("mlp", "gpt2"), _settings(options={"lr": 0.05}), group="hand-written",
     traits={"bare"})  # fmt: skip


def _lbfgs(groups: list[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """LBFGS knows no groups."""
    return torch.optim.LBFGS([item for group in groups for item in group["params"]], **options)


_RANKS = _LOOP | {"ranks"}
_way("ddp", by(DistributedLoop), ("gpt2", "vit", "conv", "mlp"), group="ddp", traits=_RANKS, ranks=2,
     prepare=_settings(accumulate=2))  # fmt: skip
_way("ddp-buckets", by(DistributedLoop), ("gpt2", "mlp"), group="ddp", traits=_RANKS, ranks=2,
     prepare=_settings(accumulate=2, arguments={"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}))  # fmt: skip
_way("ddp-unused", by(DistributedLoop), ("vit", "conv"), group="ddp", traits=_RANKS, ranks=2,
     prepare=_settings(accumulate=2, arguments={"find_unused_parameters": True}))  # fmt: skip
_way("fsdp2", by(ShardedLoop), ("gpt2", "llama", "mlp"), group="fsdp2", traits=_RANKS, ranks=2)
_way("fsdp2-kept", by(ShardedLoop), ("gpt2", "llama"), group="fsdp2", traits=_RANKS, ranks=2,
     prepare=_settings(arguments={"reshard_after_forward": False}))  # fmt: skip
_way("fsdp1", by(FlatShardedLoop), ("llama", "vit", "mlp"), group="fsdp1", traits=_RANKS, ranks=2)

_way("peft", _PLAIN, _TEXT, _wrapped(_adapted), group="peft", traits=_LOOP | {"adapters"})
_way("peft-trainer", train_with_trainer, ("gpt2", "llama"), _wrapped(_adapted), group="peft",
     traits=_TRAINER | {"adapters"})  # fmt: skip


def subjects_of(way: Way) -> list[Subject]:
    """The models trained this way."""
    return [SUBJECTS[name] for name in way.subjects]


__all__ = ["WAYS", "Way", "subjects_of"]
