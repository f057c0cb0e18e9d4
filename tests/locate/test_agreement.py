"""AGREE means that every loss, gradient and parameter was judged and explained: ways in which it once did not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Kind, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.screen import render_comparison


class Halved(torch.autograd.Function):
    """Sound forward, half of the gradient backward."""

    @staticmethod
    def forward(ctx: object, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:  # type: ignore[override]
        return 0.5 * gradients[0]


def gelu_by_hand(value: Tensor) -> Tensor:
    return 0.5 * value * (1.0 + torch.erf(value / math.sqrt(2.0)))


def gelu_new(value: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (value + 0.044715 * torch.pow(value, 3.0))
    return 0.5 * value * (1.0 + torch.tanh(inner))


def erf_by_hand(value: Tensor) -> Tensor:
    """The error function to 1.5e-7 (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26)."""
    return erf_of(value, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))


def erf_with_another_constant(value: Tensor) -> Tensor:
    return erf_of(value, (1.061405429, -1.453152027, 1.421613741, -0.284496736, 0.254829592))


def erf_of(value: Tensor, factors: tuple[float, ...]) -> Tensor:
    sign, size = torch.sign(value), torch.abs(value)
    inverse = 1.0 / (1.0 + 0.3275911 * size)
    total = torch.zeros_like(value)
    for factor in factors:
        total = (total + factor) * inverse
    return sign * (1.0 - total * torch.exp(-(size * size)))


def gelu_written_out(value: Tensor) -> Tensor:
    return 0.5 * value * (1.0 + erf_by_hand(value / math.sqrt(2.0)))


def gelu_with_another_constant(value: Tensor) -> Tensor:
    return 0.5 * value * (1.0 + erf_with_another_constant(value / math.sqrt(2.0)))


def gelu_a_little_larger(value: Tensor) -> Tensor:
    return 1.0001 * gelu_written_out(value)


class Block(nn.Module):
    """Attention with a key bias, whose true gradient is zero, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.norm, self.enter, self.leave = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.activation: Callable[[Tensor], Tensor] = F.gelu
        self.attend: Callable[..., Tensor] = attend_by_hand
        self.mask = masked_by_numbers
        self.halved = False

    def forward(self, value: Tensor) -> Tensor:
        mask = self.mask(value)
        value = value + self.attend(self.query(value), self.key(value), self.value(value), mask)
        if self.halved:
            value = Halved.apply(value)  # type: ignore[no-untyped-call]
        return value + self.leave(self.activation(self.enter(self.norm(value))))


def masked_by_numbers(value: Tensor) -> Tensor:
    kept = masked_by_booleans(value)
    return torch.zeros(kept.shape).masked_fill(~kept, torch.finfo(torch.float32).min)


def masked_by_booleans(value: Tensor) -> Tensor:
    kept = torch.ones(value.shape[1], value.shape[1], dtype=torch.bool)
    kept[:, -2:] = False
    return kept


def attend_by_hand(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + mask
    return torch.softmax(scores, -1) @ value


def attend_at_once(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.leave = nn.Linear(16, 4)

    def forward(self, value: Tensor) -> Tensor:
        value = self.enter(value)
        for block in self.blocks:
            value = block(value)
        return self.leave(value)  # type: ignore[no-any-return]


Change = Callable[[Net], nn.Module | None]


class Runs:
    """Recordings of one training with changes, each made once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Path] = {}

    def of(self, name: str, change: Change) -> Path:
        if name not in self._made:
            torch.manual_seed(0)
            model = Net()
            batch, target = torch.randn(4, 6, 8), torch.randn(4, 6, 4)
            changed = change(model)
            called = model if changed is None else changed
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            path = self._made[name] = self._directory / name
            with lockstep.record(path, model=model, steps="0:2", save="tensors"):
                for _ in range(2):
                    optimizer.zero_grad()
                    F.mse_loss(called(batch), target).backward()
                    optimizer.step()
        return self._made[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def unchanged(model: Net) -> None:
    return None


def compiled(model: Net) -> nn.Module:
    torch._dynamo.reset()
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


def compiled_and_halved(model: Net) -> nn.Module:
    model.blocks[1].halved = True
    return compiled(model)


def with_block(name: str, value: object) -> Change:
    def change(model: Net) -> None:
        setattr(model.blocks[1], name, value)

    return change


def attending_at_once(model: Net) -> None:
    for block in model.blocks:
        block.attend, block.mask = attend_at_once, masked_by_booleans


def norm_in_bfloat16(model: Net) -> None:
    norm = model.blocks[1].norm
    model.blocks[1].norm = norm.bfloat16()
    norm.forward = lambda value: nn.LayerNorm.forward(norm, value.bfloat16())
    model.blocks[1].enter.forward = lambda value: F.linear(  # type: ignore[method-assign]
        value.float(), model.blocks[1].enter.weight, model.blocks[1].enter.bias
    )


def frozen_bias(model: Net) -> None:
    model.leave.bias.requires_grad_(False)


def compare(runs: Runs, reference: Change, candidate: Change, weight: str) -> Comparison:
    def path(change: Change) -> Path:
        closed = [str(cell.cell_contents) for cell in getattr(change, "__closure__", None) or ()]
        return runs.of(
            "-".join([change.__name__, *closed]).replace("/", "").replace(" ", ""), change
        )

    return lockstep.compare_recordings(
        path(reference), path(candidate), read_tensors=weight == "tensors"
    )


# Dynamo itself makes an instance of a custom function, which torch warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
WEIGHTS = pytest.mark.parametrize("weight", ["sketch", "tensors"])


@pytest.mark.sampled(4)
@WEIGHTS
@pytest.mark.parametrize("reference", [unchanged, compiled])
def test_a_gradient_that_is_halved_in_compiled_code_is_an_origin(
    runs: Runs, reference: Change, weight: str
) -> None:
    # Given compiled code with a custom function that sends half of the gradient back
    found = compare(runs, reference, compiled_and_halved, weight)
    # Then one origin names the last module whose gradients are wrong, against eager and against compiled
    origin, *others = found.origins
    assert (origin.phase, origin.kind, others) == (Phase.BACKWARD, Kind.FAULT, [])
    assert origin.module.startswith("blocks.1")


@WEIGHTS
def test_sound_compiled_code_agrees_with_eager(runs: Runs, weight: str) -> None:
    found = compare(runs, unchanged, compiled, weight)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())


@WEIGHTS
def test_another_formula_written_by_hand_is_no_noise(runs: Runs, weight: str) -> None:
    # Given gelu, and in one block its approximation by tanh in seven operators, 1e-4 apart
    found = compare(runs, unchanged, with_block("activation", gelu_new), weight)
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].module, found.origins[0].phase) == ("blocks.1", Phase.FORWARD)


@WEIGHTS
def test_the_same_formula_written_by_hand_agrees(runs: Runs, weight: str) -> None:
    found = compare(runs, unchanged, with_block("activation", gelu_by_hand), weight)
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())


@pytest.mark.sampled(3)
@WEIGHTS
@pytest.mark.parametrize("activation", [gelu_with_another_constant, gelu_a_little_larger])
def test_a_small_mistake_in_a_long_formula_is_no_noise(
    runs: Runs, weight: str, activation: Callable[[Tensor], Tensor]
) -> None:
    # Given gelu in some thirty operators, of which one is off: results are 1e-4 apart, or less
    found = compare(runs, unchanged, with_block("activation", activation), weight)
    # Then the block is named, with what either run calls there, though what leaves it is far nearer than that
    assert found.verdict is Verdict.DIVERGED
    origin = found.origins[0]
    assert (origin.step, origin.module, origin.phase) == (0, "blocks.1", Phase.FORWARD)
    assert "the reference calls torch.nn.functional.gelu" in origin.reason
    shown = render_comparison(found, show_all=True).plain
    assert f"unaligned: {found.unaligned_reference} in the reference" in shown
    assert found.unaligned_candidate >= 2 * 25


@WEIGHTS
def test_a_sound_long_formula_agrees(runs: Runs, weight: str) -> None:
    found = compare(runs, unchanged, with_block("activation", gelu_written_out), weight)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
    assert found.unaligned_candidate >= 2 * 25


@WEIGHTS
def test_attention_at_once_agrees_with_attention_by_hand_under_a_mask(
    runs: Runs, weight: str
) -> None:
    # Given masks as booleans and as -3.4e38
    found = compare(runs, unchanged, attending_at_once, weight)
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())


@WEIGHTS
def test_one_layer_in_another_dtype_is_a_difference_of_set_up(runs: Runs, weight: str) -> None:
    found = compare(runs, unchanged, norm_in_bfloat16, weight)
    origin = found.origins[0]
    assert (found.verdict, origin.kind, origin.module) == (
        Verdict.DIVERGED,
        Kind.SETUP,
        "blocks.1.norm",
    )
    assert "bfloat16 in the candidate and float32 in the reference" in origin.reason


@WEIGHTS
def test_what_only_one_run_trains_makes_no_agreement(runs: Runs, weight: str) -> None:
    found = compare(runs, unchanged, frozen_bias, weight)
    assert found.verdict is not Verdict.AGREE
    assert any(
        "leave.bias" in said for said in (*found.not_compared, *(o.reason for o in found.origins))
    )


# --- several backward passes in a step ----------------------------------------------------------------------------


def accumulated(path: Path, *, zeroed: bool = False, twice: bool = False) -> Path:
    """Two steps of two micro-batches each."""
    torch.manual_seed(0)
    model, batches = Net(), torch.randn(4, 2, 6, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with lockstep.record(path, model=model, steps="0:2"):
        for step in range(2):
            optimizer.zero_grad()
            for batch in batches[2 * step : 2 * step + 2]:
                loss = model(batch).square().mean() / 2
                if zeroed:
                    optimizer.zero_grad()
                if twice:
                    loss.backward(retain_graph=True)
                loss.backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def micro_batches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return accumulated(tmp_path_factory.mktemp("micro") / "batches")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("zeroed", "gradients are zeroed between the backward passes of a step in the candidate"),
        ("twice", "number of backward passes differs: 2 in this step of the reference, 4 in the"),
    ],
)
def test_a_mistake_in_accumulating_is_one_origin_in_words(
    tmp_path: Path, micro_batches: Path, mistake: str, words: str
) -> None:
    candidate = accumulated(tmp_path / "candidate", **{mistake: True})
    origin, *others = lockstep.compare_recordings(micro_batches, candidate).origins
    assert (origin.phase, others) == (Phase.BACKWARD, [])
    assert words in origin.reason


def test_losses_that_were_not_recorded_end_no_comparison(
    tmp_path: Path, micro_batches: Path
) -> None:
    # Given a candidate that goes backward more often, cut off before the records of its losses were there
    candidate = accumulated(tmp_path / "candidate", twice=True)
    for path in candidate.glob("rank0/records-*.parquet"):
        pl.read_parquet(path).filter(pl.col("role") != "loss").write_parquet(path)
    manifest = json.loads((candidate / "rank0" / "manifest.json").read_text())
    del manifest["files"], manifest["digest"]
    (candidate / "rank0" / "manifest.json").write_text(json.dumps(manifest))
    # Then what is there is compared
    assert lockstep.compare_recordings(micro_batches, candidate).verdict is Verdict.DIVERGED


def test_accumulating_twice_alike_agrees(tmp_path: Path, micro_batches: Path) -> None:
    found = lockstep.compare_recordings(micro_batches, accumulated(tmp_path / "again"))
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())


def test_an_optimizer_of_other_parameters_is_named_once(runs: Runs, tmp_path: Path) -> None:
    # Given an optimizer that holds copies of the parameters, as one that was made too early does
    torch.manual_seed(0)
    model = Net()
    batch, target = torch.randn(4, 6, 8), torch.randn(4, 6, 4)
    copies = [nn.Parameter(one.detach().clone()) for one in model.parameters()]
    optimizer = torch.optim.AdamW(copies, lr=1e-3)
    with lockstep.record(tmp_path / "candidate", model=model, steps="0:2"):
        for _ in range(2):
            model.zero_grad()
            F.mse_loss(model(batch), target).backward()
            for copy, one in zip(copies, model.parameters(), strict=True):
                copy.grad = one.grad
            optimizer.step()
    found = lockstep.compare_recordings(runs.of("unchanged", unchanged), tmp_path / "candidate")
    origin, *others = found.origins
    assert (origin.phase, others) == (Phase.OPTIMIZER, [])
    assert "only the reference updates" in origin.reason


# --- what changes in no recorded call -----------------------------------------------------------------------------


def taught(path: Path, *, decay: float) -> Path:
    """Two steps with a teacher that follows the student by a moving average."""
    torch.manual_seed(0)
    model, teacher = Net(), Net().requires_grad_(False)
    teacher.load_state_dict(model.state_dict())
    batch = torch.randn(4, 6, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with lockstep.record(path, model=model, steps="0:2"):
        for _ in range(2):
            optimizer.zero_grad()
            F.mse_loss(model(batch), teacher(batch) + 1.0).backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                    slow.mul_(decay).add_(fast, alpha=1.0 - decay)
    return path


def test_a_teacher_that_follows_at_another_pace_is_one_origin_at_the_next_step(
    tmp_path: Path,
) -> None:
    # Given teachers that are updated between the steps, where nothing is recorded
    reference = taught(tmp_path / "reference", decay=0.99)
    found = lockstep.compare_recordings(reference, taught(tmp_path / "candidate", decay=0.9))
    origin, *others = found.origins
    assert (origin.step, origin.phase, others) == (1, Phase.FORWARD, [])
    assert "changed since the last step" in origin.reason
    # Then the same pace agrees
    again = lockstep.compare_recordings(reference, taught(tmp_path / "again", decay=0.99))
    assert again.verdict is Verdict.AGREE


# --- loss scaling ---------------------------------------------------------------------------------------------------


def scaled(path: Path, factor: float, save: str = "program") -> Path:
    """Two steps whose loss is scaled, and whose gradients are unscaled before the update."""
    torch.manual_seed(0)
    model, batch = Net(), torch.randn(4, 6, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=factor, enabled=factor != 1.0)
    with lockstep.record(path, model=model, steps="0:2", save=save):
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(batch).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    return path


def test_a_loss_that_one_run_scales_is_a_difference_of_set_up(tmp_path: Path) -> None:
    found = lockstep.compare_recordings(
        scaled(tmp_path / "reference", 1.0, "sketch"),
        scaled(tmp_path / "candidate", 1024.0, "sketch"),
    )
    assert [origin.kind for origin in found.origins] == [Kind.SETUP]
    assert "the loss is 1024 times the reference's" in found.origins[0].reason


def test_a_loss_that_one_run_scales_agrees_where_its_program_is_run_again(tmp_path: Path) -> None:
    # Given both runs' programs: what is unscaled is the reference's gradient
    found = lockstep.compare_recordings(
        scaled(tmp_path / "reference", 1.0), scaled(tmp_path / "candidate", 1024.0)
    )
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())


def test_a_gradient_that_is_scaled_for_good_is_none_of_set_up(tmp_path: Path) -> None:
    # Given a candidate that doubles its loss and never takes the factor out
    torch.manual_seed(0)
    model, batch = Net(), torch.randn(4, 6, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with lockstep.record(tmp_path / "candidate", model=model, steps="0:2"):
        for _ in range(2):
            optimizer.zero_grad()
            (2.0 * model(batch).square().mean()).backward()
            optimizer.step()
    reference = scaled(tmp_path / "reference", 1.0)
    found = lockstep.compare_recordings(reference, tmp_path / "candidate")
    assert found.origins[0].kind is Kind.FAULT
