"""Windows from one state: what the reference held at a window's start is set in the candidate, bit by bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.capture.windows.setting import tensor_of
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError, UsageError
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase
from lockstep.core.windows import WindowStart
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.screen import headline, render_comparison
from lockstep.store.window_states import STATES, read_state

STEPS = 46
LATE = 40
WINDOWS = "0:2,40:42"


@dataclass
class Late:
    """A fault that begins at step `LATE`, or none; and what is seen of the training as it runs."""

    forward: Callable[[Tensor], Tensor] = torch.relu
    begins: Callable[[torch.optim.Optimizer, nn.Module], None] = lambda *_: None
    schedules: bool = True
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    hidden: int = 16
    draws_at: int | None = None
    at_20: Callable[[torch.optim.Optimizer], None] = lambda _: None
    decay: float = 0.01
    seen: list[dict[str, Tensor]] = field(default_factory=list)


class Net(nn.Module):
    """Linear layers, batch norm and dropout; the activation is given."""

    def __init__(self, late: Late) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, late.hidden), nn.BatchNorm1d(late.hidden)
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(late.hidden, 1)
        self.late, self.now = late, 0

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the prediction."""
        hidden = self.norm(self.first(inputs))
        hidden = self.late.forward(hidden) if self.now >= LATE else torch.relu(hidden)
        return self.last(self.drop(hidden))


def train(late: Late, steps: int = STEPS) -> dict[str, Tensor]:
    """A plain loop with a schedule, dropout, AdamW, a shuffled loader and a mean of the weights."""
    torch.manual_seed(5)
    model = Net(late)
    inputs = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
    optimizer = late.optimizer(model.parameters(), lr=1e-2)
    for group in optimizer.param_groups:
        group["weight_decay"] = late.decay
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    mean = {name: one.detach().clone() for name, one in model.named_parameters()}
    batches = iter(loader)
    for step in range(steps):
        model.now = step
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        if step == late.draws_at:
            torch.rand(1)
        if step == 20:
            late.at_20(optimizer)
        if step == LATE:
            late.begins(optimizer, model)
        loss = (model(batch[0]) - batch[1]).square().mean()
        late.seen.append({"loss": loss.detach().clone(), "x": batch[0]})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if late.schedules or step < LATE:
            schedule.step()
        for name, one in model.named_parameters():
            mean[name].mul_(0.9).add_(one.detach(), alpha=0.1)
    return {**model.state_dict(), **{f"mean {name}": one for name, one in mean.items()}}


def recorded(directory: Path, late: Late | None = None, **options: Any) -> dict[str, Tensor]:
    with lockstep.record(directory, **options):
        return train(late or Late())


def windows_of(directory: Path) -> list[WindowStart]:
    return lockstep.open(directory).ranks["rank0"].manifest.windows


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("windows") / "ref"
    recorded(directory, windows=WINDOWS)
    return directory


def compared(reference: Path, candidate: Path, late: Late, **options: Any) -> Comparison:
    recorded(candidate, late, start_from=reference, emulate="reorder", **options)
    return compare_recordings(reference, candidate)


# --- keeping ----------------------------------------------------------------------------------------------------------


def test_the_whole_state_is_kept_at_the_start_of_each_window(reference: Path) -> None:
    state = read_state(reference / "rank0", LATE)

    names = set(state.tensors)
    assert {"first.weight", "norm.running_var", "last.bias|exp_avg_sq"} <= names
    assert {"train.mean['first.weight']", "train.mean['last.bias']"} <= names
    assert not any(name.startswith("train.batch") or "inputs" in name for name in names)
    assert tensor_of(state, "first.weight|step") == LATE
    assert state.values["settings"]["train.schedule.last_epoch"] == LATE


def test_keeping_states_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    bare = train(Late())

    kept = recorded(tmp_path / "ref", windows=WINDOWS)

    assert all(torch.equal(bare[name], kept[name]) for name in bare)


# --- setting ----------------------------------------------------------------------------------------------------------


def test_the_state_of_the_reference_is_set_bit_by_bit(reference: Path, tmp_path: Path) -> None:
    # given a reference, and a candidate that trains with a larger rate
    bare = Late()
    train(bare)

    # when its training is set to the reference's state
    other = Late(optimizer=lambda given, lr: torch.optim.AdamW(given, lr=1.5 * lr))
    recorded(tmp_path / "cand", other, start_from=reference)

    # then the window begins with the same loss, after losses that were others
    assert not torch.equal(other.seen[LATE - 1]["loss"], bare.seen[LATE - 1]["loss"])
    assert torch.equal(other.seen[LATE]["loss"], bare.seen[LATE]["loss"])
    start = windows_of(tmp_path / "cand")[1]
    assert (start.is_set, start.not_set, start.differed) == (True, [], [])
    assert start.distance is not None
    assert start.distance > 0
    assert start.digest == windows_of(reference)[1].digest


def test_generators_are_set_before_the_batch_is_drawn(reference: Path, tmp_path: Path) -> None:
    # given a candidate that draws one number more at step 20, and so other samples and masks from then on
    bare, other = Late(), Late(draws_at=20)
    train(bare)
    recorded(tmp_path / "cand", other, start_from=reference)

    # then the epoch that begins with the window has the reference's samples, and its masks
    assert not torch.equal(bare.seen[LATE - 1]["x"], other.seen[LATE - 1]["x"])
    assert torch.equal(bare.seen[LATE]["x"], other.seen[LATE]["x"])
    assert torch.equal(bare.seen[LATE + 1]["loss"], other.seen[LATE + 1]["loss"])
    # and it is told that they were others before
    told = windows_of(tmp_path / "cand")[1].differed
    assert [one.name for one in told] == ["torch's generator"]


def test_an_optimizer_that_has_made_no_state_yet_gets_it(reference: Path, tmp_path: Path) -> None:
    def anew(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        optimizer.state.clear()

    bare, other = Late(), Late(begins=anew)
    train(bare)
    recorded(tmp_path / "cand", other, start_from=reference)

    assert torch.equal(bare.seen[LATE + 1]["loss"], other.seen[LATE + 1]["loss"])


def test_another_optimizer_is_named(reference: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "cand", Late(optimizer=torch.optim.SGD), start_from=reference)

    start = windows_of(tmp_path / "cand")[1]
    assert start.is_set
    assert any(
        "torch.optim.SGD: the reference has torch.optim.AdamW" in one for one in start.not_set
    )


def test_of_another_model_nothing_is_set(reference: Path, tmp_path: Path) -> None:
    bare, other = Late(hidden=12), Late(hidden=12)
    train(bare)
    recorded(tmp_path / "cand", other, start_from=reference)

    assert torch.equal(bare.seen[-1]["loss"], other.seen[-1]["loss"])
    start = windows_of(tmp_path / "cand")[1]
    assert not start.is_set
    assert "different models: first.weight is of shape (12, 8) here" in start.not_set[-1]


# --- faults -----------------------------------------------------------------------------------------------------------


def _decays(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.5


def _freezes(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    model.get_submodule("first").requires_grad_(False)


@pytest.mark.parametrize(
    ("late", "place"),
    [
        (Late(forward=lambda hidden: torch.relu(hidden) * 1.01), "step 40, forward"),
        (Late(begins=_decays), "step 40, optimizer of first.weight"),
        (Late(schedules=False), "step 41, optimizer of first.weight"),
    ],
    ids=["operator", "weight decay", "schedule"],
)
def test_a_late_fault_is_named_in_its_window(
    reference: Path, tmp_path: Path, late: Late, place: str
) -> None:
    found = compared(reference, tmp_path / "cand", late)

    assert place in headline(found)


def test_a_sound_training_agrees_in_every_window(reference: Path, tmp_path: Path) -> None:
    found = compared(reference, tmp_path / "cand", Late())

    assert found.verdict is Verdict.AGREE
    assert found.steps == (0, 1, 40, 41)
    assert [(one.steps, one.verdict) for one in found.windows] == [
        ((0, 1), Verdict.AGREE),
        ((40, 41), Verdict.AGREE),
    ]
    assert "each window begins with one state, which was set" in headline(found)


def test_windows_that_touch_agree(tmp_path: Path) -> None:
    # given a state that is set in the midst of recorded steps, past every recorded call
    recorded(tmp_path / "ref", windows="0:2,2:4")
    found = compared(tmp_path / "ref", tmp_path / "cand", Late())

    # then that is no change that the training made
    assert found.verdict is Verdict.AGREE
    assert [one.steps for one in found.windows] == [(0, 1), (2, 3)]


def test_a_fault_in_an_early_window_hides_none_in_a_later_one(
    reference: Path, tmp_path: Path
) -> None:
    # given a first step that differs, and an operator that differs from step 40 on
    late = Late(forward=lambda hidden: torch.relu(hidden) * 1.01, decay=0.3)
    found = compared(reference, tmp_path / "cand", late)

    # then each window has its own answer
    first, second = found.windows
    assert first.origin is not None
    assert (first.origin.step, first.origin.phase) == (0, Phase.OPTIMIZER)
    assert second.origin is not None
    assert (second.origin.step, second.origin.phase) == (40, Phase.FORWARD)
    assert "step 0, optimizer" in headline(found)
    shown = render_comparison(found).plain
    assert "steps 40-41: DIVERGED at step 40, forward of the model" in shown
    assert comparison_json(found)["windows"][1]["origin"]["step"] == 40


def test_a_count_that_was_another_one_is_the_answer(reference: Path, tmp_path: Path) -> None:
    # given a candidate that loses its optimizer's state once, between two windows
    def anew(optimizer: torch.optim.Optimizer) -> None:
        optimizer.state.clear()

    found = compared(reference, tmp_path / "cand", Late(at_20=anew))

    # then setting the state does not hide it
    assert found.verdict is Verdict.DIVERGED
    assert "before step 40: first.weight|step was 20, and 40 in the reference" in headline(found)


def test_an_optimizer_that_lost_its_state_as_the_window_begins_is_the_answer(
    reference: Path, tmp_path: Path
) -> None:
    # given one that has lost all of it at the very step
    found = compared(reference, tmp_path / "cand", Late(begins=lambda one, _: one.state.clear()))

    # then making the state anew does not hide it
    assert found.verdict is Verdict.DIVERGED
    assert "before step 40: the state of torch.optim.AdamW for first.weight" in headline(found)
    assert "was empty, and there in the reference" in headline(found)


def test_a_generator_that_was_another_one_is_the_answer(reference: Path, tmp_path: Path) -> None:
    found = compared(reference, tmp_path / "cand", Late(draws_at=20))

    assert found.verdict is Verdict.DIVERGED
    assert "at step 20, the state of the random generator of torch" in headline(found)
    shown = " ".join(render_comparison(found).plain.split())
    assert "before, torch's generator was in a different state" in shown


def test_a_window_that_was_not_set_is_not_compared(reference: Path, tmp_path: Path) -> None:
    # given a candidate with a state of a different recording
    recorded(tmp_path / "other", Late(decay=0.3), windows=WINDOWS)
    recorded(tmp_path / "cand", Late(), start_from=tmp_path / "other")

    found = compare_recordings(reference, tmp_path / "cand")

    assert 40 not in found.steps
    assert any("40-41 do not begin with one state" in one for one in found.not_compared)


def test_the_order_of_the_two_does_not_matter(reference: Path, tmp_path: Path) -> None:
    recorded(tmp_path / "cand", Late(schedules=False), start_from=reference, emulate="reorder")

    found = compare_recordings(tmp_path / "cand", reference)

    assert "step 41, optimizer of first.weight" in headline(found)


# --- bad input --------------------------------------------------------------------------------------------------------


def test_a_reference_without_states_is_refused(tmp_path: Path) -> None:
    recorded(tmp_path / "ref")

    with pytest.raises(UsageError, match=r"keeps no state .* --windows"):
        lockstep.record(tmp_path / "cand", start_from=tmp_path / "ref")


def test_a_cut_state_is_refused_before_the_training(reference: Path, tmp_path: Path) -> None:
    copied = tmp_path / "ref"
    shutil.copytree(reference, copied)
    path = copied / "rank0" / STATES / "step-40.safetensors"
    path.write_bytes(path.read_bytes()[:100])

    with pytest.raises(CorruptError, match="step-40"):
        lockstep.record(tmp_path / "cand", start_from=copied)


def test_a_window_behind_the_end_is_left_out(tmp_path: Path) -> None:
    recorded(tmp_path / "ref", windows="0:2,900:902")

    recorded(tmp_path / "cand", start_from=tmp_path / "ref")

    assert [one.step for one in windows_of(tmp_path / "cand")] == [0]


def test_two_ways_to_say_which_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="give one"):
        lockstep.record("cand", steps="0:3", windows="0:2")
