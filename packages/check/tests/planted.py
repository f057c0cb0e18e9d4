"""A tiny training whose set-up can be changed in one way each: what is planted, and where it has to be named."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import lockstep

F = torch.nn.functional


def plain(loss: torch.Tensor) -> torch.Tensor:
    """A loss as it is."""
    return loss


@dataclass(frozen=True)
class Setup:
    """Everything that a training is set up by; each field has the reference's value."""

    seed: int = 0
    data_seed: int = 1
    shuffle_seed: int = 2
    workers_seed: int = 3
    dropout: float = 0.1
    eps: float = 1e-5
    activation: Callable[[torch.Tensor], torch.Tensor] = F.gelu
    bias: bool = True
    width: int = 12
    tied: bool = False
    frozen: tuple[str, ...] = ()
    evaluated: tuple[str, ...] = ()
    buffer_dtype: torch.dtype = torch.float32
    weights_dtype: torch.dtype = torch.float32
    spoil: str = ""
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    options: dict[str, Any] = field(default_factory=dict)
    undecayed: tuple[str, ...] = ("bias", "norm")
    gamma: float = 0.9
    scheduled: bool = True
    clip: float | None = 1.0
    accumulation: int = 2
    autocast: torch.dtype | None = None
    autocast_loss: bool = True
    scale: float | None = None
    loss_options: dict[str, Any] = field(default_factory=dict)
    wrap_loss: Callable[[torch.Tensor], torch.Tensor] = plain
    prepare: Callable[[torch.Tensor], torch.Tensor] = plain
    prepare_weights: Callable[[torch.Tensor], torch.Tensor] = plain
    augment: float = 0.0
    repeat_epoch: bool = False
    drop_last: bool = False
    draws: int = 0
    seeds_python: bool = True
    resumed: bool = False
    set_globals: Callable[[], object] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    steps: int = 3


class Net(torch.nn.Module):
    """Tokens, two linear layers, a norm, dropout, a buffer."""

    scale: torch.Tensor

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.first = torch.nn.Linear(8, setup.width, bias=setup.bias)
        self.norm = torch.nn.LayerNorm(setup.width, eps=setup.eps)
        self.drop = torch.nn.Dropout(setup.dropout)
        self.second = torch.nn.Linear(setup.width, 8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        if setup.tied:
            self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((8,), 0.5).to(setup.buffer_dtype))
        self.activation = setup.activation

    def forward(self, tokens: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens) * weights.unsqueeze(-1).to(self.embed.weight.dtype)
        hidden = self.drop(self.norm(self.activation(self.first(hidden))))
        return self.head(self.second(hidden) * self.scale.to(hidden.dtype))


class Texts(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows of tokens with padding, and a weight for each, with an augmentation that is drawn by Python."""

    def __init__(self, setup: Setup) -> None:
        generator = torch.Generator().manual_seed(setup.data_seed)
        self.tokens = torch.randint(1, 20, (24, 6), generator=generator)
        self.tokens[:, 4:] = 0
        self.tokens = setup.prepare(self.tokens)
        self.weights = setup.prepare_weights(
            torch.rand(24, self.tokens.shape[1], generator=generator)
        )
        self.setup = setup
        self.draws = random.Random(setup.workers_seed)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 1 + self.setup.augment * self.draws.random()
        return self.tokens[place], self.weights[place] * noise


def optimizer_of(model: Net, setup: Setup) -> torch.optim.Optimizer:
    """Two groups, one without weight decay."""
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    plain_ones = [one for name, one in named if any(part in name for part in setup.undecayed)]
    decayed = [one for name, one in named if not any(part in name for part in setup.undecayed)]
    groups = [{"params": decayed}, {"params": plain_ones, "weight_decay": 0.0}]
    options = {"lr": 1e-2, "weight_decay": 0.1, **setup.options}
    return setup.optimizer([one for one in groups if one["params"]], **options)


def model_of(setup: Setup) -> Net:
    """The model as a training begins with it."""
    model = Net(setup).to(setup.weights_dtype)
    model.scale = model.scale.to(setup.buffer_dtype)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(name.startswith(one) for one in setup.frozen))
    if setup.spoil:
        with torch.no_grad():
            model.get_parameter(setup.spoil).view(-1)[0] += 1e-3
    for name in setup.evaluated:
        model.get_submodule(name).eval()
    return model


def batches(setup: Setup) -> Iterator[list[torch.Tensor]]:
    """Epoch after epoch, each shuffled otherwise unless the sampler is not told."""
    generator, data = torch.Generator(), Texts(setup)
    loader = DataLoader(data, 4, True, generator=generator, drop_last=setup.drop_last)
    epoch = 0
    while True:
        seed = setup.shuffle_seed + (0 if setup.repeat_epoch else epoch)
        generator.manual_seed(seed)
        yield from islice(loader, setup.accumulation)  # a short epoch: one update
        epoch += 1


def train(setup: Setup, path: Path) -> Path:
    """Record the training that a set-up makes."""
    torch.manual_seed(setup.seed)
    random.seed(setup.seed)
    np.random.seed(setup.seed)
    if not setup.seeds_python:
        random.seed()
        np.random.seed()
    model = model_of(setup)
    optimizer = optimizer_of(model, setup)
    torch.rand(setup.draws)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, setup.gamma)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=setup.scale or 1.0, enabled=setup.scale is not None
    )
    if setup.resumed:
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.ones_like(parameter)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.copy_(value)
    source = batches(setup)
    with lockstep.record(path, model=model, steps="0:2"):
        for _ in range(setup.steps):
            for _ in range(setup.accumulation):
                loss = _loss(model, next(source), setup)
                scaler.scale(setup.wrap_loss(loss) / setup.accumulation).backward()
            scaler.unscale_(optimizer)
            if setup.clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), setup.clip)
            scaler.step(optimizer)
            scaler.update()
            if setup.scheduled:
                scheduler.step()
            optimizer.zero_grad()
    return path


def _loss(model: Net, batch: list[torch.Tensor], setup: Setup) -> torch.Tensor:
    tokens, weights = batch
    cast = torch.autocast("cpu", setup.autocast) if setup.autocast else nullcontext()
    with cast:
        out = model(tokens, weights.to(setup.weights_dtype))
        inside = setup.autocast_loss or setup.autocast is None
        with nullcontext() if inside else torch.autocast("cpu", enabled=False):
            return F.cross_entropy(out.flatten(0, 1), tokens.flatten().long(), **setup.loss_options)


def record(setup: Setup, path: Path) -> Path:
    """The same with switches and variables of the process set, and put back after."""
    kept = {name: os.environ.get(name) for name in setup.environment}
    os.environ.update(setup.environment)
    switches = _switches()
    try:
        if setup.set_globals is not None:
            setup.set_globals()
        return train(setup, path)
    finally:
        switches()
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _switches() -> Callable[[], None]:
    precision = torch.get_float32_matmul_precision()
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    benchmark, onednn = torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled

    def put_back() -> None:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = benchmark
        torch.backends.mkldnn.enabled = onednn

    return put_back


@dataclass(frozen=True)
class Planted:
    """A difference, and what has to be named first.

    Parameters
    ----------
    change
        What the candidate has otherwise.
    aspect
        Where it belongs.
    words
        What has to stand in the difference itself.
    common
        What both have otherwise than the reference.
    """

    name: str
    change: dict[str, Any]
    aspect: str
    words: str = ""
    common: dict[str, Any] = field(default_factory=dict)

    def sides(self) -> tuple[Setup, Setup]:
        """The set-ups of both."""
        base = replace(Setup(), **self.common)
        return base, replace(base, **self.change)


def _padded_left(tokens: torch.Tensor) -> torch.Tensor:
    return tokens.roll(2, dims=1)


def _leaky(hidden: torch.Tensor) -> torch.Tensor:
    return F.gelu(hidden, approximate="tanh")


def high_precision() -> None:
    """TF32 where there is some."""
    torch.set_float32_matmul_precision("high")


def benchmarking() -> None:
    """Kernels by how quick they are."""
    torch.backends.cudnn.benchmark = True


AMP = {"autocast": torch.bfloat16}
SCALED = {"scale": 1024.0}

PLANTED = [
    Planted("seed", {"seed": 7}, "seeds", "seed (torch)"),
    Planted("shuffle", {"shuffle_seed": 9}, "worker-seeds", "seed 9"),
    Planted("workers", {"drop_last": True}, "worker-seeds", "drop_last"),
    Planted("draw before the first step", {"draws": 1}, "random-state", "torch"),
    Planted("other data", {"data_seed": 9}, "data"),
    Planted("worker seed", {"workers_seed": 9}, "data", "mean", common={"augment": 0.5}),
    Planted("augmentation", {"augment": 0.5}, "data", "mean"),
    Planted("sampler without set_epoch", {"repeat_epoch": True}, "worker-seeds", "again"),
    Planted("padding side", {"prepare": _padded_left}, "data-order", "another order"),
    Planted("token added", {"prepare": lambda x: F.pad(x, (1, 0), value=3)}, "data-preprocessing", "shape"),
    Planted("tokens as int32", {"prepare": lambda x: x.int()}, "data-preprocessing", "dtype"),
    Planted("other range", {"prepare_weights": lambda x: x * 255}, "data-preprocessing", "times 255"),
    Planted("normalised", {"prepare_weights": lambda x: (x - 0.5) / 0.25}, "data-preprocessing", "shifted"),
    Planted("eps", {"eps": 1e-3}, "module-settings", "eps of norm"),
    Planted("dropout", {"dropout": 0.2}, "module-settings", "p of drop"),
    Planted("dropout off", {"dropout": 0.0}, "module-settings", "p of drop"),
    Planted("evaluation mode", {"evaluated": ("drop",)}, "modes", "drop"),
    Planted("activation", {"activation": F.relu}, "flow", "relu"),
    Planted("tanh approximation", {"activation": _leaky}, "flow", "approximate"),
    Planted("no bias", {"bias": False}, "model", "first.bias"),
    Planted("width", {"width": 16}, "model", "first"),
    Planted("tied", {"tied": True}, "tied", "head.weight"),
    Planted("frozen layer", {"frozen": ("first",)}, "frozen", "first.weight"),
    Planted("frozen embedding", {"frozen": ("embed",)}, "frozen", "embed.weight"),
    Planted("bf16 buffer", {"buffer_dtype": torch.bfloat16}, "weights-dtype", "scale"),
    Planted("bf16 model", {"weights_dtype": torch.bfloat16}, "weights-dtype", "bfloat16"),
    Planted("one weight", {"spoil": "second.weight"}, "weights", "second.weight"),
    Planted("autocast", AMP, "amp", "autocast"),
    Planted("autocast dtype", {"autocast": torch.float16}, "amp", "float16", common=AMP),
    Planted("loss outside of autocast", {"autocast_loss": False}, "amp", "cross_entropy", common=AMP),
    Planted("loss scale", {"scale": 65536.0}, "loss-scale", "", common=SCALED),
    Planted("scaler off", {"scale": None}, "loss-scale", "", common=SCALED),
    Planted("optimizer", {"optimizer": torch.optim.Adam}, "optimizer", "Adam"),
    Planted("learning rate", {"options": {"lr": 2e-2}}, "optimizer-options", "lr"),
    Planted("betas", {"options": {"betas": (0.9, 0.99)}}, "optimizer-options", "betas"),
    Planted("optimizer eps", {"options": {"eps": 1e-6}}, "optimizer-options", "eps"),
    Planted("weight decay", {"options": {"weight_decay": 0.2}}, "optimizer-options", "weight_decay"),
    Planted("amsgrad", {"options": {"amsgrad": True}}, "optimizer-options", "amsgrad"),
    Planted("norm decayed", {"undecayed": ("bias",)}, "optimizer-groups", "norm.weight"),
    Planted("schedule", {"gamma": 0.5}, "schedule", "lr"),
    Planted("no schedule", {"scheduled": False}, "schedule", "lr"),
    Planted("clip norm", {"clip": 0.5}, "clipping", "0.5"),
    Planted("no clipping", {"clip": None}, "clipping"),
    Planted("accumulation", {"accumulation": 3}, "accumulation", "3 a step"),
    Planted("resumed optimizer", {"resumed": True}, "optimizer-state"),
    Planted("label smoothing", {"loss_options": {"label_smoothing": 0.1}}, "loss", "label_smoothing"),
    Planted("ignored index", {"loss_options": {"ignore_index": 0}}, "loss", "ignore_index"),
    Planted("matmul precision", {"set_globals": high_precision}, "matmul-precision"),
    Planted("deterministic", {"set_globals": lambda: torch.use_deterministic_algorithms(True)}, "deterministic"),
    Planted("benchmark", {"set_globals": benchmarking}, "deterministic", "benchmark"),
    Planted("threads", {"set_globals": lambda: torch.set_num_threads(2)}, "threads"),
    Planted("environment", {"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}, "environment", "NVIDIA_TF32_OVERRIDE"),
    Planted("longer", {"steps": 4}, "length", "4"),
]  # fmt: skip
