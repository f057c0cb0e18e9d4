"""Processes that import a framework other than PyTorch, and what they are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.capture.process.environment import Reached, environment_for, take_traces
from lockstep.core.manifest import REWRITTEN, Options
from lockstep.core.site import CallKind, Phase, Role
from lockstep.hookspecs import Framework
from lockstep.launch import reasons
from lockstep.plugins import frameworks
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.recording import FrameworkRecording, not_possible

pytestmark = pytest.mark.cold

ARMING = 'def arm_from_environment():\n    print("armed")\n'


def ran(folder: Path, code: str) -> list[str]:
    """What a recorded Python prints; `made_up` is a framework that `made_up_arming` arms."""
    (folder / "made_up.py").write_text('print("imported")')
    (folder / "made_up_arming.py").write_text(ARMING)
    environment = environment_for(folder / "ref", Options(), {"made_up": "made_up_arming"})
    (folder / "ref").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_a_process_is_armed_after_it_has_imported_a_framework(tmp_path: Path) -> None:
    code = "import made_up, sys; print('torch' in sys.modules)"
    assert ran(tmp_path, code) == ["imported", "armed", "False"]


@pytest.mark.parametrize("module", ["recording", "mapping.propose", "plugin"])
def test_no_torch_is_loaded_by_what_runs_beside_another_framework(module: str) -> None:
    code = f"import sys, lockstep_frameworks.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_process_that_imports_none_loads_nothing_for_it(tmp_path: Path) -> None:
    code = "import json, sys; print(any('made_up' in name for name in sys.modules))"
    assert ran(tmp_path, code) == ["False"]


def test_a_framework_that_is_not_installed_is_said_to_be_missing_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may only look whether it is there, and go on."""
    look = "from importlib.util import find_spec; print(find_spec('not_there'), find_spec('not_there'))"
    environment = environment_for(tmp_path, Options(), {"not_there": "made_up_arming"})
    done = subprocess.run(
        [sys.executable, "-c", look], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("None None\n", "")
    traces = take_traces(tmp_path)
    assert (traces.reached, traces.detail) == (Reached.NOT_INSTALLED, "not_there")
    # then the extra of a framework that Lockstep records is named
    known = Framework("Made Up", "not_there", "made_up_arming", "lockstep-numerics[made-up]")
    monkeypatch.setattr(reasons, "frameworks", lambda: [known])
    nothing = SimpleNamespace(ranks={}, missing=())
    said = reasons.reason_for_nothing(nothing, traces, Options())  # type: ignore[arg-type]
    assert "asked for not_there, which is not installed" in said
    assert said.endswith("pip install 'lockstep-numerics[made-up]'")


def test_frameworks_are_known_by_their_root_modules() -> None:
    known = {one.name: (one.module, one.requirement) for one in frameworks()}
    assert known == {
        "TensorFlow": ("tensorflow", "lockstep-numerics[tensorflow]"),
        "MindSpore": ("mindspore", "lockstep-numerics[mindspore]"),
        "JAX": ("jax", "lockstep-numerics[jax]"),
    }


@pytest.mark.parametrize("sees_forward", [False, True])
def test_a_training_without_a_step_is_said_to_have_none_also_where_operators_ran(
    tmp_path: Path, *, sees_forward: bool
) -> None:
    recording = FrameworkRecording(tmp_path, Options(), {"made-up": "1"}, "Made Up")
    recording.without_step = "nothing updated parameters"
    if sees_forward:
        site = CodeSite(0, "", "made.up", CallKind.OPERATOR, Phase.FORWARD, {})
        recording.add(site, Role.OUTPUT, "result", np.float32(1))
    recording.note_gap(REWRITTEN, "it is recorded as it is written")
    recording.finish()
    traces = take_traces(tmp_path)
    assert traces.reached is Reached.FRAMEWORK
    assert traces.detail.startswith(
        "Made Up was imported, but nothing updated parameters; for other loops"
    )


def test_options_that_take_pytorch_are_refused_rather_than_passed_over() -> None:
    asked = Options(redact=True, emulate="npu-fp16", level="aten", steps="0:9", seed=3)
    assert not_possible(asked) == ["--emulate", "--redact", "--level aten"]
    assert not_possible(Options(compile_eager=True, save="tensors", only=["c1"])) == []


def test_a_release_that_is_too_old_is_said_in_a_sentence_and_the_training_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "tensorflow.py").write_text('__version__ = "2.3.1"')
    environment = environment_for(
        tmp_path, Options(), {"tensorflow": "lockstep_frameworks.tensorflow.arming"}
    )
    done = subprocess.run(
        [sys.executable, "-c", "import tensorflow; print('trained')"], env=environment, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "trained\n"
    assert "it is 2.3.1, and 2.16 is the oldest release" in done.stderr
    assert "install tensorflow>=2.16" in done.stderr
