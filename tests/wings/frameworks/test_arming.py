"""Processes that import a framework other than PyTorch, and what they are told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.capture.command.environment import environment_for
from lockstep.core.manifest import Options
from lockstep.plugins import frameworks
from lockstep.wings.frameworks.recording import not_possible

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


def test_a_process_that_imports_none_loads_nothing_for_it(tmp_path: Path) -> None:
    code = "import json, sys; print(any('made_up' in name for name in sys.modules))"
    assert ran(tmp_path, code) == ["False"]


def test_frameworks_are_known_by_their_root_modules() -> None:
    known = {one.name: one.module for one in frameworks()}
    assert known == {"TensorFlow": "tensorflow", "MindSpore": "mindspore"}


def test_options_that_take_pytorch_are_refused_rather_than_passed_over() -> None:
    asked = Options(redact=True, emulate="npu-fp16", level="aten", steps="0:9", seed=3)
    assert not_possible(asked) == ["--emulate", "--redact", "--level aten"]
    assert not_possible(Options(compile_eager=True, save="tensors", only=["c1"])) == []


def test_a_release_that_is_too_old_is_said_in_a_sentence_and_the_training_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "tensorflow.py").write_text('__version__ = "2.3.1"')
    environment = environment_for(
        tmp_path, Options(), {"tensorflow": "lockstep.wings.frameworks.tensorflow.arming"}
    )
    done = subprocess.run(
        [sys.executable, "-c", "import tensorflow; print('trained')"], env=environment, cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "trained\n"
    assert "it is 2.3.1, and 2.16 is the oldest release" in done.stderr
    assert "install tensorflow>=2.16" in done.stderr
