"""Goldens on disk: made with a reason, never replaced silently, chosen by the machine, said what is wrong with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from lockstep.commands.record_again import record_again
from lockstep.core.errors import ExitCode, LockstepError, RecordingError, UsageError, VersionError
from lockstep.core.manifest import Options
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import Alteration, MadeTraining
from lockstep_gate.gating import Gated, Update, gate_training
from lockstep_gate.golden import HISTORY, open_golden
from lockstep_gate.nearest import Machine, differing_words, nearest


@dataclass
class Made:
    """A training in NumPy, recorded without a process; `alter` plants a fault."""

    alter: dict[str, Alteration] = field(default_factory=dict)
    failed: str = ""
    recorded: list[Options] = field(default_factory=list)

    def record(self, directory: Path, options: Options) -> str:
        self.recorded.append(options)
        shutil.rmtree(directory, ignore_errors=True)
        write_recording(directory, MadeTraining(steps=2, alter=self.alter))
        return self.failed


FAULT = {"relu": lambda value: value * np.float32(1.01)}

Gate = Callable[..., Gated]


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    def run(training: Made, update: Update | None = None, *, allow_crash: bool = False) -> Gated:
        golden, candidate = open_golden(tmp_path / "golden"), tmp_path / "candidate"
        return gate_training(golden, training, candidate, update=update, allow_crash=allow_crash)

    return run


FIRST = Update("first", calibrates=False)


def test_a_golden_is_made_with_its_reason_and_a_sound_training_agrees_with_it(
    gate: Gate, tmp_path: Path
) -> None:
    # given
    made = gate(Made(), FIRST)

    # when
    again = gate(Made())

    # then
    assert (made.exit_code, again.exit_code) == (ExitCode.AGREES, ExitCode.AGREES)
    (variant,) = open_golden(tmp_path / "golden").variants
    assert [(one.because, one.verdict) for one in variant.history] == [("first", "new")]
    assert variant.name == made.updated == again.variant


def test_what_is_recorded_again_lies_beside_the_golden_not_in_it(
    gate: Gate, tmp_path: Path
) -> None:
    gate(Made(), FIRST)
    (variant,) = open_golden(tmp_path / "golden").variants

    assert record_again(variant.recording, steps="0").path == tmp_path / "golden-whole"


def test_a_fault_differs_and_replaces_no_golden_but_by_force(gate: Gate, tmp_path: Path) -> None:
    # given
    gate(Made(), FIRST)

    # when
    faulty = gate(Made(FAULT))
    refused = gate(Made(FAULT), Update("it is faster", calibrates=False))
    still = gate(Made())
    forced = gate(Made(FAULT), Update("it is faster", force=True, calibrates=False))

    # then
    assert faulty.exit_code == refused.exit_code == ExitCode.DIFFERS
    assert "relu" in faulty.headline
    assert "fault" in refused.refused
    assert still.exit_code == ExitCode.AGREES
    assert forced.exit_code == gate(Made(FAULT)).exit_code == ExitCode.AGREES
    first, second = open_golden(tmp_path / "golden").variants[0].history
    assert (second.because, second.verdict, second.forced) == ("it is faster", "diverged", True)
    assert not first.forced
    assert "relu" in second.headline


def test_calibrating_records_the_training_once_more_with_rounding(
    gate: Gate, tmp_path: Path
) -> None:
    training = Made()

    gate(training, Update("first"))

    assert [one.calibrate for one in training.recorded] == [False, True]
    assert open_golden(tmp_path / "golden").variants[0].calibration is not None


def test_no_golden_is_made_of_a_training_that_failed(gate: Gate, tmp_path: Path) -> None:
    gated = gate(Made(failed="the command ended with exit code 3"), FIRST)

    assert gated.exit_code == ExitCode.FAILED
    assert "exit code 3" in gated.refused
    assert open_golden(tmp_path / "golden").variants == ()


def test_a_failed_training_is_no_agreement(gate: Gate) -> None:
    gate(Made(), FIRST)

    failing = Made(failed="the command ended with exit code 3")
    gated = gate(failing)

    assert gated.exit_code == ExitCode.FAILED
    assert gate(failing, allow_crash=True).exit_code == ExitCode.AGREES
    faulty = Made(FAULT, failed=failing.failed)
    assert gate(faulty, allow_crash=True).exit_code == ExitCode.DIFFERS


def test_a_golden_stays_where_calibrating_its_successor_fails(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    gate(Made(), FIRST)
    before = sorted(one.read_bytes() for one in (tmp_path / "golden").rglob("*") if one.is_file())

    class Ends(Made):
        def record(self, directory: Path, options: Options) -> str:
            return super().record(directory, options) or ("killed" if options.calibrate else "")

    # when
    with pytest.raises(RecordingError, match="the golden stays"):
        gate(Ends(), Update("again"))

    # then
    after = sorted(one.read_bytes() for one in (tmp_path / "golden").rglob("*") if one.is_file())
    assert before == after
    assert not [one for one in (tmp_path / "golden").iterdir() if one.name.startswith(".cpu")]


def test_without_a_golden_or_of_a_plain_recording_what_to_do_is_said(
    gate: Gate, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="there is no golden; make one with --update"):
        gate(Made())

    write_recording(tmp_path / "golden", MadeTraining(steps=2))
    assert gate(Made()).exit_code == ExitCode.AGREES
    assert gate(Made(FAULT)).exit_code == ExitCode.DIFFERS
    with pytest.raises(UsageError, match="keeps no history"):
        gate(Made(), FIRST)


def _history(golden: Path) -> Path:
    (file,) = golden.rglob(HISTORY)
    return file


def _newer(golden: Path) -> None:
    _history(golden).write_text(json.dumps({"schema": 99, "history": []}))


def _cut(golden: Path) -> None:
    file = _history(golden)
    file.write_text(file.read_text()[:40])


def _without_history(golden: Path) -> None:
    _history(golden).unlink()


def _other_types(golden: Path) -> None:
    _history(golden).write_text('{"schema": 1, "history": [{"because": 4}]}')


def _damaged_recording(golden: Path) -> None:
    file = next(golden.rglob("recording/manifest.json"))
    file.write_text(file.read_text()[:100])


def _foreign(golden: Path) -> None:
    shutil.rmtree(golden)
    golden.mkdir()
    (golden / "notes.txt").write_text("no golden")


def _file(golden: Path) -> None:
    shutil.rmtree(golden)
    golden.write_text("no golden")


@pytest.mark.parametrize(
    ("harm", "kind"),
    [
        (_newer, VersionError),
        (_cut, LockstepError),
        (_without_history, RecordingError),
        (_other_types, RecordingError),
        (_damaged_recording, RecordingError),
        (_foreign, RecordingError),
        (_file, RecordingError),
    ],
)
def test_a_golden_that_is_damaged_is_said_in_one_sentence(
    gate: Gate, tmp_path: Path, harm: Callable[[Path], None], kind: type[LockstepError]
) -> None:
    gate(Made(), FIRST)
    harm(tmp_path / "golden")

    with pytest.raises(kind) as raised:
        gate(Made())

    assert "golden" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_steps_that_the_golden_does_not_hold_are_refused(tmp_path: Path) -> None:
    gate_training(open_golden(tmp_path / "g"), Made(), tmp_path / "c", update=FIRST)

    with pytest.raises(UsageError, match=r"--steps 0:9: the golden holds 0:2"):
        gate_training(open_golden(tmp_path / "g"), Made(), tmp_path / "c", steps="0:9")


HERE = Machine(("cpu",), "2.13.0", "x86_64", 1)


@pytest.mark.parametrize(
    ("goldens", "chosen"),
    [
        ([Machine(("cpu",), "2.12.1", "x86_64", 1), Machine(("cpu", "cuda A"), "2.13.0", "x86_64", 1)], 0),
        ([Machine(("cpu",), "2.9.0", "x86_64", 1), Machine(("cpu",), "2.12.0", "aarch64", 1)], 1),
        ([Machine(("cpu",), "2.14.0", "x86_64", 1), Machine(("cpu",), "2.12.0", "x86_64", 1)], 1),
        ([Machine(("cpu",), "2.13.0", "x86_64", 2), Machine(("cpu",), "1.8.0", "x86_64", 1)], 1),
        ([Machine(("cpu",), "2.13.0", "x86_64", 1), Machine(("cpu",), "2.13.0", "aarch64", 1)], 0),
    ],
)  # fmt: skip
def test_the_golden_of_the_nearest_machine_is_chosen(
    goldens: list[Machine], chosen: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given variants of which each stands for a machine
    from lockstep_gate import nearest as module

    monkeypatch.setattr(module, "machine_of", lambda machine: machine)
    variants = [module.Variant(f"v{number}", one) for number, one in enumerate(goldens)]  # type: ignore[arg-type]

    # when
    found = nearest(variants, HERE)

    # then
    assert found.name == f"v{chosen}"


def test_what_is_other_about_the_golden_is_said_in_words() -> None:
    golden = Machine(("cpu", "cuda NVIDIA H100"), "2.12.1", "x86_64", 1)

    words = differing_words(golden, HERE)

    assert (
        words
        == "device cpu+cuda NVIDIA H100 there and cpu here, torch 2.12.1 there and 2.13.0 here"
    )
    assert golden.name == "cpu-cuda-NVIDIA-H100-x86-64-torch2.12.1"
    assert differing_words(HERE, HERE) == ""


def test_each_machine_s_golden_may_hold_other_steps(gate: Gate, tmp_path: Path) -> None:
    # given a golden of this machine, and one of another that comes first by name and holds fewer steps
    training = Made()
    gate(training, FIRST)
    (own,) = (one for one in (tmp_path / "golden").iterdir() if one.is_dir())
    other = shutil.copytree(own, own.with_name("aaa"))
    for file in other.rglob("manifest.json"):
        manifest = json.loads(file.read_text())
        manifest |= {"options": {**manifest.get("options", {}), "steps": "0:1"}}
        manifest |= {"platform": {"machine": "another"}}
        file.write_text(json.dumps(manifest))
    training.recorded.clear()

    # when
    gated = gate(training)

    # then this machine's is what the training is recorded like, and held against
    assert [one.steps for one in training.recorded] == ["0:1", "0:2"]
    assert gated.variant == own.name
    assert gated.exit_code is ExitCode.AGREES
