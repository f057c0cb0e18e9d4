"""An optimizer's class that calls its base's step: what is recorded and counted is the step as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from harness import CallKind, Role, Training, calls, check, recorded, same, supervised, values
from torch import Tensor, nn


class Halving(torch.optim.SGD):
    """A step of the base, after which each parameter is halved."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(0.5)


def training() -> Training:
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # from here on torch hooks the base's step too
    model = nn.Linear(4, 2)
    return supervised(
        model, lambda: (torch.ones(3, 4),), optimizer=Halving(model.parameters(), lr=0.1)
    )


def test_an_update_is_recorded_with_what_follows_the_step_of_its_base(tmp_path: Path) -> None:
    # given an optimizer whose step calls that of its base, both with torch's hooks
    # when two steps of it are recorded
    recording = check(training, tmp_path / "ref")

    # then each has one update of a parameter, up to the end of the whole step
    for step in (0, 1):
        (update,) = [
            call
            for call in calls(recording, step=step, kind=CallKind.OPTIMIZER)
            if any(record.name == "weight" for record in call.records)
        ]
        before, gradient = values(update, Role.PARAM), values(update, Role.PARAM_GRAD)
        assert same(values(update, Role.PARAM_AFTER), (before - 0.1 * gradient) * 0.5)
    assert [one.complete for one in recording.ranks["rank0"].manifest.steps] == [True, True]


def test_steps_after_the_recorded_ones_are_counted_once(tmp_path: Path) -> None:
    # given a training that goes on behind its recorded step
    def train() -> Tensor:
        made = training()
        return [made.step(number) for number in range(4)][-1]

    # when it is recorded
    recording = recorded(tmp_path / "ref", train, steps="0")

    # then it has as many steps as it made
    assert recording.ranks["rank0"].manifest.trained == 4
