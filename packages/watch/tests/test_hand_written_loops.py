"""Rules on loops without a DataLoader, a GradScaler or one optimizer for all: the fault fires, its twin does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_watch_rules import hits_in
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep_watch.chosen_rules import choose
from lockstep_watch.observed import Hit

Loss = Callable[[nn.Module, Tensor], Tensor]


def _fired(path: Path, loss: Loss, rule: str, outputs: int = 4) -> tuple[bool, bool]:
    """Whether a rule fired, and whether it is a note."""

    def train(steps: int) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, outputs))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model, torch.randn(16, 8)).backward()
            optimizer.step()

    notes: list[Hit] = []
    found = hits_in(path / "rec", train, 12, choose([], only=[rule]), notes)
    return bool(found), bool(notes)


_ONES = torch.ones(16, 1)
CONSTANT: dict[str, Loss] = {
    "criterion": lambda model, x: nn.MSELoss()(model(x), torch.ones(16, 1)),
    "by hand": lambda model, x: (model(x) - torch.ones(16, 1)).square().mean(),
    "by hand, the other way round": lambda model, x: ((_ONES * 3 - model(x)) ** 2).mean(),
    "absolute": lambda model, x: (model(x) - torch.full((16, 1), 2.0)).abs().sum(),
}
SOUND: dict[str, Loss] = {
    "data": lambda model, x: (model(x) - x[:, :1]).square().mean(),
    "noise": lambda model, x: F.mse_loss(model(x), torch.randn(16, 1)),
    "boundary": lambda model, x: (
        F.mse_loss(model(x), torch.zeros(16, 1)) + (model(x + 1) - x[:, :1]).square().mean()
    ),
    "two targets": lambda model, x: (
        F.mse_loss(model(x), torch.ones(16, 1)) + F.mse_loss(model(-x), torch.zeros(16, 1))
    ),
    "no target": lambda model, x: model(x).square().mean(),
}


@pytest.mark.parametrize("case", CONSTANT)
def test_labels_of_one_number_fire_without_a_data_loader(case: str, tmp_path: Path) -> None:
    assert _fired(tmp_path, CONSTANT[case], "labels-constant", 1) == (True, False)


@pytest.mark.parametrize("case", SOUND)
def test_targets_that_are_meant_to_be_so_do_not(case: str, tmp_path: Path) -> None:
    assert _fired(tmp_path, SOUND[case], "labels-constant", 1) == (False, False)


SCALE = 2.0**40


@pytest.mark.parametrize(
    "scaled",
    [
        lambda loss: loss * SCALE,
        lambda loss: loss / (1 / SCALE),
        lambda loss: loss * SCALE / 2,
        lambda loss: 0.5 * (loss * torch.tensor(SCALE)),
    ],
    ids=["times", "divided", "and divided", "twice"],
)
@pytest.mark.parametrize("takes_out", [True, False])
def test_a_loss_scale_by_hand_explodes_only_if_it_is_not_taken_out(
    scaled: Callable[[Tensor], Tensor], takes_out: bool, tmp_path: Path
) -> None:
    def train(steps: int) -> None:
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-18 if not takes_out else 0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            labels = torch.randint(0, 4, (16,))
            loss = scaled(F.cross_entropy(model(torch.randn(16, 8)), labels))
            loss.backward()
            if takes_out:
                for one in model.parameters():
                    assert one.grad is not None
                    one.grad /= SCALE
            optimizer.step()

    found = hits_in(tmp_path / "rec", train, 4, choose([], only=["exploding-gradient"]))
    assert bool(found) is not takes_out


@pytest.mark.parametrize(
    ("case", "fires", "notes"),
    [("forgotten", True, False), ("in eval mode", False, True), ("held", False, False)],
)
def test_a_module_that_no_optimizer_holds_fires(
    case: str, fires: bool, notes: bool, tmp_path: Path
) -> None:
    def train(steps: int) -> None:
        body, head = nn.Linear(8, 64), nn.Linear(64, 4)
        body.train(case != "in eval mode")
        held = [*head.parameters(), *(body.parameters() if case == "held" else ())]
        optimizer = torch.optim.SGD(held, lr=0.05)
        for _ in range(steps):
            optimizer.zero_grad()
            labels = torch.randint(0, 4, (16,))
            F.cross_entropy(head(body(torch.randn(16, 8)).tanh()), labels).backward()
            optimizer.step()

    told: list[Hit] = []
    rules = choose([], only=["parameter-without-optimizer"])
    assert bool(hits_in(tmp_path / "rec", train, 5, rules, told)) is fires
    assert bool(told) is notes
