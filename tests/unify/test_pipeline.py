"""Ranks that each hold a stage of the model, compared with one rank that holds all of it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from made_ranks import made
from two_ranks import run_two_ranks

from lockstep import compare_recordings
from lockstep.core.finding import Comparison, Course, Verdict
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.site import CallKind, Phase, Role

SCRIPT = Path(__file__).with_name("pipelined.py")
SOUND = ("gpt+gpipe", "gpt+1f1b", "gpt+gpipe+list", "llama+gpipe", "llama+1f1b+list")
FAULTS = {
    # what was received, or sent back, is not what was sent
    "gpt+1f1b+corrupt": "forward  torch.Tensor.__setitem__",
    "gpt+gpipe+scaled-back": "backward blocks.1",
    "gpt+gpipe+scaled-loss": "forward  loss",
    # gradients are not divided by the number of micro-batches
    "gpt+1f1b+unscaled": "backward .* param_grad",
    # a stage with the blocks of the other one
    "gpt+gpipe+same-blocks": "init blocks.2",
    "gpt+gpipe+scaled-hidden": "forward  torch.Tensor.mul",
    "gpt+gpipe+list+epsilon": "forward norm",
    "gpt+1f1b+rate": "optimizer blocks.2",
    "gpt+gpipe+targets": "data",
}
WEIGHTS = np.arange(1, 5, dtype="f4")
ROWS = np.arange(12, dtype="f4").reshape(4, 3)


def _tensor(role: Role, name: str, value: np.ndarray) -> ReadTensor:
    return ReadTensor(role, name, value)


def _stage(
    own: list[int], parts: int, *, paths: dict[int, str] | None = None, slip: str = ""
) -> list[ReadCall]:
    """A stage of a model that multiplies its rows by a weight of each layer, and takes its mean as loss."""
    names = {layer: (paths or {}).get(layer, f"layers.{layer}") for layer in own}
    calls = [
        ReadCall(0, names[layer], "Layer", [_tensor(Role.PARAM, f"{names[layer]}.weight", WEIGHTS[layer : layer + 1])],
                 kind=CallKind.INIT, phase=Phase.INIT)
        for layer in own
    ]  # fmt: skip
    for number, rows in enumerate(np.split(ROWS, parts)):
        hidden = rows * np.prod(WEIGHTS[: own[0]])
        if slip == "received" and number and own[0]:
            hidden = hidden * np.float32(1.01)
        top = len(calls) + 1
        inside = []
        for layer in own:
            given, hidden = hidden, hidden * WEIGHTS[layer]
            tensors = [_tensor(Role.INPUT, "args.0", given), _tensor(Role.OUTPUT, "result", hidden)]
            inside.append(
                ReadCall(0, names[layer], "Layer", tensors, kind=CallKind.MODULE, parent=top)
            )
        if own[-1] != 3:  # as a cut model has an identity where the whole has its last norm
            same = [_tensor(Role.INPUT, "args.0", hidden), _tensor(Role.OUTPUT, "result", hidden)]
            inside.append(
                ReadCall(0, "layers.3", "Identity", same, kind=CallKind.MODULE, parent=top)
            )
        given = inside[0].tensors[0]
        batch = _tensor(Role.OUTPUT, "args.0 of Model", given.value)
        ends = [given, inside[-1].tensors[-1]]
        calls += [
            ReadCall(0, "", "batch", [batch], kind=CallKind.DATA, phase=Phase.DATA),
            ReadCall(0, "", "Model", ends, kind=CallKind.MODULE),
            *inside,
        ]
        if own[-1] == 3:
            loss = np.float32(hidden.mean() * (1.01 if slip == "loss" else 1))
            calls.append(
                ReadCall(0, "", "loss", [_tensor(Role.LOSS, "loss", loss)], kind=CallKind.LOSS)
            )
    return calls


def _made(
    folder: Path, *, paths: dict[int, str] | None = None, slip: str = "", turned: bool = False
) -> Comparison:
    one = made(folder / "one", _stage([0, 1, 2, 3], 1))
    stages = _stage([0, 1], 2), _stage([2, 3], 2, paths=paths, slip=slip)
    sides = [one, made(folder / "many", *stages)]
    return compare_recordings(*(reversed(sides) if turned else sides))


@pytest.mark.parametrize(
    ("paths", "turned"), [(None, True), ({2: "layers.0", 3: "layers.1"}, False)]
)
def test_stages_find_their_place_by_name_or_by_their_parameters(
    tmp_path: Path, paths: dict[int, str] | None, turned: bool
) -> None:
    # given two stages of four layers, of which the second may count its own from 0
    found = _made(tmp_path, paths=paths, turned=turned)

    # then every tensor of one rank has its partner: batch, ends of the model, layers, the mean of the losses
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    assert (found.unaligned_reference, found.unaligned_candidate) == (0, 0)
    assert len(found.findings) == 4 + 1 + 2 + 8 + 1


@pytest.mark.parametrize(
    ("slip", "op", "note"),
    [("received", "Model", "1 of them did not arrive as they were sent"), ("loss", "loss", "")],
)
def test_what_a_stage_does_wrong_is_named(tmp_path: Path, slip: str, op: str, note: str) -> None:
    # given a stage that gets, in one micro-batch, what was not sent, or whose loss is off
    found = _made(tmp_path, paths={2: "layers.0", 3: "layers.1"}, slip=slip)

    # then it is named, and so is the stage that received it
    assert (found.verdict, found.origins[0].op) == (Verdict.DIVERGED, op)
    assert note in " ".join(found.notes)


# --- whole trainings


@pytest.mark.exhaustive
def test_pipelines_agree_and_slips_in_them_are_named(programs: Path, tmp_path: Path) -> None:
    alone = [str(programs / "python"), str(SCRIPT), str(tmp_path / "one"), "gpt", "llama"]
    subprocess.run(alone, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    run_two_ranks(programs, SCRIPT, str(tmp_path / "many"), *SOUND, *FAULTS)
    for name in SOUND:
        found = compare_recordings(
            tmp_path / "one" / name.partition("+")[0], tmp_path / "many" / name
        )
        assert (found.verdict, found.not_compared) == (Verdict.AGREE, ()), name
        assert found.unaligned_reference == 0
        assert found.ends is not None
        assert found.ends.course is Course.NOISE
    for name, place in FAULTS.items():
        found = compare_recordings(
            tmp_path / "one" / name.partition("+")[0], tmp_path / "many" / name
        )
        assert found.verdict is Verdict.DIVERGED, name
        first = found.origins[0]
        found_at = f"{first.phase.value} {first.module} {first.op} {first.role.value}"
        assert re.match(place, found_at), name
