"""`--save-on`: the command that is printed looks further into the kept step, whatever rule has fired."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import lockstep
from lockstep.cli.main import main
from lockstep.launch import WrittenStep
from lockstep_watch.acting import Acting, next_command
from lockstep_watch.chosen_rules import choose
from lockstep_watch.observed import Hit
from lockstep_watch.watcher import Watcher


def dead_training(path: Path, level: str) -> WrittenStep:
    """One recorded step of a training whose ReLU is dead; the body belongs to no optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.constant_(model[0].bias, -100.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, steps="0", level=level, save="tensors"):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return WrittenStep(lockstep.open(path).ranks["rank0"], "rank0", 0, None)


def hits_of(step: WrittenStep, rule: str) -> list[Hit]:
    """What a rule finds in it at once."""
    settings = [f"{rule}.steps=1"] if rule != "loss-spike" else []
    hits = Watcher(choose([], only=[rule], settings=settings), lambda event: None).look(step)
    return hits or [Hit(rule, 0, "rank0", "loss", 1.0, 0.5, "the loss is 1")]


@pytest.mark.parametrize("level", ["api", "module"])
@pytest.mark.parametrize("rule", ["dead-relu", "zero-gradient", "loss-spike"])
def test_the_printed_command_works(
    rule: str, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a kept step and what a rule found in it: at an operator, of a gradient, of the loss alone
    step = dead_training(tmp_path / "kept", level)
    words = next_command(step.rank.calls(0), hits_of(step, rule), str(tmp_path / "kept"))
    # When what is printed is typed
    code = main(words[1:])
    # Then it runs operators again where there are some, and shows the place else
    assert code == 0, capsys.readouterr().err
    assert words[1] == ("replay" if level == "api" else "show")


def test_a_gradient_leads_to_the_operator_that_sent_it(tmp_path: Path) -> None:
    # Given a step with gradients of zero
    step = dead_training(tmp_path / "kept", "api")
    # When the command is made
    words = next_command(step.rank.calls(0), hits_of(step, "zero-gradient"), "kept")
    # Then it names the linear layer whose backward gave the gradient
    assert words[3:] == ["--only", "2 / torch.nn.functional.linear #0, forward"]


def test_only_the_rule_that_was_asked_for_chooses_the_place(tmp_path: Path) -> None:
    # Given a step in which two rules fire, and one that the step is kept on
    step = dead_training(tmp_path / "rec", "api")
    hits = [*hits_of(step, "zero-gradient"), *hits_of(step, "dead-relu")]
    known = ["zero-gradient", "dead-relu"]
    # When it is acted on
    said = list(Acting([], ["dead-relu"], tmp_path / "kept", known).act(step, hits))
    # Then the command is of that rule's operator
    assert len(said) == 1
    assert "torch.nn.functional.relu #0, forward" in said[0]


def test_notes_act_where_their_rule_is_named_alone(tmp_path: Path) -> None:
    # Given a note
    step = dead_training(tmp_path / "rec", "api")
    note = Hit("parameter-frozen", 0, "rank0", "frozen", 1.0, 0.5, "frozen", is_note=True)
    known = ["parameter-frozen"]
    # When any rule may keep the step, and when this one may
    silent = list(Acting([], ["any"], tmp_path / "silent", known).act(step, [note]))
    said = list(Acting([], known, tmp_path / "kept", known).act(step, [note]))
    # Then only the second does
    assert silent == []
    assert "kept step 0" in said[0]
