"""The main job, end to end through the real command line: every planted fault is named, every sound twin is silent.

Each case is two subprocesses: `lockstep record` of an example, `lockstep compare` of its recording with the reference.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
Record = Callable[..., Path]


@pytest.fixture(scope="session")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Record an example once per set of flags; returns the recording."""
    made: dict[tuple[str, ...], Path] = {}

    def run(example: str, *flags: str, copy: str = "", save: str = "sketch") -> Path:
        key = (example, copy, save, *flags)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("recordings") / "recording"
            script = str(EXAMPLES / f"{example}.py")
            lockstep(
                "record",
                "-o",
                str(made[key]),
                "--save",
                save,
                "--",
                sys.executable,
                script,
                "--steps",
                "2",
                *flags,
            )
        return made[key]

    return run


def lockstep(*arguments: str, expect: int = 0) -> str:
    """Run the command line; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def compared(reference: Path, candidate: Path, *, expect: int) -> dict[str, Any]:
    """Compare two recordings as JSON."""
    result: dict[str, Any] = json.loads(
        lockstep("compare", str(reference), str(candidate), "--json", expect=expect)
    )
    return result


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


@pytest.mark.parametrize(
    ("example", "fault", "expected"), FAULTS, ids=[f"{item[0]}-{item[1]}" for item in FAULTS]
)
def test_planted_fault_is_named(
    record: Record, example: str, fault: str, expected: dict[str, str]
) -> None:
    # given a reference and a candidate with one planted fault
    reference, candidate = record(example), record(example, "--fault", fault)
    # when they are compared
    result = compared(reference, candidate, expect=1)
    # then the first origin is the planted place
    assert result["verdict"] == "diverged"
    assert {key: result["origin"][key] for key in expected} == expected
    assert result["origin"]["step"] == 0


@pytest.mark.parametrize("example", ["digits_lstm", "gpt2", "resnet"])
@pytest.mark.parametrize("fault", ["forward", "backward"])
def test_both_directions_name_the_same_origin(record: Record, example: str, fault: str) -> None:
    # given a faulty pair
    reference, candidate = record(example), record(example, "--fault", fault)
    # when it is compared both ways
    forth, back = compared(reference, candidate, expect=1), compared(candidate, reference, expect=1)
    # then the origin is the same
    keys = ("step", "phase", "module", "call", "role")
    assert [forth["origin"][key] for key in keys] == [back["origin"][key] for key in keys]


@pytest.mark.parametrize("example", ["digits_lstm", "gpt2", "resnet"])
@pytest.mark.parametrize(
    "flags",
    [(), ("--threads", "2"), ("--no-onednn",)],
    ids=["same-again", "two-threads", "onednn-off"],
)
def test_sound_twin_is_silent(record: Record, example: str, flags: tuple[str, ...]) -> None:
    # given a reference and a sound candidate
    reference, candidate = record(example), record(example, *flags, copy="twin")
    # when they are compared
    result = compared(reference, candidate, expect=0)
    # then nothing is blamed
    assert result["verdict"] == "agree"
    assert result["origin"] is None
    assert result["origins"] == []
    assert result["compared"] > 100


@pytest.mark.parametrize("example", ["digits_lstm", "gpt2", "resnet"])
def test_same_run_twice_agrees_bit_by_bit(record: Record, example: str) -> None:
    # given two recordings of the same deterministic run
    reference, candidate = record(example), record(example, copy="twin")
    # when their tensors are held against each other
    from lockstep import open as open_recording

    left, right = (list(open_recording(path).records()) for path in (reference, candidate))
    # then every digest is equal
    assert [item.digest for item in left] == [item.digest for item in right]
