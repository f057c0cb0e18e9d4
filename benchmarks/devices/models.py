"""The twelve networks that the campaign trains: each with its batch and its losses, small, without dropout.

No random number is drawn on the device: what a training draws (batches, noise of a GAN, a policy's samples) comes from
a generator on the CPU, so that two devices train on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Batch = dict[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]

WIDTH, TOKENS, VOCABULARY, EXAMPLES = 64, 24, 128, 8


@dataclass(frozen=True)
class Network:
    """A network, its batch, and one loss for each optimizer.

    Parameters
    ----------
    build
        Makes it from the global random stream.
    batch
        Draws one batch from a generator.
    losses
        Submodule ("" for all) whose parameters an optimizer takes, and its loss, in the order of a step.
    traits
        What variants ask for: `attention`, `convolution`.
    """

    build: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Batch]
    losses: tuple[tuple[str, Loss], ...]
    traits: frozenset[str] = frozenset()


class Attention(nn.Module):
    """Multi-head attention by `scaled_dot_product_attention`."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.both = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(
        self,
        x: Tensor,
        other: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Attend from x to another sequence, or to itself."""
        key, value = self.both(x if other is None else other).chunk(2, dim=-1)
        parts = (self._split(one) for one in (self.query(x), key, value))
        mixed = F.scaled_dot_product_attention(*parts, attn_mask=mask, is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class Block(nn.Module):
    """A transformer layer, with cross attention where it is asked for, and another network than the usual one."""

    def __init__(self, *, crosses: bool = False, network: nn.Module | None = None) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.attention = Attention()
        self.cross = Attention() if crosses else None
        self.network = network or nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(
        self,
        x: Tensor,
        other: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Run the layer."""
        x = x + self.attention(self.norms[0](x), mask=mask, causal=causal)
        if self.cross is not None:
            x = x + self.cross(self.norms[2](x), other)
        return x + self.network(self.norms[1](x))


class Experts(nn.Module):
    """Two of four networks for each token, by a router; results are gathered by `index_add`."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Route every token."""
        flat = x.reshape(-1, WIDTH)
        weights, chosen = self.router(flat).softmax(dim=-1).topk(2, dim=-1)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            given = expert(flat[token]) * weights[token, place, None]
            result = result.index_add(0, token, given.to(result.dtype))
        return result.view(x.shape)


class Decoder(nn.Module):
    """Causal transformer over tokens: a GPT, with experts a Mixtral."""

    def __init__(self, network: Callable[[], nn.Module | None] = lambda: None) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Block(network=network()) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token."""
        x = self.tokens(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x, causal=True)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """Transformer that sees all tokens but padding: a BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor, seen: Tensor) -> Tensor:
        """Logits of every token; `seen` is False at padding."""
        x = self.norm(self.tokens(ids) + self.places.weight)
        for layer in self.layers:
            x = layer(x, mask=seen[:, None, None, :])
        return self.head(x)


class VisionTransformer(nn.Module):
    """Patches by a convolution, then a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, WIDTH))
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits of an image."""
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x[:, 0]))


class Speech(nn.Module):
    """Encoder of a spectrum by convolutions, decoder with cross attention: a Whisper."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(16, WIDTH, 3, padding=1)
        self.second = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.encoder, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.decoder, self.last = Block(crosses=True), nn.LayerNorm(WIDTH)

    def forward(self, spectrum: Tensor, ids: Tensor) -> Tensor:
        """Logits of the next token."""
        heard = F.gelu(self.second(F.gelu(self.first(spectrum)))).transpose(1, 2)
        heard = self.norm(self.encoder(heard))
        x = self.decoder(self.tokens(ids) + self.places.weight, heard, causal=True)
        return F.linear(self.last(x), self.tokens.weight)


class Residual(nn.Module):
    """Two convolutions with batch norm, and what came in."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        out = width * stride
        self.first = nn.Conv2d(width, out, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(2))
        self.shortcut = nn.Conv2d(width, out, 1, stride=stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Run it."""
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.shortcut(x))


class UNet(nn.Module):
    """Down, up by a transposed convolution, with a connection past both."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.norm, self.deep = nn.GroupNorm(4, 32), nn.Conv2d(32, 32, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Predict the noise in an image."""
        high = F.silu(self.enter(pixels))
        low = F.silu(self.deep(F.silu(self.norm(self.down(high)))))
        return self.out(torch.cat((high, self.up(low)), dim=1))


class Recommender(nn.Module):
    """Bags of embeddings and dense features, whose products enter a network: a DLRM."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(200, 16, mode="sum") for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(22, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Logit of a click."""
        first = self.dense(dense)
        given = torch.stack((first, *(bag(ids[:, n]) for n, bag in enumerate(self.bags))), dim=1)
        products = torch.bmm(given, given.transpose(1, 2))
        rows, columns = torch.tril_indices(4, 4, offset=-1, device=dense.device)
        return self.top(torch.cat((first, products[:, rows, columns]), dim=1)).squeeze(1)


class Recurrent(nn.Module):
    """Two layers of LSTM over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token."""
        return self.head(self.lstm(self.tokens(ids))[0])


def _perceptron() -> nn.Module:
    layers = (nn.Linear(32, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(WIDTH, 10))


def _residual_network() -> nn.Module:
    stem = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    body = (Residual(16, 1), Residual(16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*stem, *body, nn.Linear(32, 10))


def _policy() -> nn.Module:
    body = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    return nn.ModuleDict(
        {"body": body, "actions": nn.Linear(WIDTH, 4), "value": nn.Linear(WIDTH, 1)}
    )


def _adversaries() -> nn.Module:
    generator = nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip
    discriminator = nn.Sequential(
        nn.Conv2d(3, 32, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(),
        nn.Linear(32 * 4 * 4, 1),
    )  # fmt: skip
    return nn.ModuleDict({"generator": generator, "discriminator": discriminator})


def _drawn(**shapes: tuple[int, ...]) -> Callable[[torch.Generator], Batch]:
    """Normal numbers of these shapes; by name, `ids` are tokens, `labels` ten classes, `uniform` from 0 to 1."""

    def one(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        if name in ("ids", "labels"):
            return torch.randint(VOCABULARY if name == "ids" else 10, shape, generator=generator)
        draw: Any = torch.rand if name == "uniform" else torch.randn
        return draw(shape, generator=generator)

    return lambda generator: {key: one(key, shape, generator) for key, shape in shapes.items()}


def _padded(generator: torch.Generator) -> Batch:
    batch = _drawn(ids=(EXAMPLES, TOKENS))(generator)
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (EXAMPLES, 1), generator=generator)
    return {**batch, "seen": torch.arange(TOKENS)[None] < lengths}


def _clicks(generator: torch.Generator) -> Batch:
    batch = _drawn(dense=(32, 13), ids=(32, 3, 5), uniform=(32,))(generator)
    return {**batch, "clicked": (batch.pop("uniform") > 0.5).float()}


def _classes(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["pixels"]), batch["labels"])


def _next_token(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["ids"])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["ids"][:, 1:].flatten())


def _hidden_token(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["ids"].roll(1, dims=1), batch["seen"])
    labels = batch["ids"].masked_fill(~batch["seen"], -100)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def _heard(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["spectrum"], batch["ids"])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["ids"][:, 1:].flatten())


def _noise(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch["pixels"] + batch["noise"]), batch["noise"])


def _clicked(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch["dense"], batch["ids"])
    return F.binary_cross_entropy_with_logits(logits, batch["clicked"].to(logits.dtype))


def _rewarded(model: Any, batch: Batch) -> Tensor:
    """Loss of a policy: an action is the largest of logits plus Gumbel noise, which is drawn on the CPU."""
    body = model["body"](batch["state"])
    logits, value = model["actions"](body), model["value"](body).squeeze(1)
    gumbel = -torch.log(-torch.log(batch["uniform"].float()))
    action = (logits.detach().float() + gumbel).argmax(dim=1)
    chosen = torch.log_softmax(logits, dim=1).gather(1, action[:, None]).squeeze(1)
    reward = batch["state"].gather(1, action[:, None]).squeeze(1)
    gain = reward - value
    return -(chosen * gain.detach()).mean() + gain.square().mean()


def _told_apart(model: Any, batch: Batch) -> Tensor:
    made = model["generator"](batch["noise"][..., None, None]).detach()
    real, false = model["discriminator"](batch["pixels"]), model["discriminator"](made)
    return F.softplus(-real).mean() + F.softplus(false).mean()


def _deceived(model: Any, batch: Batch) -> Tensor:
    return F.softplus(
        -model["discriminator"](model["generator"](batch["noise"][..., None, None]))
    ).mean()


_ATTENTION, _CONVOLUTION = frozenset({"attention"}), frozenset({"convolution"})
_TOKENS, _IMAGES = (
    _drawn(ids=(EXAMPLES, TOKENS)),
    _drawn(pixels=(EXAMPLES, 3, 16, 16), labels=(EXAMPLES,)),
)

NETWORKS: dict[str, Network] = {
    "mlp": Network(_perceptron, _drawn(pixels=(32, 32), labels=(32,)), (("", _classes),)),
    "resnet": Network(_residual_network, _IMAGES, (("", _classes),), _CONVOLUTION),
    "lstm": Network(Recurrent, _TOKENS, (("", _next_token),)),
    "gpt": Network(Decoder, _TOKENS, (("", _next_token),), _ATTENTION),
    "bert": Network(Encoder, _padded, (("", _hidden_token),), _ATTENTION),
    "vit": Network(VisionTransformer, _IMAGES, (("", _classes),), _ATTENTION | _CONVOLUTION),
    "unet": Network(
        UNet,
        _drawn(pixels=(EXAMPLES, 3, 16, 16), noise=(EXAMPLES, 3, 16, 16)),
        (("", _noise),),
        _CONVOLUTION,
    ),
    "mixtral": Network(lambda: Decoder(Experts), _TOKENS, (("", _next_token),), _ATTENTION),
    "whisper": Network(
        Speech,
        _drawn(spectrum=(EXAMPLES, 16, 32), ids=(EXAMPLES, TOKENS)),
        (("", _heard),),
        _ATTENTION,
    ),
    "dlrm": Network(Recommender, _clicks, (("", _clicked),)),
    "policy": Network(_policy, _drawn(state=(32, 8), uniform=(32, 4)), (("", _rewarded),)),
    "gan": Network(
        _adversaries,
        _drawn(pixels=(EXAMPLES, 3, 8, 8), noise=(EXAMPLES, 16)),
        (("discriminator", _told_apart), ("generator", _deceived)),
        _CONVOLUTION,
    ),
}
