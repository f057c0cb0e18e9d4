"""Activation checkpointing: what is computed again in backward is marked, gradients stay in place."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import (
    Role,
    Training,
    as_tensor,
    calls,
    check,
    named,
    one_call,
    same,
    supervised,
    values,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

MODES = (True, False)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.tanh(self.lin(x)))


class Checkpointed(nn.Module):
    """Three blocks, the middle one and a plain function checkpointed."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = Block(), Block(), Block()
        self.use_reentrant = use_reentrant

    def tail(self, x: Tensor) -> Tensor:
        return F.gelu(self.last(x))

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self.middle, self.first(x), use_reentrant=self.use_reentrant)
        return checkpoint(self.tail, y, use_reentrant=self.use_reentrant)


def batch() -> tuple[Tensor, ...]:
    return (torch.randn(3, 4),)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("use_reentrant", MODES)
@pytest.mark.parametrize("level", ["module", "api", "aten"])
@pytest.mark.parametrize("save", ["stats", "sketch", "tensors"])
def test_recording_a_checkpointed_training_changes_nothing(
    tmp_path: Path, use_reentrant: bool, level: str, save: str
) -> None:
    def build() -> Training:
        return supervised(Checkpointed(use_reentrant=use_reentrant), batch)

    check(build, tmp_path / "ref", level=level, save=save)


@pytest.mark.parametrize("use_reentrant", MODES)
def test_recomputed_calls_are_marked_and_repeat_the_forward(
    tmp_path: Path, use_reentrant: bool
) -> None:
    def build() -> Training:
        return supervised(Checkpointed(use_reentrant=use_reentrant), batch)

    recording = check(build, tmp_path / "ref")

    for path in ("middle", "last"):
        first = one_call(recording, "Block", path)
        again = one_call(recording, "Block", path, recomputed=True)
        assert same(values(again, Role.INPUT), values(first, Role.INPUT))
        # and an operator of it, dropout included, lies at the same place of the model
        for op in ("tanh", "linear", "dropout"):
            place = {"tanh": path, "linear": f"{path}.lin", "dropout": f"{path}.drop"}[op]
            before = one_call(recording, op, place)
            after = one_call(recording, op, place, recomputed=True)
            assert same(values(after, Role.INPUT), values(before, Role.INPUT))
            # recomputation may end as soon as the last tensor that backward needs is there
            assert after.arguments.get("raised") or same(
                values(after, Role.OUTPUT), values(before, Role.OUTPUT)
            )
    assert calls(recording, "", "first", recomputed=True) == []
    assert (
        one_call(recording, "gelu", "").site
        == one_call(recording, "gelu", "", recomputed=True).site
    )


@pytest.mark.parametrize("use_reentrant", MODES)
def test_gradients_lie_at_the_calls_whose_graph_ran(tmp_path: Path, use_reentrant: bool) -> None:
    # given the same training with and without checkpoints
    def build() -> Training:
        return supervised(Checkpointed(use_reentrant=use_reentrant), batch)

    def build_plain() -> Training:
        model = Checkpointed(use_reentrant=use_reentrant)
        model.forward = lambda x: model.tail(model.middle(model.first(x)))  # type: ignore[method-assign]
        return supervised(model, batch)

    recording = check(build, tmp_path / "ref")
    plain = check(build_plain, tmp_path / "plain")

    # then every gradient of the plain training is there, bitwise
    for path in ("first.lin", "middle.lin", "last.lin"):
        expected = one_call(plain, "linear", path)
        found = [
            record
            for call in calls(recording, "linear", path, recomputed=None)
            for record in call.records
        ]
        roles = (Role.GRAD_OUTPUT, Role.GRAD_INPUT) if path != "first.lin" else (Role.GRAD_OUTPUT,)
        for role in roles:
            (record,) = [record for record in found if record.role is role]
            assert same(as_tensor(record), values(expected, role))
        (weight,) = [
            record
            for record in found
            if record.role is Role.PARAM_GRAD and record.name.endswith("weight")
        ]
        assert same(as_tensor(weight), as_tensor(named(plain, weight.name, Role.PARAM_GRAD)[-1]))
    block = one_call(recording, "Block", "first")
    assert same(
        values(block, Role.GRAD_OUTPUT), values(one_call(plain, "Block", "first"), Role.GRAD_OUTPUT)
    )


@pytest.mark.parametrize("use_reentrant", MODES)
def test_checkpoints_in_a_row_and_inside_each_other(tmp_path: Path, use_reentrant: bool) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.blocks = nn.Sequential(Block(), Block(), Block(), Block())
            self.inner = Block()

        def inside(self, x: Tensor) -> Tensor:
            return torch.sin(checkpoint(self.inner, x * 2, use_reentrant=False))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=use_reentrant)
            return checkpoint(self.inside, x, use_reentrant=use_reentrant)

    recording = check(lambda: supervised(Nested(), batch), tmp_path / "ref")

    again = calls(recording, "Block", "blocks.0", recomputed=True)
    assert len(again) == 1
    assert {call.site.module for call in calls(recording, "sin", recomputed=None)} == {""}


def test_selective_checkpointing_keeps_what_it_was_told_to(tmp_path: Path) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(_context: object, op: object, *_args: object, **_kwargs: object) -> object:
        keep = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    class Selective(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(
                self.block,
                x,
                use_reentrant=False,
                context_fn=lambda: create_selective_checkpoint_contexts(policy),
            )

    check(lambda: supervised(Selective(), batch), tmp_path / "ref")
    check(lambda: supervised(Selective(), batch), tmp_path / "aten", level="aten")
