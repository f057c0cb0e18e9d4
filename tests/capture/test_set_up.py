"""The set-up of model and optimizers that a recording notes: what is frozen, tied, in training, and in which group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Recording, Training, check, one_call
from torch import Tensor, nn

import lockstep
from lockstep.capture.settings.setup import rank_manifest
from lockstep.core.manifest import Options, RankManifest, manifest_from_json


class Tied(nn.Module):
    """An embedding that the head shares, a block that is there twice, dropout between."""

    def __init__(self, *, tie: bool = True) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.drop = nn.Dropout(0.25)
        if tie:
            self.head.weight = self.emb.weight

    def forward(self, x: Tensor) -> Tensor:
        inner = self.drop(self.second(self.first(self.emb(x))))
        output: Tensor = self.head(inner)
        return output


def training(model: nn.Module, groups: list[dict[str, Any]]) -> Training:
    optimizer = torch.optim.SGD(groups, lr=0.1)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.arange(5)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, step, optimizers=[optimizer])


def manifest_of(recording: Recording) -> RankManifest:
    return recording.ranks["rank0"].manifest


def test_what_is_frozen_and_what_is_tied_is_noted(tmp_path: Path) -> None:
    # given a model with a frozen bias, a tied head and a block that is called twice
    def build() -> Training:
        model = Tied()
        model.first.bias.requires_grad_(False)
        return training(model, [{"params": model.parameters()}])

    manifest = manifest_of(check(build, tmp_path / "ref"))

    # then each parameter stands under one name, and the other names point to it
    assert manifest.trainable == {"emb.weight": True, "first.weight": True, "first.bias": False}
    assert manifest.tied == {"head.weight": "emb.weight", "second": "first"}


def test_the_twin_with_nothing_frozen_and_nothing_tied(tmp_path: Path) -> None:
    def build() -> Training:
        model = Tied(tie=False)
        return training(model, [{"params": model.parameters()}])

    manifest = manifest_of(check(build, tmp_path / "ref"))
    assert all(manifest.trainable.values())
    assert manifest.trainable.keys() == {"emb.weight", "head.weight", "first.weight", "first.bias"}
    assert manifest.tied == {"second": "first"}


def test_groups_tell_their_parameters_once_and_where_they_change(tmp_path: Path) -> None:
    # given an optimizer that is given another group after its second step
    def build() -> Training:
        model = Tied()
        model.first.bias.requires_grad_(False)
        weights: list[dict[str, Any]] = [
            {"params": [model.emb.weight]},
            {"params": [model.first.bias]},
        ]
        ordinary = training(model, weights)
        plain, (optimizer,) = ordinary.step, ordinary.optimizers

        def step(number: int) -> Any:
            value = plain(number)
            if number == 1:
                optimizer.add_param_group({"params": [model.first.weight]})
            return value

        ordinary.step = step
        return ordinary

    noted = manifest_of(check(build, tmp_path / "ref", steps=4)).optimizers
    first, second = [["emb.weight"], ["first.bias"]], [["first.weight"]]
    assert [item.parameters for item in noted] == [first, [], first + second, []]


def test_the_mode_and_the_dropout_of_every_module_stand_at_its_call(tmp_path: Path) -> None:
    # given a model of which one part is in evaluation
    def build() -> Training:
        model = Tied()
        model.first.eval()
        return training(model, [{"params": model.parameters()}])

    recording = check(build, tmp_path / "ref")

    rows = recording.ranks["rank0"].module_table
    table = dict(zip(rows["module"], rows["training"], strict=True))
    assert table == {"": True, "emb": True, "head": True, "first": False, "drop": True}
    dropout = one_call(recording, "torch.nn.Dropout", "drop").arguments
    assert (dropout["p"], dropout["training"]) == (0.25, True)


def test_recordings_of_earlier_builds_tell_nothing_of_it(tmp_path: Path) -> None:
    def build() -> Training:
        model = Tied()
        return training(model, [{"params": model.parameters()}])

    path = check(build, tmp_path / "ref").path
    value = lockstep.open(path).ranks["rank0"].manifest
    earlier = {name: getattr(value, name) for name in ("schema", "rank", "pid", "argv", "python")}
    manifest = manifest_from_json(RankManifest, {**earlier, "world_size": 1}, "manifest")
    assert (manifest.trainable, manifest.tied, manifest.optimizers) == ({}, {}, [])


def test_a_machine_with_cuda_is_described_whatever_its_torch_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a torch that sees a CUDA device, and has no private name for the driver's version
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delattr(torch._C, "_cuda_getDriverVersion", raising=False)

    # when a process is described, then it is, with what is known
    described = rank_manifest(0, 1, Options())
    assert described.platform["cpu"]
    assert described.platform.get("driver", "13000").isdigit()
