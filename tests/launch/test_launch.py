"""A training is followed while it runs: each step is given once, and whoever looks is never in its way but as asked."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lockstep.capture.recording import apart
from lockstep.capture.recording.apart import StepsApart
from lockstep.core.manifest import Options
from lockstep.launch import (
    Ended,
    Event,
    Follow,
    NotArmed,
    Notice,
    Started,
    StepsLeftOut,
    StepUnreadable,
    StepWritten,
    WhenFull,
    WrittenStep,
    event_from_line,
    event_line,
    launch,
)
from lockstep.launch.time_share import TimeShare
from lockstep.store.claim import Claim

STEPS = 5
SCRIPT = """
import os, pathlib, sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = pathlib.Path("done")
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().sum().backward()
    if step == 3 and "dies" in sys.argv:
        os.kill(os.getpid(), 9)
    optimizer.step()
    done.write_text("." * (step + 1))
pathlib.Path("trained").write_text("")
while "stays" in sys.argv:
    pass
"""


@dataclass
class Place:
    """A folder with the script, and what was heard of its run."""

    path: Path
    python: Path
    heard: list[Event] = field(default_factory=list)

    def launch(self, follow: Follow | None, *words: str, steps: str = "0:") -> Ended:
        """Run the script to its end."""
        return launch(
            [str(self.python), "train.py", *words],
            self.path / "recording",
            Options(steps=steps),
            follow=follow,
            hear=self.heard.append,
            cwd=self.path,
        )

    @property
    def done(self) -> int:
        """How many steps the training has behind it."""
        return len((self.path / "done").read_text()) if (self.path / "done").exists() else 0

    def wait_until_trained(self) -> None:
        """Wait until the training has no step left."""
        while not (self.path / "trained").exists():
            pass


@pytest.fixture
def place(tmp_path: Path, programs: Path) -> Place:
    """Where the training runs."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return Place(tmp_path, programs / "python")


def test_a_training_that_waits_is_followed_step_by_step(place: Place) -> None:
    # given somebody who looks at each step, and notes how far the training is meanwhile
    seen: list[tuple[str, int, int, bool]] = []

    def look(step: WrittenStep) -> None:
        seen.append((step.name, step.number, place.done, bool(step.rank.calls(step.number))))

    # when the training is to wait for that
    ended = place.launch(Follow(look, when_full=WhenFull.WAIT))

    # then each step is looked at while the training stands at its end, and nothing of it is left
    assert seen == [("rank0", number, number, True) for number in range(STEPS)]
    assert (ended.code, ended.left_out, ended.trained) == (0, 0, STEPS)
    assert [path.name for path in (place.path / "recording").iterdir()] == ["manifest.json"]
    # and what happened was told in order
    first, *steps, last = place.heard
    assert isinstance(first, Started)
    assert steps == [StepWritten("rank0", number) for number in range(STEPS)]
    assert last == ended


@pytest.mark.parametrize("waiting", [1, 2])
def test_a_training_that_does_not_wait_leaves_steps_out(place: Place, waiting: int) -> None:
    # given somebody who looks at the first step until the training is over
    seen: list[int] = []

    def look(step: WrittenStep) -> None:
        seen.append(step.number)
        place.wait_until_trained()

    # when so many steps may lie there
    ended = place.launch(Follow(look, waiting_steps=waiting))

    # then these are looked at, and the others counted
    assert seen == list(range(waiting))
    assert (ended.code, ended.left_out) == (0, STEPS - waiting)


def test_steps_that_were_left_out_are_told_before_the_next(place: Place) -> None:
    # given somebody who looks at step 0 until step 2 is over, and every second step chosen
    def look(step: WrittenStep) -> None:
        while step.number == 0 and place.done < 3:
            pass

    ended = place.launch(Follow(look), steps="0::2")

    # then step 2 is left out, and told of before step 4, if that was not left out as well
    told = [event for event in place.heard if isinstance(event, StepWritten | StepsLeftOut)]
    expected = [StepWritten("rank0", 0), StepsLeftOut("rank0", 1), StepWritten("rank0", 4)]
    assert (told, ended.left_out) in ((expected, 1), (expected[:1], 2))


def test_a_command_that_dies_leaves_what_it_had_written(place: Place) -> None:
    seen: list[int] = []
    ended = place.launch(
        Follow(lambda step: seen.append(step.number), when_full=WhenFull.WAIT), "dies"
    )
    assert ended.code == 128 + signal.SIGKILL
    assert seen[:3] == [0, 1, 2]


def test_where_looking_fails_the_training_ends_as_ever(place: Place) -> None:
    # given somebody who fails at the second step
    def look(step: WrittenStep) -> None:
        if step.number == 1:
            raise RuntimeError("no more")

    # when a training that waits for them is run, then it runs to its end, and the failure is raised then
    with pytest.raises(RuntimeError, match="no more"):
        place.launch(Follow(look, when_full=WhenFull.WAIT))
    assert place.done == STEPS
    assert (place.path / "trained").exists()


def test_a_signal_is_passed_on(place: Place) -> None:
    # given a training that stays, and somebody who ends the process that launched it
    def look(step: WrittenStep) -> None:
        if step.number == 0:
            place.wait_until_trained()
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    # when the signal comes, then the training gets it, and this process is as before
    assert place.launch(Follow(look), "stays").code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_training_that_nobody_follows_any_more_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a step that lies there, and a training that is to wait until it has gone
    monkeypatch.setattr(apart, "_ASKS_EVERY_S", 0.0)
    steps = StepsApart(tmp_path, Options(apart=True, apart_waits=True))
    (tmp_path / "rank0").mkdir()
    steps.begin(tmp_path / "rank0")
    # when whoever launched it has been killed, then it does not
    assert not steps.has_room()
    # and while they live it does, until the step is taken away
    with Claim(tmp_path):
        taken = threading.Timer(0.05, (tmp_path / "rank0").rmdir)
        taken.start()
        assert steps.has_room()
        taken.join()


def test_work_ends_its_turn_when_the_command_has_ended() -> None:
    ended = threading.Event()
    limited, free = TimeShare(1e-9, ended), TimeShare(None, ended)
    with limited.at_work(), free.at_work():
        ended.set()
        assert (limited.its_turn(), free.its_turn()) == (False, True)
    assert not limited.may_go_on()
    assert free.may_go_on(1e9)


@pytest.mark.parametrize(
    "event",
    [
        Started(12, "/tmp/ref"),
        StepWritten("rank1", 3),
        StepsLeftOut("rank0", 7),
        StepUnreadable("rank0", "a file\nis damaged"),
        NotArmed(4, "/usr/bin/python3", "was started so", "Do that."),
        Notice("a sentence"),
        Ended(137, "", False, 3, 5),
    ],
)
def test_an_event_is_a_line_of_json(event: Event) -> None:
    line = event_line(event)
    assert "\n" not in line
    assert event_from_line(line) == event


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"event": "other"}', '{"event": "notice"}'])
def test_what_is_no_event_is_said(line: str) -> None:
    with pytest.raises(ValueError, match=r"no event|Expecting value"):
        event_from_line(line)
