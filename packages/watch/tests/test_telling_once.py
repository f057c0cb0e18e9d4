"""What is told once: notes, and what holds of all ranks together; and what a script leaves out by hand is counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import lockstep
from lockstep.launch import WrittenStep
from lockstep.store.reader import RankRecording
from lockstep_watch.chosen_rules import choose
from lockstep_watch.lines import conclusion
from lockstep_watch.observed import ALL_RANKS, Hit, ObservedStep
from lockstep_watch.running import end_words
from lockstep_watch.watcher import Noted, RuleFired, Watcher, WatchEvent


@pytest.fixture(scope="module")
def rank(tmp_path_factory: pytest.TempPathFactory) -> RankRecording:
    """Four updates of a line; before the third, two backwards are thrown away."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path_factory.mktemp("line") / "rec"
    with lockstep.record(path, steps="0:4"):
        for number in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            if number not in (2, 3):
                optimizer.step()
    return lockstep.open(path).ranks["rank0"]


def of_all_ranks(step: ObservedStep) -> Iterator[Hit]:
    """Holds in every step, of all ranks together."""
    yield replace(step.hit("replicas", "they differ"), rank=ALL_RANKS)


def may_be_meant(step: ObservedStep) -> Iterator[Hit]:
    """Holds in every step, and may be meant."""
    yield step.hit("frozen", "a layer is frozen", is_note=True)


def looked_at(rank: RankRecording, *rules: object) -> tuple[Watcher, list[WatchEvent]]:
    """Each step, as of two ranks in turn."""
    told: list[WatchEvent] = []
    names = [rule.__name__.replace("_", "-") for rule in rules]  # type: ignore[attr-defined]
    watcher = Watcher(choose(list(rules), only=names), told.append)  # type: ignore[arg-type]
    for number in rank.steps:
        watcher.look(WrittenStep(rank, f"rank{number % 2}", number, None))
    return watcher, told


def test_what_holds_of_all_ranks_is_told_once_whichever_is_last(rank: RankRecording) -> None:
    # Given a rule that holds of all ranks together, seen by one rank and by the other
    # When each step is looked at
    watcher, told = looked_at(rank, of_all_ranks)
    # Then it is told once, and counted in each
    assert sum(isinstance(one, RuleFired) for one in told) == 1
    assert watcher.watched.fired["of-all-ranks"] == len(rank.steps)


def test_a_note_is_told_once_and_fires_no_rule(rank: RankRecording) -> None:
    # Given a rule that sees what may be meant
    # When each step is looked at
    watcher, told = looked_at(rank, may_be_meant)
    # Then it is told once, and no rule has fired
    assert sum(isinstance(one, Noted) for one in told) == 1
    assert not watcher.watched.first
    said = conclusion(watcher.watched, left_out=0).splitlines()
    assert said[0].startswith("no rule fired in ")
    assert said[1:] == ["note: a layer is frozen"]


def test_what_a_script_throws_away_is_counted_and_not_judged(rank: RankRecording) -> None:
    # Given a step before whose backward two others were thrown away
    watcher, _ = looked_at(rank, may_be_meant)
    # When what came of it is told
    # Then they are counted
    assert watcher.watched.by_hand == 2
    assert "2 more left out by the script" in conclusion(watcher.watched, left_out=0)


def test_it_is_said_how_far_the_training_may_be_when_it_is_asked_to_end(
    rank: RankRecording,
) -> None:
    # Given a step of a training of one rank
    # When it is asked to end
    words = end_words(WrittenStep(rank, "rank0", 1, None))
    # Then the lag is said
    assert "may be up to 9 ahead" in words
