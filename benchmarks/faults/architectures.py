"""The models of the benchmark: real architectures with random weights, small enough for a step in well under a second.

`TABLE` is what the published table is made of. `DEVELOPMENT` is disjoint from it, in architectures, sites and
amounts, and is all that anybody may look at while choosing a constant of the judge.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]


class Split(str, Enum):
    """What the cases of an architecture may be used for."""

    TABLE = "table"
    DEVELOPMENT = "development"


@dataclass(frozen=True)
class FromTransformers:
    """A model of the transformers library with random weights: names of its class and configuration, settings."""

    model: str
    config: str
    settings: dict[str, Any]

    def __call__(self) -> nn.Module:
        """A fresh model."""
        library = importlib.import_module("transformers")
        model: nn.Module = getattr(library, self.model)(
            getattr(library, self.config)(**self.settings)
        )
        return model

    def load(self) -> None:
        """Import what it needs, which takes seconds."""
        library = importlib.import_module("transformers")
        getattr(library, self.model), getattr(library, self.config)


@dataclass(frozen=True)
class Architecture:
    """A model, its batch, its loss and how it is trained.

    `build` makes the model from the global random stream; `batch` draws one batch from a generator; `optimizer` and
    `settings` say how it is trained. The gradient is always clipped: the norm is far above `clip_norm`.
    """

    name: str
    split: Split
    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    loss: Loss
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW
    settings: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3})
    clip_norm: float | None = 0.2

    def load(self) -> None:
        """Import what building it needs, before processes are forked."""
        if isinstance(self.build, FromTransformers):
            self.build.load()

    def make(self, seed: int) -> nn.Module:
        """The model in training mode, the same for the same seed.

        What starts as a constant is moved off it.
        """
        torch.manual_seed(seed)
        return moved_off_constants(self.build().train(), seed)


def moved_off_constants(model: nn.Module, seed: int) -> nn.Module:
    """The model with what starts as a constant (biases at zero, norms at one) moved off it, as after some training.

    A bias of zero hides that it was left out.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and float(parameter.std()) == 0:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(0.05 * noise)
    return model


def _tokens(vocabulary: int, *shape: int) -> Callable[[torch.Generator], Batch]:
    def batch(generator: torch.Generator) -> Batch:
        return {"input_ids": torch.randint(3, vocabulary, shape, generator=generator)}

    return batch


def _images(
    shape: tuple[int, ...], classes: int, label_shape: tuple[int, ...]
) -> Callable[[torch.Generator], Batch]:
    def batch(generator: torch.Generator) -> Batch:
        return {
            "pixels": torch.randn(shape, generator=generator),
            "labels": torch.randint(classes, label_shape, generator=generator),
        }

    return batch


def _causal_loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(input_ids=batch["input_ids"], labels=batch["input_ids"], use_cache=False).loss


def _classify_text(model: nn.Module, batch: Batch) -> Tensor:
    return model(input_ids=batch["input_ids"], labels=batch["input_ids"][:, 0] % 3).loss


def _classify_pixels(model: nn.Module, batch: Batch) -> Tensor:
    return model(pixel_values=batch["pixels"], labels=batch["labels"]).loss


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["pixels"]), batch["labels"])


# ------------------------------------------------------------------------------------ the table's


_GPT2 = FromTransformers(
    "GPT2LMHeadModel",
    "GPT2Config",
    {
        "vocab_size": 211,
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 40,
        "use_cache": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
)


_LLAMA = FromTransformers(
    "LlamaForCausalLM",
    "LlamaConfig",
    {
        "vocab_size": 199,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 104,
        "max_position_embeddings": 64,
    },
)


_BERT = FromTransformers(
    "BertForSequenceClassification",
    "BertConfig",
    {
        "vocab_size": 197,
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 104,
        "max_position_embeddings": 40,
        "num_labels": 3,
        "attn_implementation": "eager",
    },
)


_VIT = FromTransformers(
    "ViTForImageClassification",
    "ViTConfig",
    {
        "hidden_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 104,
        "image_size": 32,
        "patch_size": 8,
        "num_labels": 7,
        "hidden_dropout_prob": 0.1,
    },
)


_MIXTRAL = FromTransformers(
    "MixtralForCausalLM",
    "MixtralConfig",
    {
        "vocab_size": 193,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 56,
        "num_local_experts": 4,
        "max_position_embeddings": 64,
        "attn_implementation": "eager",
        "experts_implementation": "eager",
    },
)


_RESNET = FromTransformers(
    "ResNetForImageClassification",
    "ResNetConfig",
    {
        "embedding_size": 12,
        "hidden_sizes": [12, 20, 28],
        "depths": [1, 2, 1],
        "layer_type": "basic",
        "num_labels": 7,
    },
)


class UNet(nn.Module):
    """A diffusion-style U-Net: group norms, SiLU, residual blocks, attention in the middle, skip connections."""

    class Block(nn.Module):
        """Residual block with two convolutions."""

        def __init__(self, channels_in: int, channels: int) -> None:
            super().__init__()
            self.norm1, self.conv1 = (
                nn.GroupNorm(4, channels_in),
                nn.Conv2d(channels_in, channels, 3, padding=1),
            )
            self.norm2, self.conv2 = (
                nn.GroupNorm(4, channels),
                nn.Conv2d(channels, channels, 3, padding=1),
            )
            self.drop = nn.Dropout(0.1)
            self.skip = nn.Conv2d(channels_in, channels, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv1(F.silu(self.norm1(x)))
            h = self.conv2(self.drop(F.silu(self.norm2(h))))
            return h + self.skip(x)

    class Attention(nn.Module):
        """Self-attention over pixels, written out."""

        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm, self.qkv = nn.GroupNorm(4, channels), nn.Conv2d(channels, 3 * channels, 1)
            self.out = nn.Conv2d(channels, channels, 1)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(self.norm(x)).flatten(2).chunk(3, 1)
            weights = torch.softmax(q.transpose(1, 2) @ k * q.shape[1] ** -0.5, dim=-1)
            return x + self.out((v @ weights.transpose(1, 2)).view_as(x))

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.down1, self.pool1 = self.Block(12, 16), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.down2, self.pool2 = self.Block(16, 24), nn.AvgPool2d(2)
        self.middle, self.attention = self.Block(24, 24), self.Attention(24)
        self.up2, self.block2 = nn.ConvTranspose2d(24, 24, 2, 2), self.Block(48, 16)
        self.block1 = self.Block(32, 12)
        self.head = nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        d1 = self.down1(self.stem(x))
        d2 = self.down2(self.pool1(d1))
        m = self.attention(self.middle(self.pool2(d2)))
        u2 = self.block2(torch.cat([self.up2(m), d2], 1))
        u1 = F.interpolate(u2, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.head(self.block1(torch.cat([u1, d1], 1)))


class LSTMTagger(nn.Module):
    """Two bidirectional LSTM layers over embedded characters, attention pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(61, 20)
        self.encoder = nn.LSTM(20, 24, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(48)
        self.decoder = nn.LSTM(48, 28, batch_first=True)
        self.drop = nn.Dropout(0.15)
        self.score = nn.Linear(28, 1)
        self.head = nn.Sequential(nn.Linear(28, 28), nn.Tanh(), nn.Linear(28, 9))

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.encoder(self.embedding(tokens))
        states, _ = self.decoder(self.drop(self.norm(states)))
        weights = torch.softmax(self.score(states), dim=1)
        return self.head((weights * states).sum(1))


class Detector(nn.Module):
    """A one-stage detector: convolutions with batch norm, two levels, heads shared between them."""

    def __init__(self) -> None:
        super().__init__()
        self.body1 = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.body2 = nn.Sequential(
            nn.Conv2d(16, 24, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()
        )
        self.lateral, self.smooth = nn.Conv2d(16, 24, 1), nn.Conv2d(24, 24, 3, padding=1)
        self.tower = nn.Sequential(
            nn.Conv2d(24, 24, 3, padding=1), nn.GroupNorm(4, 24), nn.LeakyReLU(0.1)
        )
        self.classes, self.boxes = nn.Conv2d(24, 5, 1), nn.Conv2d(24, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        c1 = self.body1(x)
        c2 = self.body2(c1)
        p1 = self.smooth(self.lateral(c1) + F.interpolate(c2, scale_factor=2.0, mode="nearest"))
        levels = [self.tower(level) for level in (p1, c2)]
        classes = torch.cat([self.classes(level).flatten(2) for level in levels], 2)
        boxes = torch.cat([F.softplus(self.boxes(level)).flatten(2) for level in levels], 2)
        return classes, boxes


def _detection_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Focal loss (Lin et al. 2017, gamma 2) and smooth L1 on the boxes of positive places."""
    classes, boxes = model(batch["pixels"])
    targets = F.one_hot(batch["labels"], 6)[..., :5].transpose(1, 2).to(classes.dtype)
    entropy = F.binary_cross_entropy_with_logits(classes, targets, reduction="none")
    probability = torch.sigmoid(classes)
    miss = probability * (1 - targets) + (1 - probability) * targets
    positive = (batch["labels"] < 5).unsqueeze(1).to(boxes.dtype)
    regression = F.smooth_l1_loss(boxes * positive, batch["boxes"] * positive)
    return (miss**2 * entropy).mean() + regression


def _detection_batch(generator: torch.Generator) -> Batch:
    places = 16 * 16 + 8 * 8
    return {
        "pixels": torch.randn(3, 3, 32, 32, generator=generator),
        "labels": torch.randint(6, (3, places), generator=generator),
        "boxes": torch.rand(3, 4, places, generator=generator),
    }


# ------------------------------------------------------------------------------ for development


_T5 = FromTransformers(
    "T5ForConditionalGeneration",
    "T5Config",
    {
        "vocab_size": 181,
        "d_model": 40,
        "d_kv": 10,
        "d_ff": 88,
        "num_layers": 2,
        "num_heads": 4,
        "decoder_start_token_id": 0,
        "dropout_rate": 0.1,
    },
)


_QWEN = FromTransformers(
    "Qwen2ForCausalLM",
    "Qwen2Config",
    {
        "vocab_size": 179,
        "hidden_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 72,
        "max_position_embeddings": 64,
    },
)


_DISTILBERT = FromTransformers(
    "DistilBertForSequenceClassification",
    "DistilBertConfig",
    {
        "vocab_size": 173,
        "dim": 40,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 88,
        "max_position_embeddings": 32,
        "num_labels": 3,
        "attn_implementation": "eager",
    },
)


class ConvNet(nn.Module):
    """Convolutions with batch norm, grouped convolution, in-place ReLU, pooling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 20, 3, padding=1, bias=False),
            nn.BatchNorm2d(20),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 36, 3, padding=1, groups=2),
            nn.BatchNorm2d(36),
            nn.Hardswish(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(144, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.features(x).flatten(1)))


class Translator(nn.Module):
    """GRU encoder, GRU-cell decoder with attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(43, 24)
        self.encoder = nn.GRU(24, 28, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.query = nn.Linear(56, 56, bias=False)
        self.decoder, self.out = nn.GRUCell(24, 56), nn.Linear(112, 43)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, _ = self.encoder(self.embedding(source))
        hidden, outputs = states.mean(1), []
        for column in target.unbind(1):
            hidden = self.decoder(self.embedding(column), hidden)
            scores = torch.einsum("bd,btd->bt", self.query(hidden), states)
            context = (torch.softmax(scores, -1).unsqueeze(-1) * states).sum(1)
            outputs.append(self.out(torch.cat([hidden, context], -1)))
        return torch.stack(outputs, 1)


def _translation_loss(model: nn.Module, batch: Batch) -> Tensor:
    source = batch["input_ids"]
    target = source.flip(1)[:, :6]
    logits = model(source, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


class Encoder(nn.Module):
    """PyTorch's own Transformer encoder (torch.nn.MultiheadAttention inside)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(40, 4, 88, dropout=0.1, batch_first=True)
        self.embedding = nn.Embedding(53, 40)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(40, 53)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens)))


class Recurrent(nn.Module):
    """A tanh RNN over a series."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.norm, self.head = (
            nn.RNN(6, 26, 2, batch_first=True),
            nn.LayerNorm(26),
            nn.Linear(26, 3),
        )

    def forward(self, series: Tensor) -> Tensor:
        states, _ = self.cells(series)
        return self.head(self.norm(states[:, -1]))


class Experts(nn.Module):
    """Top-2 routing among four experts, written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate = nn.Linear(18, 36), nn.Linear(36, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(36, 60), nn.GELU(), nn.Linear(60, 36)) for _ in range(4)
        )
        self.norm, self.head = nn.LayerNorm(36), nn.Linear(36, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        weights, chosen = torch.softmax(self.gate(h), -1).topk(2, -1)
        mixed = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            for rank in range(2):
                rows = chosen[:, rank] == number
                if rows.any():
                    mixed[rows] += weights[rows, rank : rank + 1] * expert(h[rows])
        return self.head(self.norm(h + mixed))


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Sigmoid(), nn.LayerNorm(64),
        nn.Linear(64, 1),
    )  # fmt: skip


def _vectors(size: int, batch: int, classes: int) -> Callable[[torch.Generator], Batch]:
    return _images((batch, size), classes, (batch,))


def _regression_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["pixels"]).squeeze(-1), batch["labels"].to(batch["pixels"].dtype))


def _next_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    tokens = batch["input_ids"]
    return F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _first_token_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["input_ids"]), batch["input_ids"][:, 0] % 9)


def _t5_loss(model: nn.Module, batch: Batch) -> Tensor:
    tokens = batch["input_ids"]
    return model(input_ids=tokens, labels=tokens[:, :7].contiguous(), use_cache=False).loss


_SGD = {"lr": 0.02, "momentum": 0.9, "weight_decay": 1e-3}
_ADAM = {"lr": 1e-3, "weight_decay": 1e-3}
_RMS = {"lr": 5e-4, "momentum": 0.5}
_OPTIM = torch.optim
_TABLE, _DEVELOPMENT = Split.TABLE, Split.DEVELOPMENT

ARCHITECTURES = {
    item.name: item
    for item in (
        Architecture("gpt2", _TABLE, _GPT2, _tokens(211, 3, 22), _causal_loss),
        Architecture("llama", _TABLE, _LLAMA, _tokens(199, 3, 20), _causal_loss, _OPTIM.AdamW),
        Architecture("bert", _TABLE, _BERT, _tokens(197, 4, 21), _classify_text, _OPTIM.Adam, _ADAM),
        Architecture(
            "vit", _TABLE, _VIT, _images((4, 3, 32, 32), 7, (4,)), _classify_pixels, _OPTIM.AdamW
        ),
        Architecture(
            "resnet", _TABLE, _RESNET, _images((5, 3, 64, 64), 7, (5,)), _classify_pixels,
            _OPTIM.SGD, _SGD,
        ),
        Architecture(
            "unet", _TABLE, UNet, _images((3, 3, 32, 32), 3, (3, 32, 32)), _cross_entropy,
            _OPTIM.Adam, _ADAM,
        ),
        Architecture(
            "lstm", _TABLE, LSTMTagger, _tokens(61, 6, 15), _first_token_loss, _OPTIM.RMSprop, _RMS
        ),
        Architecture("mixtral", _TABLE, _MIXTRAL, _tokens(193, 3, 18), _causal_loss),
        Architecture(
            "detector", _TABLE, Detector, _detection_batch, _detection_loss, _OPTIM.SGD, _SGD
        ),
        Architecture(
            "mlp", _DEVELOPMENT, _mlp, _vectors(20, 50, 3), _regression_loss, _OPTIM.Adam, _ADAM
        ),
        Architecture(
            "convnet", _DEVELOPMENT, ConvNet, _images((6, 3, 24, 24), 10, (6,)), _cross_entropy,
            _OPTIM.SGD, _SGD,
        ),
        Architecture(
            "seq2seq", _DEVELOPMENT, Translator, _tokens(43, 5, 11), _translation_loss, _OPTIM.Adam,
            _ADAM,
        ),
        Architecture("t5", _DEVELOPMENT, _T5, _tokens(181, 3, 17), _t5_loss),
        Architecture("qwen", _DEVELOPMENT, _QWEN, _tokens(179, 3, 19), _causal_loss),
        Architecture("distilbert", _DEVELOPMENT, _DISTILBERT, _tokens(173, 4, 18), _classify_text),
        Architecture("encoder", _DEVELOPMENT, Encoder, _tokens(53, 4, 17), _next_token_loss),
        Architecture(
            "rnn", _DEVELOPMENT, Recurrent, _images((7, 12, 6), 3, (7,)), _cross_entropy,
            _OPTIM.RMSprop, _RMS,
        ),
        Architecture(
            "experts", _DEVELOPMENT, Experts, _vectors(18, 50, 5), _cross_entropy, _OPTIM.AdamW
        ),
    )
}  # fmt: skip
