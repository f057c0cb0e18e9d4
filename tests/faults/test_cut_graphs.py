"""Faults that take something away: a branch of the graph, a parameter's update, a random stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Kind, Origin, Verdict
from lockstep.core.site import Phase


class Block(nn.Module):
    """Self-attention with dropout inside, a residual, and a square layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
        self.square = nn.Linear(16, 16)
        self.drop = nn.Dropout(0.2)
        self.detached = self.transposed = self.unscaled = False

    def forward(self, value: Tensor) -> Tensor:
        mixed = self.attention(value, value, value, need_weights=False)[0]
        value = value + (mixed.detach() if self.detached else mixed)
        weight = self.square.weight.t() if self.transposed else self.square.weight
        kept = self.drop(torch.tanh(functional.linear(value, weight, self.square.bias)))
        return value + kept * (0.8 if self.unscaled else 1.0)


@dataclass
class Run:
    """How one run differs from the plain one."""

    alter: Callable[[Block], None] = lambda block: None
    left_out: tuple[str, ...] = ()
    reseed: bool = False
    edit_gradients: bool = False
    clamp_after: float = 0.0
    threads: int = 1
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD

    def record(self, path: Path, save: str) -> Path:
        """Two steps of a training of two blocks."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            torch.manual_seed(0)
            model, batch = nn.Sequential(Block(), Block()), torch.randn(8, 12, 16)
            self.alter(model[1])
            optimizer = self.optimizer(self._chosen(model), lr=0.01)
            torch.manual_seed(2 if self.reseed else 1)
            with lockstep.record(path, model=model, steps="0:2", save=save):
                for _ in range(2):
                    optimizer.zero_grad()
                    model.zero_grad()
                    model(batch).square().mean().backward()
                    weight = model[1].square.weight
                    if self.edit_gradients and weight.grad is not None:
                        weight.grad[0] = 0
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    if self.clamp_after:
                        weight.data.clamp_(max=self.clamp_after)
        finally:
            torch.set_num_threads(before)
        return path

    def _chosen(self, model: nn.Module) -> Iterable[nn.Parameter]:
        return [
            parameter for name, parameter in model.named_parameters() if name not in self.left_out
        ]


Compare = Callable[..., Comparison]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Compares the plain run with another, in both orders, which must give the same origin."""

    def compared(run: Run, plain: Run | None = None, save: str = "sketch") -> Comparison:
        number = len(list(tmp_path.iterdir()))
        reference = (plain or Run()).record(tmp_path / f"reference {number}", save)
        candidate = run.record(tmp_path / f"candidate {number}", save)
        found = lockstep.compare_recordings(reference, candidate)
        back = lockstep.compare_recordings(candidate, reference)
        assert [_where(one) for one in found.origins] == [_where(one) for one in back.origins]
        return found

    return compared


def _where(origin: Origin) -> tuple[object, ...]:
    return origin.step, origin.phase, origin.module, origin.op


def set_on(name: str) -> Callable[[Block], None]:
    return lambda block: setattr(block, name, True)


def test_a_stray_detach_is_named_at_the_call_that_sends_no_gradient(compare: Compare) -> None:
    origin = compare(Run(set_on("detached"))).origins[0]
    assert (origin.phase, origin.module, origin.step) == (Phase.BACKWARD, "1", 0)
    assert origin.op == "torch.Tensor.add"
    assert "the graph is cut here" in origin.reason


def test_a_parameter_that_only_one_run_updates_is_named(compare: Compare) -> None:
    found = compare(Run(left_out=("1.square.weight", "1.square.bias")))
    origin = found.origins[0]
    assert (origin.phase, origin.step) == (Phase.OPTIMIZER, 0)
    assert origin.tensor in ("1.square.weight", "1.square.bias")
    assert "updates 1.square" in origin.reason


def test_a_transposed_square_weight_is_named_in_the_forward_pass(compare: Compare) -> None:
    origin = compare(Run(set_on("transposed"))).origins[0]
    assert (origin.phase, origin.step) == (Phase.FORWARD, 0)
    assert origin.module in ("1", "1.square")


def test_gradients_edited_before_they_are_clipped_are_no_noise(compare: Compare) -> None:
    origin = compare(Run(edit_gradients=True)).origins[0]
    assert (origin.phase, origin.step) == (Phase.BACKWARD, 0)


def test_a_parameter_changed_after_its_update_is_named(compare: Compare) -> None:
    # Given two runs that both clamp a weight after each update, and one that clamps it further
    origin = compare(Run(clamp_after=0.1), Run(clamp_after=0.2)).origins[0]
    # Then the weight is named, at the update that it follows
    assert (origin.phase, origin.tensor, origin.step) == (
        Phase.OPTIMIZER,
        "1.square.weight",
        0,
    )
    # And two runs that clamp alike, on other numbers of threads, agree
    assert compare(Run(clamp_after=0.1, threads=2), Run(clamp_after=0.1)).origins == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_another_seed_is_a_random_stream_even_where_attention_draws_first(
    compare: Compare, save: str
) -> None:
    found = compare(Run(reseed=True), save=save)
    assert [origin.kind for origin in found.origins] == [Kind.RANDOM]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_a_wrong_scale_behind_dropout_is_no_random_stream(compare: Compare, save: str) -> None:
    origin = compare(Run(set_on("unscaled")), save=save).origins[0]
    assert (origin.phase, origin.module, origin.kind) == (Phase.FORWARD, "1", Kind.SETUP)
    assert "argument 1 is" in origin.reason


@pytest.mark.sampled(3)
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_noise_through_a_normalising_optimizer_is_noise(
    compare: Compare, optimizer: type[torch.optim.Optimizer]
) -> None:
    found = compare(Run(threads=2, optimizer=optimizer), Run(optimizer=optimizer))
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
