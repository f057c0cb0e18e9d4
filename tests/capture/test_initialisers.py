"""Every way to initialise a model leaves a training that is recorded, for a comparison and for rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import recorded
from torch import Tensor, nn

Initialise = Callable[[Tensor], object]

_GIVEN = {"constant_": (0.01,), "sparse_": (0.5,), "uniform_": (-0.1, 0.1)}
_OF_TORCH = [
    one for one in dir(nn.init) if one.endswith("_") and not one.startswith("_") and one != "init_"
]


def _by_torch(name: str) -> Initialise:
    return lambda weight: getattr(nn.init, name)(weight, *_GIVEN.get(name, ()))


def _first_row(weight: Tensor) -> None:
    with torch.no_grad():
        weight[0].fill_(0.1)


def _flat(weight: Tensor) -> None:
    with torch.no_grad():
        weight.view(-1).normal_(0.0, 0.1)


def _in_parts(weight: Tensor) -> None:
    with torch.no_grad():
        for part in weight.chunk(2):
            nn.init.orthogonal_(part)


def _transposed(weight: Tensor) -> None:
    nn.init.orthogonal_(weight.detach().t())


def _data(weight: Tensor) -> None:
    weight.data.normal_(0.0, 0.1)


def _copied(weight: Tensor) -> None:
    with torch.no_grad():
        weight.copy_(torch.eye(*weight.shape[:2]).reshape(-1)[0])


_BY_HAND = {"a row": _first_row, "flat": _flat, "in parts": _in_parts, "transposed": _transposed,
            "data": _data, "copied": _copied}  # fmt: skip
_WAYS = {name: _by_torch(name) for name in _OF_TORCH} | _BY_HAND
_RULES = {"save": "stats", "apart": True, "apart_steps": 2}


def _train(initialise: Initialise, shape: tuple[int, ...]) -> list[object]:
    if len(shape) == 3:
        model: nn.Module = nn.Conv1d(shape[1], shape[0], shape[2], padding=1)
        batch = torch.randn(2, shape[1], 8)
    else:
        model, batch = nn.Linear(shape[1], shape[0]), torch.randn(2, shape[1])
    initialise(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [model, optimizer]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [{}, _RULES], ids=["compared", "rules"])
@pytest.mark.parametrize("way", _WAYS)
def test_a_model_that_was_initialised_in_any_way_is_recorded(
    tmp_path: Path, way: str, options: dict[str, object]
) -> None:
    # given square, wide and tall weights: what an initialiser does with a view depends on the shape
    shapes = [(16, 16, 3)] if way == "dirac_" else [(48, 48), (40, 48), (48, 40)]
    for shape in shapes:
        # when a training is recorded from before it is initialised
        folder = tmp_path / str(shape[:2])
        recording = recorded(folder, lambda shape=shape: _train(_WAYS[way], shape), **options)
        # then both steps are there
        steps = [step for rank in recording.ranks.values() for step in rank.steps]
        assert sorted(steps) == [0, 1]
        assert recording.missing == ()


def test_all_initialisers_of_torch_are_tried() -> None:
    assert {"orthogonal_", "dirac_", "sparse_", "trunc_normal_", "kaiming_normal_"} <= set(_WAYS)
