"""`lockstep check REF CAND` of a network for images: the setting that differs is named first, equal ones are silent."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep_check.setups.answers import Answer, State
from lockstep_check.setups.checkup import checkup


@dataclass(frozen=True)
class Images:
    """What the training is set up by."""

    conv: dict[str, Any] = field(default_factory=dict)
    norm: dict[str, Any] = field(default_factory=dict)
    heads: int = 2
    slope: float = 0.1
    average: bool = False
    residual: bool = True
    temperature: float = 1.0
    dropout: float = 0.0
    zero_head: bool = False
    channels_last: bool = False
    flipped: int | None = None
    factor: float = 1.0
    shift: float = 0.0
    label_shift: int = 0
    rows: int = 8
    passes: int = 1
    norm_evaluated: bool = False
    norm_frozen: bool = False
    dtype: torch.dtype = torch.float32
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
    options: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    length: int | None = 10
    loss: dict[str, Any] = field(default_factory=dict)
    loss_weight: float = 1.0
    class_weights: tuple[float, ...] | None = None
    clip: str = "norm"


class Net(nn.Module):
    """Two convolutions, attention over places, a head."""

    def __init__(self, setup: Images) -> None:
        super().__init__()
        self.setup = setup
        self.stem = nn.Conv2d(3, 8, 3, **{"padding": 1, **setup.conv})
        self.norm = nn.BatchNorm2d(8, **setup.norm)
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, setup.heads, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.leaky_relu(self.norm(self.stem(x)), self.setup.slope)
        hidden = self.conv(hidden) + (hidden if self.setup.residual else 0)
        hidden = F.avg_pool2d(hidden, 2) if self.setup.average else F.max_pool2d(hidden, 2)
        places = hidden.flatten(2).transpose(1, 2)
        places = F.dropout(places + self.attention(places, places, places)[0], self.setup.dropout)
        return self.head(places.mean(1)) / self.setup.temperature


def data_of(setup: Images) -> tuple[Tensor, Tensor]:
    """Pictures and labels."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(32, 3, 8, 8, generator=generator)
    y = torch.randint(0, 4, (32,), generator=generator)
    x = x if setup.flipped is None else x.flip(setup.flipped)
    x = (x * setup.factor - setup.shift).to(setup.dtype)
    if setup.channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    return x, (y + setup.label_shift) % 4


def model_of(setup: Images) -> Net:
    """The network."""
    model = Net(setup).to(setup.dtype)
    if setup.zero_head:
        nn.init.zeros_(model.head.weight)
    if setup.channels_last:
        model.to(memory_format=torch.channels_last)
    model.norm.train(not setup.norm_evaluated)
    return model


def optimizer_of(model: Net, setup: Images) -> torch.optim.Optimizer:
    """Weights and the rest in two groups."""
    model.norm.requires_grad_(not setup.norm_frozen)
    weights = [one for one in model.parameters() if one.ndim > 1]
    rest = [one for one in model.parameters() if one.ndim <= 1]
    groups = [{"params": weights}, {"params": rest, "weight_decay": 0.0, **setup.rest}]
    momentum = {"momentum": 0.9} if setup.optimizer is torch.optim.SGD else {}
    return setup.optimizer(
        groups, **{"lr": 0.05, "weight_decay": 1e-4, **momentum, **setup.options}
    )


def clip(model: Net, how: str) -> None:
    """Gradients by their norm, by value, by the largest one, or not at all."""
    if how == "value":
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
    elif how != "none":
        order = float("inf") if how == "largest" else 2.0
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=order)


def train(setup: Images) -> None:
    """Two steps."""
    x, y = data_of(setup)
    model = model_of(setup)
    optimizer = optimizer_of(model, setup)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, setup.length or 1)
    at = 0
    for _ in range(2):
        for _ in range(setup.passes):
            rows = slice(at, at + setup.rows)
            at = (at + setup.rows) % len(x)
            scores = model(x[rows])
            if setup.class_weights:
                loss = nn.CrossEntropyLoss(torch.tensor(setup.class_weights))(scores, y[rows])
            elif setup.class_weights is not None:
                loss = nn.CrossEntropyLoss()(scores, y[rows])
            else:
                loss = F.cross_entropy(scores, y[rows], **setup.loss)
            (loss * setup.loss_weight / setup.passes).backward()
        clip(model, setup.clip)
        optimizer.step()
        optimizer.zero_grad()
        if setup.length is not None:
            rates.step()


def recorded(setup: Images, path: Path, seed: int = 0) -> Path:
    """The training's recording."""
    torch.manual_seed(seed)
    with lockstep.record(path, steps="0:2"):
        train(setup)
    return path


def different(reference: Path, candidate: Path) -> list[Answer]:
    """What differs, the most harmful first."""
    return [one for one in checkup(reference, candidate).answers() if one.state is State.DIFFERS]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training as it is."""
    return recorded(Images(), tmp_path_factory.mktemp("images") / "reference")


PAIRS: dict[str, tuple[dict[str, Any], str]] = {
    "momentum": ({"options": {"momentum": 0.8}}, "optimizer-options"),
    "nesterov": ({"options": {"nesterov": True}}, "optimizer-options"),
    "dampening": ({"options": {"dampening": 0.1}}, "optimizer-options"),
    "maximize": ({"options": {"maximize": True}}, "optimizer-options"),
    "rate of a group": ({"rest": {"lr": 0.01}}, "optimizer-options"),
    "decay of a group": ({"rest": {"weight_decay": 1e-4}}, "optimizer-options"),
    "RMSprop": ({"optimizer": torch.optim.RMSprop}, "optimizer"),
    "momentum of a norm": ({"norm": {"momentum": 0.01}}, "module-settings"),
    "no running statistics": ({"norm": {"track_running_stats": False}}, "module-settings"),
    "padding mode": ({"conv": {"padding_mode": "reflect"}}, "module-settings"),
    "stride": ({"conv": {"stride": 2}}, "module-settings"),
    "dilation": ({"conv": {"dilation": 2, "padding": 2}}, "module-settings"),
    "heads": ({"heads": 4}, "module-settings"),
    "slope": ({"slope": 0.2}, "flow"),
    "average pooling": ({"average": True}, "flow"),
    "no residual": ({"residual": False}, "flow"),
    "functional dropout": ({"dropout": 0.1}, "flow"),
    "temperature": ({"temperature": 2.0}, "flow"),
    "head of zeros": ({"zero_head": True}, "weights"),
    "blue before red": ({"flipped": 1}, "data-order"),
    "mirrored": ({"flipped": 3}, "data-order"),
    "other range": ({"factor": 2.0}, "data-preprocessing"),
    "not centred": ({"shift": 0.5}, "data-preprocessing"),
    "labels off by one": ({"label_shift": 1}, "data"),
    "batch size": ({"rows": 16}, "data-preprocessing"),
    "channels last": ({"channels_last": True}, "kernels"),
    "norm in evaluation": ({"norm_evaluated": True}, "modes"),
    "frozen norm": ({"norm_frozen": True}, "frozen"),
    "bfloat16": ({"dtype": torch.bfloat16}, "weights-dtype"),
    "longer schedule": ({"length": 20}, "schedule"),
    "no schedule": ({"length": None}, "schedule"),
    "two passes": ({"passes": 2}, "accumulation"),
    "sum": ({"loss": {"reduction": "sum"}}, "loss"),
    "smoothing": ({"loss": {"label_smoothing": 0.1}}, "loss"),
    "weight of the loss": ({"loss_weight": 0.5}, "loss"),
    "clipped by value": ({"clip": "value"}, "clipping"),
    "clipped by the largest": ({"clip": "largest"}, "clipping"),
    "not clipped": ({"clip": "none"}, "clipping"),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PAIRS)
def test_the_setting_that_differs_is_named_first(
    name: str, reference: Path, tmp_path: Path
) -> None:
    # given two trainings of which one setting differs
    change, aspect = PAIRS[name]
    other = recorded(replace(Images(), **change), tmp_path / "candidate")
    # when they are held against each other
    found = different(reference, other)
    # then it is named, before what follows from it
    assert [one.aspect.name for one in found[:1]] == [aspect], [str(one) for one in found]


def test_another_seed_is_named_first(reference: Path, tmp_path: Path) -> None:
    # given another seed
    found = different(reference, recorded(Images(), tmp_path / "candidate", seed=3))
    # then it comes before the weights that follow from it
    assert found[0].aspect.name == "seeds"


def test_equal_set_ups_are_silent(reference: Path, tmp_path: Path) -> None:
    # given the same training twice
    # when they are held against each other
    # then nothing differs
    assert different(reference, recorded(Images(), tmp_path / "again")) == []


def test_class_weights_of_a_loss_that_is_a_module_are_told(tmp_path: Path) -> None:
    # Given two trainings by a loss of torch.nn, one of which weighs its classes
    made = [
        recorded(Images(class_weights=weights), tmp_path / name)
        for name, weights in (("plain", ()), ("again", ()), ("weighted", (1.0, 2.0, 1.0, 1.0)))
    ]
    # When each is held against the first, then it is the loss that differs
    assert different(made[0], made[1]) == []
    assert different(made[0], made[2])[0].aspect.name == "loss"
