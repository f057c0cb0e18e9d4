"""The search of `tune`: what is kept, what is rejected and why, and from an interrupted one on."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from lockstep.core.errors import CorruptError, OutputExistsError
from lockstep_tune.choosing import left_out, named_first, worth_trying
from lockstep_tune.journal import Journal
from lockstep_tune.paired_times import speedup, student_quantile
from lockstep_tune.settings import KNOBS, OwnKnob, Settings
from lockstep_tune.tune_screen import Answer, headline, noise_words
from lockstep_tune.tuned_run import NoPlaceError, RunFailedError, TimedRun, Use
from lockstep_tune.tuning import Numbers, Search, Tuned, Verdict, candidates


class _Trainings:
    """A training of which each knob changes the time by a factor; runs vary by a percent, or as told."""

    def __init__(
        self, factors: Mapping[str, float], wrong: Sequence[str] = (), spread: float = 0.01
    ) -> None:
        self.factors, self.wrong = factors, wrong
        self.runs = self.judged = 0
        self._noise: Iterator[float] = itertools.cycle([0.0, spread, -spread, 0.0, -spread])

    def step_s(self, settings: Settings) -> float:
        self.runs += 1
        names = [*settings.knobs, *(one.name for one in settings.own)]
        if any(math.isnan(self.factors[one]) for one in names):
            raise RunFailedError("the command ended with exit code 1")
        return math.prod(self.factors[one] for one in names) * (1.0 + next(self._noise))

    def numbers(self, settings: Settings) -> Numbers:
        self.judged += 1
        is_wrong = any(one.name in self.wrong for one in settings.own)
        return Numbers(not is_wrong, "DIVERGED" if is_wrong else "AGREE")


_OWN = (OwnKnob("cheats", {"A": "1"}), OwnKnob("honest", {"B": "1"}))


def _search(trainings: _Trainings, file: Path | None = None, until_s: float = math.inf) -> Tuned:
    search = Search(trainings, Journal(file, ["python"], "tune"), repeat=3, until_s=until_s)
    return search.run(candidates({"workers": [2, 1], "pin": [True]}, _OWN))


def _verdicts(found: Tuned) -> dict[str, Verdict]:
    return {one.name: one.verdict for one in found.tried}


def test_faster_knobs_are_kept_and_a_faster_one_with_other_numbers_never_is() -> None:
    trainings = _Trainings({"cheats": 0.2, "honest": 0.5, "workers": 0.8, "pin": 1.3}, ["cheats"])
    found = _search(trainings)
    assert _verdicts(found) == {
        "cheats": Verdict.NUMBERS, "honest": Verdict.KEPT, "workers=2": Verdict.KEPT,
        "pin=true": Verdict.SLOWER,
    }  # fmt: skip
    assert found.settings == Settings({"workers": 2}, _OWN[1:])
    assert found.speed is not None
    assert found.speed.low < 2.5 < found.speed.high
    # and what is slower was not recorded for nothing
    assert trainings.judged == 3


def test_a_gain_within_the_noise_is_not_kept() -> None:
    trainings = _Trainings({"cheats": 1.5, "honest": 1.5, "workers": 0.97, "pin": 1.5}, spread=0.3)
    found = _search(trainings)
    assert found.settings == Settings()
    assert Verdict.NOISY in _verdicts(found).values()
    assert found.speed is None


def test_a_knob_under_which_the_command_fails_is_rejected_with_the_reason() -> None:
    factors = {"cheats": math.nan, "honest": 1.1, "workers": 1.1, "pin": 1.1}
    first = _search(_Trainings(factors)).tried[0]
    assert (first.verdict, first.words) == (
        Verdict.FAILED,
        "the command ended with exit code 1",
    )


def test_a_knob_without_a_place_in_the_training_is_said_not_to_be_tried() -> None:
    # given a training without a data loader
    class WithoutLoader(_Trainings):
        def step_s(self, settings: Settings) -> float:
            if "workers" in settings.knobs:
                raise NoPlaceError("the training has no DataLoader of torch")
            return super().step_s(settings)

    found = _search(WithoutLoader({"cheats": 1.5, "honest": 0.5, "pin": 1.5}))
    # then both values are left, with the reason, and the time is not blamed
    left = [one for one in found.tried if one.verdict is Verdict.LEFT]
    assert [one.name for one in left] == ["workers=2", "workers=1"]
    assert {one.words for one in left} == {"the training has no DataLoader of torch"}
    assert "time was used up" not in headline(Answer(found, _told(), "", ()))


def test_what_the_time_does_not_allow_is_said_to_be_left() -> None:
    trainings = _Trainings({"cheats": 0.1, "honest": 0.1, "workers": 0.1, "pin": 0.1})
    found = _search(trainings, until_s=-math.inf)
    assert set(_verdicts(found).values()) == {Verdict.LEFT}
    assert trainings.runs == 0
    assert headline(Answer(found, _told(), "", ())).startswith("NOT DONE: 0 knobs tried")


def test_no_run_begins_once_the_time_is_up_and_what_was_kept_is_said_to_be_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a clock on which each run takes a minute, and time for two knobs and a half
    now = 0.0
    monkeypatch.setattr("lockstep_tune.tuning.time.monotonic", lambda: now)

    class Slow(_Trainings):
        def step_s(self, settings: Settings) -> float:
            nonlocal now
            now += 60.0
            return super().step_s(settings)

    trainings = Slow({"cheats": 0.5, "honest": 0.5, "workers": 0.5, "pin": 0.5})
    found = _search(trainings, until_s=60.0 * 19)
    # then the third is left in the middle, without a run after the time, and nothing is timed as a whole
    assert [one.verdict for one in found.tried[:2]] == [Verdict.KEPT, Verdict.KEPT]
    assert {one.verdict for one in found.tried[2:]} == {Verdict.LEFT}
    assert now <= 60.0 * 21
    assert found.speed is None
    words = headline(Answer(found, _told(), "", ()))
    assert words.startswith("NOT TIMED TOGETHER: cheats, honest: each is faster")
    assert "before 3 knobs" in words


def test_what_profile_names_is_tried_first() -> None:
    optimizer = Use("AdamW", "optimizer", "a.py:2", {"foreach": None, "fused": None})
    model = Use("Net", "model", "a.py:2", {"compiled": False})
    values = worth_trying(_told(optimizer, model), accepts_precision=False)
    assert list(values) == ["threads", "affinity", "optimizer", "compile"]
    # when profile names a chain of operators and waits for a loader that the training has not
    found = named_first(values, ["compile", "workers", "compile", "optimizer"])
    assert list(found) == ["compile", "optimizer", "threads", "affinity"]
    assert found == values


def test_the_noise_of_the_machine_is_said() -> None:
    assert noise_words(0.02).endswith("differ by 2.0% in the time of a step")
    assert "cannot be told" in noise_words(0.4)


def test_an_interrupted_search_goes_on_from_its_log(tmp_path: Path) -> None:
    file = tmp_path / "tune.jsonl"
    factors = {"cheats": 0.2, "honest": 0.5, "workers": 0.8, "pin": 1.3}
    whole = _search(_Trainings(factors, ["cheats"]), file)
    # given the log as it was after two knobs, cut in the third
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:3]) + lines[3][:20])
    rest = _Trainings(factors, ["cheats"])
    found = _search(rest, file)
    # then the two are not run again, and the same is found
    assert _verdicts(found) == _verdicts(whole)
    assert found.settings == whole.settings
    assert rest.judged == 1


def test_a_log_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tune.jsonl"
    Journal(file, ["python", "a.py"], "tune")
    with pytest.raises(OutputExistsError, match="another search"):
        Journal(file, ["python", "b.py"], "tune")
    file.write_text(json.dumps({"subject": ["python"]}) + '\n{"verdict": "kept"}\n')
    with pytest.raises(CorruptError, match="no log of lockstep tune"):
        _search(_Trainings({}), file)


def test_the_quantiles_are_those_of_the_tables() -> None:
    tabled = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042}
    for degrees, value in tabled.items():
        assert student_quantile(0.95, degrees) == pytest.approx(value, abs=5e-4)


def test_what_slows_both_runs_of_a_pair_does_not_widen_the_interval() -> None:
    quiet = speedup([(2.0, 1.0), (2.02, 1.0), (1.98, 1.0)])
    loaded = speedup([(2.0, 1.0), (20.2, 10.0), (5.94, 3.0)])
    assert loaded.low == pytest.approx(quiet.low)
    assert quiet.low < 2.0 < quiet.high


def _told(*uses: Use, threads: int = 2, device: str = "cpu") -> TimedRun:
    return TimedRun(0.1, uses, threads, 2, device)


_LOADER = {"num_workers": 0, "prefetch_factor": None, "pin_memory": False, "batch_size": 8}


def test_only_what_a_training_has_a_place_for_is_tried() -> None:
    bare = worth_trying(_told(), accepts_precision=False)
    assert list(bare) == ["threads", "affinity"]
    # and each of the others is said not to be, with the reason
    left = left_out(_told(), accepts_precision=False)
    assert {*bare, *left} == set(KNOBS)
    assert (left["workers"], left["bucket"]) == (
        "no DataLoader of torch",
        "no DistributedDataParallel",
    )
    assert "--accept" in left["autocast"]
    loader = Use("DataLoader", "workers", "a.py:1", _LOADER)
    optimizer = Use("AdamW", "optimizer", "a.py:2", {"foreach": None, "fused": None})
    model = Use("Net", "model", "a.py:2", {"compiled": False})
    found = worth_trying(_told(loader, optimizer, model), accepts_precision=False)
    assert found["workers"] == [2, 1]
    assert found["optimizer"] == ["fused", "foreach"]
    assert found["compile"] == ["default"]
    assert "pin" not in found
    assert worth_trying(_told(loader, device="cuda"), accepts_precision=False)["pin"] == [True]


def test_what_a_training_has_already_is_not_tried_and_precision_only_where_it_is_accepted() -> None:
    loader = Use("DataLoader", "workers", "a.py:1", {**_LOADER, "num_workers": 4})
    optimizer = Use("AdamW", "optimizer", "a.py:2", {"foreach": None, "fused": True})
    model = Use("Net", "model", "a.py:2", {"compiled": True})
    found = worth_trying(_told(loader, optimizer, model), accepts_precision=True)
    assert set(found) == {"threads", "affinity", "prefetch", "autocast", "weights"}
    assert found["threads"] == [1]
    for name, values in found.items():
        assert all(KNOBS[name].takes(one) for one in values)
