"""The models that are trained in many ways: each computes its own loss, as Trainer and its like expect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from architectures import Batch, FromTransformers, moved_off_constants
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput

VOCABULARY, LENGTH, CLASSES = 97, 12, 5
PADDING = 0


@dataclass(frozen=True)
class Subject:
    """A model and its batches.

    `batch` draws so many rows; `places` names, by what they are, the modules where mistakes go; `config` is laid over
    the model's settings by `make`, where it is a model of transformers.
    """

    name: str
    build: Callable[[dict[str, Any]], nn.Module]
    batch: Callable[[torch.Generator, int], Batch]
    places: dict[str, tuple[str, ...]]
    traits: frozenset[str] = frozenset()
    rows: int = 4
    settings: dict[str, Any] = field(default_factory=dict)

    def load(self) -> None:
        """Import what building it needs, before processes are forked."""
        if isinstance(self.build, Hugging):
            self.build.source.load()

    def make(self, seed: int, config: dict[str, Any]) -> nn.Module:
        """The model in training mode, the same for the same seed."""
        torch.manual_seed(seed)
        return moved_off_constants(self.build(config).train(), seed)


@dataclass(frozen=True)
class Hugging:
    """A model of transformers whose settings may be changed."""

    source: FromTransformers

    def __call__(self, changes: dict[str, Any]) -> nn.Module:
        """A fresh model with these settings laid over its own."""
        made: Any = replace(self.source, settings={**self.source.settings, **changes})()
        # Left None, it is looked up with a warning at every call, at which `fullgraph` stumbles.
        made.loss_type = made.loss_type or "ForCausalLM"
        return made  # type: ignore[no-any-return]


def _hugging(model: str, config: str, settings: dict[str, Any]) -> Hugging:
    return Hugging(FromTransformers(model, config, settings))


# ----------------------------------------------------------------------------------------- batches


def _text(generator: torch.Generator, rows: int) -> Batch:
    """Token rows of several lengths, padded at the right; padding has no label."""
    ids = torch.randint(3, VOCABULARY, (rows, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, LENGTH - row % 3 * 2 :] = 0
    ids = ids.masked_fill(mask == 0, PADDING)
    labels = ids.masked_fill(mask == 0, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _masked_text(generator: torch.Generator, rows: int) -> Batch:
    batch = _text(generator, rows)
    asked = torch.rand(batch["labels"].shape, generator=generator) < 0.4
    asked[:, 1] = True
    return {**batch, "labels": batch["labels"].masked_fill(~asked, -100)}


def _pictures(generator: torch.Generator, rows: int) -> Batch:
    return {
        "pixel_values": torch.randn(rows, 3, 16, 16, generator=generator),
        "labels": torch.randint(CLASSES, (rows,), generator=generator),
    }


def _features(generator: torch.Generator, rows: int) -> Batch:
    return {
        "features": torch.randn(rows, 24, generator=generator),
        "labels": torch.randint(CLASSES, (rows,), generator=generator),
    }


# ------------------------------------------------------------------------------------- own networks


class ConvNet(nn.Module):
    """Two residual stages with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.stem_norm = nn.BatchNorm2d(8)
        self.stages = nn.ModuleList(ConvStage(8) for _ in range(2))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> SequenceClassifierOutput:
        """Loss and logits of a batch of pictures."""
        value = F.relu(self.stem_norm(self.stem(pixel_values)))
        for stage in self.stages:
            value = stage(value)
        logits = self.head(self.pool(value).flatten(1))
        return SequenceClassifierOutput(loss=F.cross_entropy(logits, labels), logits=logits)


class ConvStage(nn.Module):
    """A convolution with batch norm beside its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.SiLU()

    def forward(self, value: Tensor) -> Tensor:
        """The input and what was made of it."""
        return value + self.act(self.norm(self.conv(value)))


class Perceptron(nn.Module):
    """Residual blocks behind inputs that are scaled by a running spread, updated by hand."""

    spread: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spread", torch.ones(24))
        self.embed = nn.Linear(24, 32)
        self.blocks = nn.ModuleList(PerceptronBlock(32) for _ in range(3))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, features: Tensor, labels: Tensor) -> SequenceClassifierOutput:
        """Loss and logits of a batch of feature rows."""
        if self.training:
            self.follow(features)
        value = self.embed(features / self.spread)
        for block in self.blocks:
            value = block(value)
        logits = self.head(self.norm(value))
        return SequenceClassifierOutput(loss=F.cross_entropy(logits, labels), logits=logits)

    def follow(self, features: Tensor) -> None:
        """Let the running spread follow this batch."""
        with torch.no_grad():
            self.spread.mul_(0.9).add_(features.std(dim=0), alpha=0.1)


class PerceptronBlock(nn.Module):
    """A two-layer perceptron whose experts are mixed by a router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, 2)
        self.up = nn.Linear(width, 48)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.1)
        self.down = nn.ModuleList(nn.Linear(48, width) for _ in range(2))

    def forward(self, value: Tensor) -> Tensor:
        """The input and what the experts made of it."""
        normed = self.norm(value)
        share = torch.softmax(self.router(normed), dim=-1)
        hidden = self.drop(self.act(self.up(normed)))
        mixed = sum(share[:, [number]] * down(hidden) for number, down in enumerate(self.down))
        return value + mixed


# -------------------------------------------------------------------------------------- the registry

_TEXT = {"vocab_size": VOCABULARY, "use_cache": False, "pad_token_id": PADDING}


def _each(pattern: str, *numbers: int) -> tuple[str, ...]:
    return tuple(pattern.format(number) for number in numbers)


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject(
            "bert",
            _hugging(
                "BertForMaskedLM",
                "BertConfig",
                {
                    **_TEXT, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "intermediate_size": 48, "max_position_embeddings": 16,
                    "attention_probs_dropout_prob": 0.0,
                },
            ),
            _masked_text,
            {
                "linear": (
                    *_each("bert.encoder.layer.{}.intermediate.dense", 0, 1),
                    *_each("bert.encoder.layer.{}.attention.self.query", 0, 1),
                    *_each("bert.encoder.layer.{}.output.dense", 0, 1),
                ),
                "norm": _each("bert.encoder.layer.{}.output.LayerNorm", 0, 1),
                "activation": _each("bert.encoder.layer.{}.intermediate", 0, 1),
                "attention": _each("bert.encoder.layer.{}.attention.self", 0, 1),
                "block": _each("bert.encoder.layer.{}", 0, 1),
                "residual": _each("bert.encoder.layer.{}.output", 0, 1),
                "embedding": ("bert.embeddings",),
                "dropout": _each("bert.encoder.layer.{}.output.dropout", 0, 1),
                "head": ("cls.predictions.transform.dense",),
                "tied": ("cls.predictions.decoder",),
            },
            frozenset({"text", "attention", "dropout", "transformers"}),
        ),
        Subject(
            "gpt2",
            _hugging(
                "GPT2LMHeadModel",
                "GPT2Config",
                {
                    **_TEXT, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16,
                    "bos_token_id": 1, "eos_token_id": 2, "attn_pdrop": 0.0,
                },
            ),
            _text,
            {
                "linear": (
                    *_each("transformer.h.{}.mlp.c_fc", 0, 1),
                    *_each("transformer.h.{}.attn.c_proj", 0, 1),
                    *_each("transformer.h.{}.mlp.c_proj", 0, 1),
                ),
                "norm": _each("transformer.h.{}.ln_2", 0, 1),
                "activation": _each("transformer.h.{}.mlp", 0, 1),
                "attention": _each("transformer.h.{}.attn", 0, 1),
                "block": _each("transformer.h.{}", 0, 1),
                "embedding": ("transformer.wte",),
                "positions": ("transformer.wpe",),
                "dropout": _each("transformer.h.{}.mlp.dropout", 0, 1),
                "head": ("lm_head",),
                "tied": ("lm_head",),
            },
            frozenset({"text", "causal", "attention", "dropout", "transformers"}),
        ),
        Subject(
            "llama",
            _hugging(
                "LlamaForCausalLM",
                "LlamaConfig",
                {
                    **_TEXT, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "num_key_value_heads": 2,
                    "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2,
                },
            ),
            _text,
            {
                "linear": (
                    *_each("model.layers.{}.mlp.gate_proj", 0, 1),
                    *_each("model.layers.{}.self_attn.v_proj", 0, 1),
                    *_each("model.layers.{}.mlp.down_proj", 0, 1),
                ),
                "norm": _each("model.layers.{}.post_attention_layernorm", 0, 1),
                "activation": _each("model.layers.{}.mlp", 0, 1),
                "attention": _each("model.layers.{}.self_attn", 0, 1),
                "block": _each("model.layers.{}", 0, 1),
                "rotary": ("model.rotary_emb",),
                "embedding": ("model.embed_tokens",),
                "head": ("lm_head",),
            },
            frozenset({"text", "causal", "attention", "transformers"}),
        ),
        Subject(
            "vit",
            _hugging(
                "ViTForImageClassification",
                "ViTConfig",
                {
                    "image_size": 16, "patch_size": 8, "hidden_size": 32, "intermediate_size": 48,
                    "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": CLASSES,
                },
            ),
            _pictures,
            {
                "linear": (
                    *_each("vit.layers.{}.mlp.fc1", 0, 1),
                    *_each("vit.layers.{}.attention.q_proj", 0, 1),
                    *_each("vit.layers.{}.mlp.fc2", 0, 1),
                ),
                "norm": _each("vit.layers.{}.layernorm_after", 0, 1),
                "activation": _each("vit.layers.{}.mlp", 0, 1),
                "attention": _each("vit.layers.{}.attention", 0, 1),
                "block": _each("vit.layers.{}", 0, 1),
                "head": ("classifier",),
            },
            frozenset({"pictures", "attention", "transformers"}),
        ),
        Subject(
            "conv",
            lambda config: ConvNet(),
            _pictures,
            {
                "linear": ("stages.0.conv", "stages.1.conv", "head"),
                "norm": ("stages.0.norm", "stages.1.norm"),
                "running": ("stem_norm", "stages.0.norm", "stages.1.norm"),
                "activation": ("stages.0", "stages.1"),
                "block": ("stages.0", "stages.1"),
                "residual": ("stages.0", "stages.1"),
                "head": ("head",),
            },
            frozenset({"pictures", "convolution"}),
        ),
        Subject(
            "mlp",
            lambda config: Perceptron(),
            _features,
            {
                "linear": ("blocks.0.up", "blocks.1.up", "blocks.1.down.1", "embed"),
                "norm": ("blocks.0.norm", "blocks.2.norm", "norm"),
                "activation": ("blocks.0", "blocks.2"),
                "block": ("blocks.0", "blocks.1", "blocks.2"),
                "residual": ("blocks.0", "blocks.2"),
                "router": ("blocks.0.router", "blocks.1.router", "blocks.2.router"),
                "dropout": ("blocks.0.drop", "blocks.1.drop"),
                "head": ("head",),
            },
            frozenset({"dropout", "own buffer", "router"}),
        ),
    )
}  # fmt: skip
