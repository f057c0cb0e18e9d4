"""The main job on the examples: every planted fault is named, every sound twin is silent.

The trainings are recorded in this process; `test_the_command_line_says_the_same` is the whole way through processes.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

import lockstep
from lockstep.report.comparison.json import comparison_json

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 2


@cache
def recorded(example: str, *flags: str, copy: str = "") -> Path:
    """The recording of an example with its flags, made once; `copy` tells two of the same apart."""
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "recording"
    script = EXAMPLES / f"{example}.py"
    with (
        _as_a_process(script, "--steps", str(STEPS), *flags),
        lockstep.record(path, steps=f"0:{STEPS}"),
    ):
        runpy.run_path(str(script), run_name="__main__")
    return path


@contextmanager
def _as_a_process(script: Path, *flags: str) -> Iterator[None]:
    """Command line, import path and torch's switches are the script's own; what it prints or warns of is its affair."""
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    argv, path, modules = sys.argv, list(sys.path), set(sys.modules)
    sys.argv, sys.path[:] = [str(script), *flags], [str(script.parent), *path]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.argv, sys.path[:] = argv, path
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).parent == script.parent:
                del sys.modules[name]


def compared(reference: Path, candidate: Path) -> dict[str, Any]:
    """Compare two recordings as JSON."""
    return comparison_json(lockstep.compare_recordings(reference, candidate))


def command(programs: Path, *arguments: str, expect: int = 0) -> str:
    """Run the command line; returns what it printed."""
    done = subprocess.run(
        [programs / "lockstep", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


FAULTS = [
    ("digits_lstm", "data", {"phase": "data", "module": ""}),
    (
        "digits_lstm",
        "init",
        {"phase": "init", "module": "encoder.lstm", "tensor": "encoder.lstm.weight_hh_l0"},
    ),
    ("digits_lstm", "forward", {"phase": "forward", "module": "encoder.norm"}),
    (
        "digits_lstm",
        "backward",
        {"phase": "backward", "module": "encoder.lstm", "op": "torch.nn.LSTM"},
    ),
    ("digits_lstm", "optimizer", {"phase": "optimizer"}),
    ("digits_lstm", "learning-rate", {"phase": "optimizer"}),
    ("gpt2", "data", {"phase": "data", "module": ""}),
    (
        "gpt2",
        "init",
        {
            "phase": "init",
            "module": "transformer.h.0.attn.c_attn",
            "tensor": "transformer.h.0.attn.c_attn.weight",
        },
    ),
    ("gpt2", "forward", {"phase": "forward", "module": "transformer.h.1.mlp.act"}),
    ("gpt2", "backward", {"phase": "backward", "module": "transformer.h.1.ln_2"}),
    ("gpt2", "optimizer", {"phase": "optimizer"}),
    ("gpt2", "learning-rate", {"phase": "optimizer"}),
    ("resnet", "data", {"phase": "data", "module": ""}),
    (
        "resnet",
        "init",
        {"phase": "init", "tensor": "resnet.encoder.stages.1.layers.0.shortcut.convolution.weight"},
    ),
    (
        "resnet",
        "forward",
        {"phase": "forward", "module": "resnet.encoder.stages.0.layers.0.layer.0.convolution"},
    ),
    (
        "resnet",
        "backward",
        {"phase": "backward", "module": "resnet.encoder.stages.1.layers.0.layer.1.convolution"},
    ),
    ("resnet", "optimizer", {"phase": "optimizer"}),
    ("resnet", "learning-rate", {"phase": "optimizer"}),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("example", "fault", "expected"), FAULTS, ids=[f"{item[0]}-{item[1]}" for item in FAULTS]
)
def test_planted_fault_is_named(example: str, fault: str, expected: dict[str, str]) -> None:
    # given a reference and a candidate with one planted fault
    reference, candidate = recorded(example), recorded(example, "--fault", fault)
    # when they are compared
    result = compared(reference, candidate)
    # then the first origin is the planted place
    assert result["verdict"] == "diverged"
    assert {key: result["origin"][key] for key in expected} == expected
    assert result["origin"]["step"] == 0


@pytest.mark.sampled(5)
@pytest.mark.parametrize("example", ["digits_lstm", "gpt2", "resnet"])
@pytest.mark.parametrize("fault", ["forward", "backward"])
def test_both_directions_name_the_same_origin(example: str, fault: str) -> None:
    # given a faulty pair
    reference, candidate = recorded(example), recorded(example, "--fault", fault)
    # when it is compared both ways
    forth, back = compared(reference, candidate), compared(candidate, reference)
    # then the origin is the same
    keys = ("step", "phase", "module", "call", "role")
    assert [forth["origin"][key] for key in keys] == [back["origin"][key] for key in keys]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("example", ["digits_lstm", "gpt2", "resnet"])
@pytest.mark.parametrize(
    "flags",
    [(), ("--threads", "2"), ("--no-onednn",)],
    ids=["same-again", "two-threads", "onednn-off"],
)
def test_sound_twin_is_silent(example: str, flags: tuple[str, ...]) -> None:
    # given a reference and a sound candidate
    reference, candidate = recorded(example), recorded(example, *flags, copy="twin")
    # when they are compared
    result = compared(reference, candidate)
    # then nothing is blamed
    assert result["verdict"] == "agree"
    assert result["origin"] is None
    assert result["origins"] == []
    assert result["compared"] > 100


@pytest.mark.parametrize("example", ["digits_lstm", "gpt2", "resnet"])
def test_same_run_twice_agrees_bit_by_bit(example: str) -> None:
    # given two recordings of the same deterministic run
    reference, candidate = recorded(example), recorded(example, copy="twin")
    # when their tensors are held against each other
    left, right = (list(lockstep.open(path).records()) for path in (reference, candidate))
    # then every digest is equal
    assert [item.digest for item in left] == [item.digest for item in right]


def test_the_command_line_says_the_same(programs: Path, tmp_path: Path) -> None:
    # given an example and its faulty candidate, recorded by the command line
    script = str(EXAMPLES / "gpt2.py")
    for name, flags in (("reference", ()), ("candidate", ("--fault", "forward"))):
        target, steps = str(tmp_path / name), str(STEPS)
        command(
            programs,
            "record",
            "-o",
            target,
            "--",
            str(programs / "python"),
            script,
            "--steps",
            steps,
            *flags,
        )
    # when they are compared by it
    both = str(tmp_path / "reference"), str(tmp_path / "candidate")
    result = json.loads(command(programs, "compare", *both, "--json", expect=1))
    # then it says what is said of the recordings made in this process
    here = compared(recorded("gpt2"), recorded("gpt2", "--fault", "forward"))
    assert result["verdict"] == here["verdict"] == "diverged"
    keys = ("step", "phase", "module", "call", "role")
    assert [result["origin"][key] for key in keys] == [here["origin"][key] for key in keys]
    assert result["compared"] == here["compared"]
