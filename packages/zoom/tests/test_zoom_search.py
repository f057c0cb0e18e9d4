"""`lockstep zoom`: the first bad step of two trainings is found in few runs, and a search that was killed goes on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.errors import CorruptError, OutputExistsError, UsageError
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.manifest import Options, RunManifest
from lockstep.core.windows import Windows
from lockstep.launch import unheard
from lockstep_zoom.bracket import Bracket, Judged, bracket_of, most_rounds, search
from lockstep_zoom.journal import NAME
from lockstep_zoom.rounds import Training
from lockstep_zoom.words import Zoomed, as_values, result
from lockstep_zoom.zooming import zoomed_in

STEPS = 30
LATE = random.Random(76).randrange(4, 24)
PROBES = 4

# --- the search alone -------------------------------------------------------------------------------------------------


def judged_by(is_bad: Callable[[int], bool], untold: frozenset[int] = frozenset()) -> Any:
    """Judges steps as two trainings would, and counts how often it is asked."""

    def look(bracket: Bracket, chosen: tuple[int, ...]) -> Judged:
        look.rounds += 1
        told = [step for step in (*chosen, bracket.sound) if step >= 0 and step not in untold]
        sound = tuple(step for step in told if not is_bad(step))
        bad = min((step for step in told if is_bad(step)), default=None)
        return Judged(sound, bad, untold=tuple(untold & {*chosen}))

    look.rounds = 0
    return look


@pytest.mark.parametrize("probes", [2, 3, 4, 9])
def test_every_first_bad_step_is_found_in_as_many_rounds_as_were_said(probes: int) -> None:
    for bad in range(1, 201):
        # given a step that agrees, a later one that does not, and a fault that begins between
        bracket = Bracket(0, 200, is_shown=True)
        look = judged_by(lambda step, bad=bad: step >= bad)
        # when it is searched
        found = search(bracket, look, probes)
        # then the neighbours are found, in O(log n)
        assert (found.sound, found.bad) == (bad - 1, bad)
        assert look.rounds <= most_rounds(bracket, probes)
    assert (probes + 1) ** (most_rounds(bracket, probes) - 1) <= 200


def test_a_step_that_nobody_has_seen_is_looked_at_in_the_first_round() -> None:
    # given two recordings of which nothing disagrees, in a training of 100 steps
    bracket = bracket_of(Judged(sound=(0, 1)), trained=100)
    assert bracket is not None
    assert not bracket.is_shown
    # when there is a fault, and when there is none
    found = search(bracket, judged_by(lambda step: step >= 57), PROBES)
    look = judged_by(lambda step: False)
    nothing = search(bracket, look, PROBES)
    # then it is found, and else one round tells that nothing is
    assert (found.sound, found.bad) == (56, 57)
    assert (nothing.sound, nothing.bad, look.rounds) == (99, 99, 1)


def test_steps_that_cannot_be_judged_are_left_out_and_named() -> None:
    look = judged_by(lambda step: step >= 57, frozenset(range(50, 57)))
    found = search(Bracket(0, 100, is_shown=True), look, PROBES)
    assert (found.sound, found.bad) == (49, 57)
    assert found.between == tuple(range(50, 57))


def test_there_is_nothing_to_search_where_no_step_agrees_or_no_step_is_left() -> None:
    assert bracket_of(Judged(untold=(0, 1)), trained=100) is None
    assert bracket_of(Judged(sound=(0, 1)), trained=2) is None
    assert bracket_of(Judged(sound=(0, 1)), trained=None) is None
    found = bracket_of(Judged(bad=0), trained=100)
    assert found is not None
    assert most_rounds(found, PROBES) == 0


# --- trainings --------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As if the search were killed."""


@dataclass
class Loop:
    """A plain loop; from step `late` on something of it is different."""

    late: int = STEPS
    forward: Callable[[Tensor], Tensor] = torch.relu
    begins: Callable[[torch.optim.Optimizer], object] = lambda optimizer: None
    emulate: str = ""
    logs: bool = False
    name: str = "a loop"
    killed_in: int = 0
    recorded: list[Path] = field(default_factory=list)

    def train(self) -> None:
        torch.manual_seed(3)
        model = nn.ModuleList([nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1)])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(STEPS):
            inputs = torch.randn(8, 8)
            if step == self.late:
                self.begins(optimizer)
            hidden = model[0](inputs)
            hidden = self.forward(hidden) if step >= self.late else torch.relu(hidden)
            loss = (model[2](model[1](hidden)) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def record(self, directory: Path, windows: Windows, source: Path | None, hear: Any) -> None:
        self.recorded.append(directory)
        starts = [int(step) for step in windows.starts.split(",")]
        steps = ",".join(f"{step}:{step + 1}" for step in starts)
        how: dict[str, Any] = {"windows": steps} if source is None else {"start_from": source}
        with lockstep.record(
            directory, emulate=self.emulate, step_log=self.logs, force=True, **how
        ):
            self.train()
            if len(self.recorded) == self.killed_in:
                raise Killed


@dataclass
class Search:
    """Two loops, their recordings, and what the search says."""

    folder: Path
    candidate: Loop
    reference: Loop = field(default_factory=Loop)
    windows: str = "0:1,26:27"
    said: list[str] = field(default_factory=list)

    def given(self) -> tuple[Path, Path]:
        """Record both."""
        paths = (self.folder / "ref", self.folder / "cand")
        how: dict[str, Any] = {"step_log": self.candidate.logs}
        with lockstep.record(paths[0], **({"windows": self.windows} | how)):
            self.reference.train()
        with lockstep.record(paths[1], start_from=paths[0], emulate="reorder", **how):
            self.candidate.train()
        return paths

    def run(self, given: tuple[Path, Path], output: str = "zoom") -> Zoomed:
        return zoomed_in(
            given, lambda: (self.reference, self.candidate), self.folder / output, PROBES,
            compare=compared, hear=unheard, say=self.said.append,
        )  # fmt: skip


def compared(reference: Path, candidate: Path) -> Comparison:
    return compare_recordings(reference, candidate, rerun=False)


def candidate(**how: Any) -> Loop:
    return Loop(emulate="reorder", **how)


def test_the_first_bad_step_is_found_and_a_killed_search_goes_on(tmp_path: Path) -> None:
    # given a fault from a drawn step on, and two windows around it
    searched = Search(tmp_path, candidate(late=LATE, forward=lambda x: torch.relu(x) * 1.01))
    given = searched.given()

    # when the search is killed in its second run, while it writes its journal
    searched.candidate.killed_in = 1
    with pytest.raises(Killed):
        searched.run(given)
    journal = tmp_path / "zoom" / NAME
    journal.write_text(journal.read_text() + '{"recorded": "rou')
    found = searched.run(given)

    # then it goes on there, ends at that step, and the pair that stays names the operator
    assert found.bracket is not None
    assert (found.bracket.sound, found.bracket.bad) == (LATE - 1, LATE)
    assert (found.comparison.verdict, found.comparison.exit_code()) == (Verdict.DIVERGED, 1)
    origin = found.comparison.origins[0]
    assert (origin.step, origin.op) == (LATE, "torch.Tensor.mul")
    assert [path.name for path in searched.reference.recorded] == ["reference"] * found.rounds
    assert len(searched.candidate.recorded) == found.rounds + 1
    assert found.rounds <= 3
    assert [one.name for one in (tmp_path / "zoom").iterdir() if one.is_dir()] == [
        found.reference.parent.name
    ]
    # and its cost was said before
    assert "after step 0, at step 26 at the latest" in searched.said[0]
    assert "at most 3 rounds" in searched.said[1]
    assert "6 runs and 162 steps" in searched.said[1]
    assert f"The first bad step is {LATE}; step {LATE - 1} agrees" in result(found)
    assert as_values(found)["zoom"]["bad"] == LATE

    # and once more it runs nothing
    runs = len(searched.candidate.recorded)
    assert searched.run(given).bracket == found.bracket
    assert len(searched.candidate.recorded) == runs


def test_a_sound_training_ends_with_nothing_found(tmp_path: Path) -> None:
    # given the same training without a fault
    searched = Search(tmp_path, candidate(), windows="0:1,12:13")
    # when it is searched, from the last window that agrees to the end
    found = searched.run(searched.given())
    # then one round tells that nothing is there
    assert found.comparison.exit_code() == 0
    assert result(found) == f"Nothing found: each compared step agrees, the last one is {STEPS - 1}"
    assert (found.rounds, as_values(found)["zoom"]["bad"]) == (1, None)


def test_what_was_lost_at_one_step_is_found_though_later_windows_agree(tmp_path: Path) -> None:
    # given an optimizer that loses its state once
    searched = Search(tmp_path, candidate(late=LATE, begins=lambda one: one.state.clear()))
    found = searched.run(searched.given())
    assert found.bracket is not None
    assert (found.bracket.sound, found.bracket.bad) == (LATE - 1, LATE)
    assert found.comparison.verdict is Verdict.DIVERGED


def test_the_step_log_names_the_step_and_one_round_shows_it(tmp_path: Path) -> None:
    # given a rate that changes, a single window at the start, and the step logs
    changed = candidate(
        late=LATE, begins=lambda one: one.param_groups[0].update(lr=3e-2), logs=True
    )
    searched = Search(tmp_path, changed, Loop(logs=True), windows="0:1")
    found = searched.run(searched.given())
    # then the step before and that step are the first to be looked at
    assert found.bracket is not None
    assert (found.bracket.sound, found.bracket.bad, found.rounds) == (LATE - 1, LATE, 1)
    assert "lr" in str(found.comparison.origins[0].reason)


@dataclass
class Averaging(Loop):
    """A loop that keeps a mean of its weights; from step `late` on the mean takes another share of them."""

    def train(self) -> None:
        torch.manual_seed(3)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
        mean = [one.detach().clone() for one in model.parameters()]
        for step in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 8)).square().mean().backward()
            optimizer.step()
            share = 0.2 if step >= self.late else 0.1
            with torch.no_grad():
                for one, now in zip(mean, model.parameters(), strict=True):
                    one.lerp_(now, share)

    def record(self, directory: Path, windows: Windows, source: Path | None, hear: Any) -> None:
        self.recorded.append(directory)
        how: dict[str, Any] = (
            {"windows": windows.steps} if source is None else {"start_from": source}
        )
        with lockstep.record(directory, emulate=self.emulate, force=True, **how):
            self.train()


def test_a_mean_that_is_wrong_from_the_last_step_of_a_window_on_is_not_taken_for_sound_there(
    tmp_path: Path,
) -> None:
    # given a window whose last step begins the fault, which is measured as the next step begins
    windows = f"0:2,{LATE - 1}:{LATE + 1},{LATE + 1}:{LATE + 3}"
    searched = Search(
        tmp_path, Averaging(late=LATE, emulate="reorder"), Averaging(), windows=windows
    )
    # when it is searched
    found = searched.run(searched.given())
    # then that step is the first bad one
    assert found.bracket is not None
    assert (found.bracket.sound, found.bracket.bad) == (LATE - 1, LATE)
    assert "what Averaging.train.mean takes of the new weights" in str(
        [one.left for one in found.comparison.windows]
    )


# --- wrong requests ---------------------------------------------------------------------------------------------------


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    searched = Search(tmp_path, candidate(late=LATE, forward=torch.tanh))
    given = searched.given()
    for name, text, error in (
        ("full", None, OutputExistsError),
        ("broken", "no journal\n", CorruptError),
        ("other", '{"subject": ["another"]}\n', OutputExistsError),
        ("odd", '{"subject": []}\n{"steps": 1}\n', CorruptError),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / (NAME if text else "file")).write_text(text or "")
        with pytest.raises(error, match="-o"):
            searched.run(given, name)
    assert searched.candidate.recorded == []


@pytest.mark.parametrize("words", [[], ["[redacted]"], ["python", "train.py", "--token", "***"]])
def test_a_training_whose_command_was_not_kept_is_refused(words: list[str]) -> None:
    manifest = RunManifest(1, "", "", words, "", Options(), exit_code=0)
    recording: Any = type("Recording", (), {"manifest": manifest, "path": "ref", "ranks": {}})
    with pytest.raises(UsageError, match="does not hold the training's whole command"):
        Training.of(recording)
    assert Training.of(recording, ["python", "train.py"]).command == ("python", "train.py")
