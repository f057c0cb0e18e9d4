"""Mistakes around the model: the loop, the optimizer, the data, the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from architectures import Batch
from torch import Tensor, nn

from frameworks.mistakes import Answers, Mistake, Place, register
from frameworks.script import Script, Steps, Zero
from frameworks.ways import Way
from lockstep.core.finding import Kind

_SETUP = (Kind.SETUP,)


def _set(**settings: Any) -> Callable[[Script, Place], None]:
    """Lay values over the script's."""

    def plant(script: Script, place: Place) -> None:
        for name, value in settings.items():
            if isinstance(value, dict):
                value = {**getattr(script, name), **value}
            setattr(script, name, value)

    return plant


def _with(*traits: str) -> Callable[[Way, Any], bool]:
    return lambda way, subject: set(traits) <= way.traits


def _adam(way: Way, subject: Any) -> bool:
    return not {"lbfgs", "bare"} & way.traits and way.group != "sgd"


def _clips(way: Way, subject: Any) -> bool:
    """Adapters have gradients below the limit."""
    return not {"lbfgs", "adapters"} & way.traits


# ---------------------------------------------------------------------------------------------- loop

_ZERO = ("zero", "left over", "accumulat")
_GRADIENTS = Answers(
    near=False,
    words=("divi", "scaled", "doubled", "times", *_ZERO),
    calls=("div", "truediv", "mul"),
)
_NOT_ZEROED = Answers(near=False, words=_ZERO, calls=("zero_grad",))


register(
    Mistake(
        "loss-not-divided",
        _set(divided=False),
        _GRADIENTS,
        fits=_with("loop", "accumulates"),
        share=6,
    )
)
register(
    Mistake(
        "items-counted",
        _set(counted=True),
        Answers(phases=("forward",), words=("times",), calls=("div", "truediv", "cross_entropy")),
        fits=lambda way, subject: (
            way.name == "trainer-accumulate" and subject.name in ("bert", "llama")
        ),
    )
)
register(
    Mistake(
        "no-zero-grad",
        _set(zero=Zero.NEVER),
        _NOT_ZEROED,
        fits=lambda way, subject: bool({"loop", "bare"} & way.traits),
        share=6,
    )
)
register(
    Mistake(
        "zero-before-update",
        _set(zero=Zero.BEFORE_UPDATE),
        Answers(near=False, words=_ZERO, calls=("zero_grad",), phases=("optimizer",)),
        fits=_with("loop"),
    )
)
register(
    Mistake(
        "zero-each-micro-batch",
        _set(zero=Zero.EACH_BACKWARD),
        Answers(near=False, words=_ZERO, calls=("zero_grad",), phases=("optimizer",)),
        fits=lambda way, subject: (
            {"loop", "accumulates"} <= way.traits and "accelerate" not in way.traits
        ),
    )
)
register(
    Mistake(
        "backward-twice",
        _set(backwards=2),
        Answers(near=False, words=("doubled", "times", "twice", *_ZERO), calls=("backward",)),
        fits=_with("loop"),
    )
)

_CLIP = Answers(near=False, words=("clip",), calls=("clip_grad_norm_",), phases=("optimizer",))


def _plant_other_clip(script: Script, place: Place) -> None:
    script.clip_norm = 0.25


register(Mistake("clip-forgotten", _set(clip_norm=None), _CLIP, fits=_clips, share=6))
register(Mistake("clip-other-norm", _plant_other_clip, _CLIP, fits=_clips))
register(
    Mistake(
        "unscale-forgotten",
        _set(unscaled=False),
        Answers(
            near=False, words=("clip", "scale"), calls=("unscale_", "mul_"), phases=("optimizer",)
        ),
        fits=_with("scaled"),
    )
)


def _doubled(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(2)


register(
    Mistake(
        "gradients-doubled",
        lambda script, place: script.after_backward.append(_doubled),
        Answers(near=False, words=("doubled", "times", "scaled"), calls=("mul_",)),
        fits=lambda way, subject: "lbfgs" not in way.traits and "ranks" not in way.traits,
    )
)


def _short_loss(loss: Tensor) -> Tensor:
    return loss.bfloat16().float()


register(
    Mistake(
        "loss-in-bf16",
        _set(loss=_short_loss),
        Answers(uniform=True, calls=("bfloat16", "float")),
        fits=lambda way, subject: "trainer" not in way.traits and "autocast" not in way.traits,
    )
)


def _label_smoothing(script: Script, place: Place) -> None:
    script.arguments = {**script.arguments, "label_smoothing_factor": 0.1}


register(
    Mistake(
        "label-smoothing",
        _label_smoothing,
        Answers(phases=("forward",), near=False),
        fits=_with("trainer"),
        share=4,
    )
)


# ----------------------------------------------------------------------------------------- optimizer

_STEP = Answers(near=False, kinds=_SETUP, phases=("optimizer",))


def _option(**options: Any) -> Callable[[Script, Place], None]:
    return _set(options=options)


register(Mistake("learning-rate", _option(lr=1.3e-3), _STEP, fits=_adam))
register(Mistake("betas", _option(betas=(0.9, 0.99)), _STEP, fits=_adam))
register(Mistake("optimizer-epsilon", _option(eps=1e-5), _STEP, fits=_adam))
register(Mistake("weight-decay", _option(weight_decay=0.0), _STEP, fits=_adam))
register(
    Mistake(
        "decay-of-all",
        _set(decayed=lambda name, parameter: True),
        _STEP,
        fits=lambda way, subject: _adam(way, subject) and "optimizer" in way.traits,
    )
)
register(
    Mistake(
        "schedule-a-step-early",
        _set(schedule=(0.5, 0.0)),
        _STEP,
        fits=lambda way, subject: "optimizer" in way.traits or "bare" in way.traits,
    )
)
register(
    Mistake(
        "momentum",
        _option(momentum=0.8),
        _STEP,
        fits=lambda way, subject: way.group == "sgd",
        share=4,
    )
)
register(
    Mistake(
        "schedule-other",
        lambda script, place: script.arguments.update(lr_scheduler_type="constant"),
        _STEP,
        fits=_with("trainer"),
        share=5,
    )
)
register(
    Mistake(
        "lbfgs-history",
        _option(history_size=1, max_iter=2),
        Answers(near=False, kinds=_SETUP, phases=("optimizer",), words=("evaluat", "calls of")),
        fits=_with("lbfgs"),
        share=4,
    )
)
register(
    Mistake(
        "hand-written-rate",
        _option(lr=0.06),
        Answers(near=False, phases=("optimizer",), calls=("sub_",)),
        fits=_with("bare"),
        share=4,
    )
)


def _stale_copy(model: nn.Module) -> nn.Module:
    """The optimizer was made before the model was replaced by a copy (`.to`, `deepcopy`)."""
    import copy

    return copy.deepcopy(model)


register(
    Mistake(
        "optimizer-of-other-parameters",
        _set(updated=_stale_copy),
        Answers(near=False, kinds=_SETUP, phases=("optimizer",)),
        fits=lambda way, subject: "optimizer" in way.traits and "ranks" not in way.traits,
    )
)


def _other_init(script: Script, place: Place) -> None:
    script.model_seed += 1


register(
    Mistake(
        "model-seed",
        _other_init,
        Answers(near=False, phases=("init",)),
        fits=_with("loop"),
        share=4,
    )
)


# ----------------------------------------------------------------------------------------------- data

_DATA = Answers(near=False, phases=("data",))


def _batches(change: Callable[[Batch], Batch]) -> Callable[[Script, Place], None]:
    def plant(script: Script, place: Place) -> None:
        script.batches = [[change(dict(batch)) for batch in step] for step in script.batches]

    return plant


def _refilled(steps: Steps) -> Iterator[list[Batch]]:
    """A loader with one buffer: what was fetched before it is used is overwritten by what is fetched after."""
    buffers = {name: numpy.empty_like(item.numpy()) for name, item in steps[0][0].items()}
    for step in steps:
        fetched = []
        for batch in step:
            for name, item in batch.items():
                buffers[name][...] = item.numpy()
            fetched.append({name: torch.from_numpy(buffer) for name, buffer in buffers.items()})
        yield fetched


def _swapped(script: Script, place: Place) -> None:
    script.batches.reverse()


def _shifted(batch: Batch) -> Batch:
    """Labels shifted by the script, though the model shifts them too."""
    labels = torch.full_like(batch["labels"], -100)
    labels[:, :-1] = batch["labels"][:, 1:]
    return {**batch, "labels": labels}


def _padding_counts(batch: Batch) -> Batch:
    """Padding was given a label that is not ignored."""
    return {**batch, "labels": batch["labels"].masked_fill(batch["labels"] == -100, 0)}


def _mask_left_out(batch: Batch) -> Batch:
    return {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}


def _normalised_otherwise(batch: Batch) -> Batch:
    return {**batch, "pixel_values": (batch["pixel_values"] - 0.01) / 0.99}


def _text(way: Way, subject: Any) -> bool:
    return "text" in subject.traits


register(Mistake("batch-order", _swapped, _DATA))
register(Mistake("one-buffer", _set(load=_refilled), _DATA, fits=_with("accumulates"), share=6))
register(
    Mistake(
        "labels-shifted-twice",
        _batches(_shifted),
        _DATA,
        fits=lambda way, subject: "causal" in subject.traits,
    )
)
register(Mistake("padding-not-ignored", _batches(_padding_counts), _DATA, fits=_text))
register(
    Mistake(
        "mask-not-given",
        _batches(_mask_left_out),
        _DATA,
        # A causal model does not look at padding behind the text.
        fits=lambda way, subject: "text" in subject.traits and "causal" not in subject.traits,
    )
)
register(
    Mistake(
        "pixels-normalised",
        _batches(_normalised_otherwise),
        _DATA,
        fits=lambda way, subject: "pictures" in subject.traits,
    )
)
register(
    Mistake(
        "random-seed",
        _set(seed=99),
        Answers(near=False, kinds=(Kind.RANDOM,)),
        fits=lambda way, subject: "dropout" in subject.traits,
    )
)


# ---------------------------------------------------------------------------------------------- ranks

_OF_RANKS = Answers(near=False, phases=("backward", "optimizer"))

register(
    Mistake(
        "not-synchronised",
        _set(synchronised=False),
        _OF_RANKS,
        # FSDP1 refuses to update what was not exchanged.
        fits=lambda way, subject: "ranks" in way.traits and way.group != "fsdp1",
        share=6,
    )
)
register(
    Mistake(
        "summed-over-ranks",
        _set(summed=True, clip_norm=None),
        _OF_RANKS,
        fits=lambda way, subject: way.group == "ddp",
        prepare=_set(clip_norm=None),
        share=6,
    )
)


def _same_on_each(script: Script, place: Place) -> None:
    script.same_data = True
    script.draw(1)


register(Mistake("sampler-without-rank", _same_on_each, _DATA, fits=_with("ranks")))


# ------------------------------------------------------------------------------- teacher and adapters


def _teacher(**settings: Any) -> Callable[[Script, Place], None]:
    def plant(script: Script, place: Place) -> None:
        for name, value in settings.items():
            setattr(script.teacher, name, value)

    return plant


_FOLLOWS = Answers(
    near=False,
    calls=("mul_", "add_"),
    words=("teacher", "second model", "changed since the last step"),
    phases=("optimizer", "init"),
)
register(
    Mistake(
        "teacher-follows-itself",
        _teacher(follows_itself=True),
        _FOLLOWS,
        fits=_with("teacher"),
        share=4,
    )
)
register(Mistake("teacher-decay", _teacher(decay=0.99), _FOLLOWS, fits=_with("teacher"), share=4))
register(
    Mistake(
        "teacher-weight",
        _teacher(weight=0.4),
        Answers(near_phases=("forward", "backward")),
        fits=_with("teacher"),
        share=4,
    )
)


def _adapter(**settings: Any) -> Callable[[Script, Place], None]:
    return lambda script, place: script.arguments.update(adapter=settings)


def _thawed(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(True)


register(
    Mistake(
        "adapter-scale",
        _adapter(lora_alpha=16),
        Answers(near=False, calls=("mul",), words=("scaling",)),
        fits=_with("adapters"),
        share=5,
    )
)
register(
    Mistake(
        "adapter-base-trained",
        lambda script, place: script.wraps.append(lambda model: (_thawed(model), model)[1]),
        Answers(near=False, kinds=_SETUP, words=("frozen", "requires_grad")),
        fits=_with("adapters"),
        share=5,
    )
)
register(
    Mistake(
        "adapter-dropout",
        _adapter(lora_dropout=0.2),
        Answers(near=False, kinds=_SETUP, calls=("dropout",)),
        fits=_with("adapters"),
        share=5,
    )
)
