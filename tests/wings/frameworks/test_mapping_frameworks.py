"""`lockstep map` and `compare --mapping` between PyTorch and trainings of other frameworks that were recorded once.

Their tensors are so small that their sketches hold every element, so the PyTorch side starts from their weights.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import lockstep
from lockstep.align.mapping import NameMapping
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.records import Content
from lockstep.core.site import CallKind, Role
from lockstep.report.comparison.verdict_words import headline
from lockstep.store.reader import RankRecording
from lockstep.wings.frameworks.mapping.command import map_

FIXTURES = Path(__file__).parents[2] / "fixtures"
KERAS, MINDSPORE = FIXTURES / "tensorflow" / "eager", FIXTURES / "mindspore" / "sound"
MISTAKES = ("sound", "slope", "epsilon", "hwio", "flatten")

TO_TORCH = NameMapping(
    parameters={
        "sequential.c1.kernel": "c1.weight",
        "sequential.c1.bias": "c1.bias",
        "sequential.head.kernel": "head.weight",
        "sequential.head.bias": "head.bias",
    },
    layouts={"sequential.c1.kernel": "HWIO -> OIHW", "sequential.head.kernel": "IO -> OI"},
)


def elements(content: Content) -> np.ndarray[Any, Any]:
    assert content.sketch is not None
    return content.sketch[: content.numel].reshape(content.shape).astype("f4")


def start_of(rank: RankRecording) -> dict[str, np.ndarray[Any, Any]]:
    """The initial parameters of a recording, without those of its normalisation, which begin alike everywhere."""
    calls = rank.calls(0, kind=CallKind.INIT)
    named = {record.name: record.content for call in calls for record in call.records}
    return {name: elements(one) for name, one in named.items() if "bn." not in name}


def twins(
    folder: Path, programs: Path, recorded: Path, given: dict[str, Any], side: str, *mistakes: str
) -> Path:
    """The PyTorch side of each mistake, and `mapping.yaml`, which `lockstep map` made of the sound one."""
    np.savez(folder / "weights.npz", **given)
    script = Path(__file__).with_name("torch_twin.py")
    command = [str(programs / "python"), str(script), str(folder), side, *mistakes]
    subprocess.run(command, check=True, capture_output=True)
    mapping = str(folder / "mapping.yaml")
    made = CliRunner().invoke(map_, [str(folder / "sound"), str(recorded), "-o", mapping])
    assert made.exception is None, made.output
    (folder / "said.txt").write_text(made.output)
    return folder


@pytest.fixture(scope="module")
def folder(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rank = lockstep.open(KERAS).ranks["rank0"]
    batch = next(iter(rank.calls(0, kind=CallKind.DATA))).records[0].content
    labels = next(call for call in rank.calls(0) if call.site.op == "tf.Cast").with_role(
        Role.OUTPUT
    )[0]
    given = {
        "batch": np.ascontiguousarray(elements(batch).transpose(0, 3, 1, 2)),
        "labels": elements(labels.content).astype("i8"),
        **lockstep.convert_weights(start_of(rank), TO_TORCH),
    }
    return twins(tmp_path_factory.mktemp("keras"), programs, KERAS, given, "keras", *MISTAKES)


def compared(folder: Path, mistake: str) -> Comparison:
    return lockstep.compare_recordings(folder / mistake, KERAS, mapping=folder / "mapping.yaml")


def test_names_and_layouts_are_proposed_with_their_confidence(folder: Path) -> None:
    text = (folder / "mapping.yaml").read_text()
    names = NameMapping.read(folder / "mapping.yaml")
    assert names.modules == {
        "": "sequential", "c1": "sequential.c1", "bn": "sequential.bn", "head": "sequential.head",
        "act": "sequential.act",
    }  # fmt: skip
    assert names.parameters["bn.weight"] == "sequential.bn.gamma"
    assert names.states == {"exp_avg": "momentum", "exp_avg_sq": "velocity"}
    assert names.layouts == {"c1.weight": "OIHW -> HWIO", "head.weight": "OI -> IO"}
    assert names.activations == ("NCHW -> NHWC",)
    assert '"c1.weight": "sequential.c1.kernel"  # 100%: equal elements' in text
    assert '"act": "sequential.act"  # 90%: kind and order' in text
    assert (
        "not mapped: sequential.flat [keras.layers.Flatten] of the candidate"
        in (folder / "said.txt").read_text()
    )


def test_a_sound_pair_says_plainly_what_could_not_be_judged(folder: Path) -> None:
    """The gradient of the bias before a normalisation is rounding alone, and Adam makes whole updates of it."""
    found = compared(folder, "sound")
    assert found.verdict is Verdict.INCOMPARABLE
    assert not found.origins
    assert all("c1.bias could not be judged" in one for one in found.not_compared)
    assert "judged without running operators of tensorflow again" in headline(found)


@pytest.mark.parametrize(
    ("mistake", "module", "op"),
    [("slope", "act", "leaky_relu"), ("epsilon", "bn", "batch_norm"), ("flatten", "", "flatten")],
)
def test_a_mistake_is_named_with_its_operator(
    folder: Path, mistake: str, module: str, op: str
) -> None:
    origin = compared(folder, mistake).origins[0]
    assert (origin.step, origin.module, origin.op.rpartition(".")[2]) == (0, module, op)


def test_a_kernel_whose_axes_were_exchanged_is_named_before_any_call(folder: Path) -> None:
    origin = compared(folder, "hwio").origins[0]
    assert (origin.phase.value, origin.tensor) == ("init", "c1.weight")


@pytest.fixture(scope="module")
def beside_mindspore(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rank = lockstep.open(MINDSPORE).ranks["rank0"]
    batch = next(iter(rank.calls(0, kind=CallKind.DATA))).records[0].content
    given = {"batch": elements(batch), "labels": np.arange(4) % 3, **start_of(rank)}
    folder = tmp_path_factory.mktemp("mindspore")
    return twins(folder, programs, MINDSPORE, given, "mindspore", "sound", "slope")


@pytest.mark.exhaustive
def test_pytorch_and_mindspore_need_names_alone(beside_mindspore: Path) -> None:
    # given a sound pair: only a normalisation and the optimizer have other names
    names = NameMapping.read(beside_mindspore / "mapping.yaml")
    assert names.modules == {"plus": "half"}
    assert names.parameters == {"bn.weight": "bn.gamma", "bn.bias": "bn.beta"}
    assert names.states == {"exp_avg": "moment1", "exp_avg_sq": "moment2"}
    assert names.layouts == {}
    # then nothing is at fault, and what could not be judged is the layer before the normalisation, told plainly
    found = lockstep.compare_recordings(
        beside_mindspore / "sound", MINDSPORE, mapping=beside_mindspore / "mapping.yaml"
    )
    assert not found.origins
    assert found.verdict is Verdict.INCOMPARABLE
    assert all("c1." in one and "could not be judged" in one for one in found.not_compared)


@pytest.mark.exhaustive
def test_a_wrong_slope_is_named_between_pytorch_and_mindspore(beside_mindspore: Path) -> None:
    origin = lockstep.compare_recordings(
        beside_mindspore / "slope", MINDSPORE, mapping=beside_mindspore / "mapping.yaml"
    ).origins[0]
    assert (origin.step, origin.module) == (0, "act")
