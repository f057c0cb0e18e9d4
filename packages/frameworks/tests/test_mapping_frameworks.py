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
from lockstep.core.finding import Comparison, Outcome, Verdict
from lockstep.core.records import Content
from lockstep.core.site import CallKind, Role
from lockstep.report.comparison.verdict_words import headline
from lockstep.store.reader import RankRecording
from lockstep_frameworks.mapping.command import map_

FIXTURES = Path(__file__).parent / "fixtures"
KERAS, MINDSPORE = FIXTURES / "tensorflow" / "eager", FIXTURES / "mindspore" / "sound"

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


class Twins:
    """The PyTorch side of a recording, each mistake recorded once, and what `lockstep map` made of the sound one."""

    def __init__(self, folder: Path, python: Path, recorded: Path, side: str) -> None:
        self.folder, self.python, self.recorded, self.side = folder, python, recorded, side
        self.mapping = folder / "mapping.yaml"
        sides = [str(self.path("sound")), str(recorded)]
        made = CliRunner().invoke(map_, [*sides, "-o", str(self.mapping)])
        assert made.exception is None, made.output
        self.said = made.output

    def path(self, mistake: str) -> Path:
        if not (self.folder / mistake).exists():
            script = Path(__file__).with_name("torch_twin.py")
            command = [str(self.python), str(script), str(self.folder), self.side, mistake]
            subprocess.run(command, check=True, capture_output=True)
        return self.folder / mistake

    def compared(self, mistake: str) -> Comparison:
        return lockstep.compare_recordings(self.path(mistake), self.recorded, mapping=self.mapping)


@pytest.fixture(scope="module")
def keras(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Twins:
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
    folder = tmp_path_factory.mktemp("keras")
    np.savez(folder / "weights.npz", **given)
    return Twins(folder, programs / "python", KERAS, "keras")


def test_names_and_layouts_are_proposed_with_their_confidence(keras: Twins) -> None:
    text = keras.mapping.read_text()
    names = NameMapping.read(keras.mapping)
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
    assert "not mapped: sequential.flat [keras.layers.Flatten] of the candidate" in keras.said


def compared_of(found: Comparison, name: str) -> set[Role]:
    """What of a parameter was compared, and agrees."""
    findings = (one for one in found.findings if one.pair.present.name == name)
    return {one.pair.present.role for one in findings if one.outcome is Outcome.AGREE}


def test_a_sound_pair_agrees_also_in_a_gradient_that_is_rounding_alone(keras: Twins) -> None:
    """The gradient of the bias before a normalisation is zero, and Adam makes whole updates of what is left of it."""
    found = keras.compared("sound")
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ()), headline(found)
    assert compared_of(found, "c1.bias") >= {Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER}
    assert "judged without running operators of tensorflow again" in headline(found)


@pytest.mark.parametrize(
    ("mistake", "module", "op"),
    [
        ("slope", "act", "leaky_relu"),
        pytest.param("epsilon", "bn", "batch_norm", marks=pytest.mark.exhaustive),
        pytest.param("flatten", "", "flatten", marks=pytest.mark.exhaustive),
    ],
)
def test_a_mistake_is_named_with_its_operator(
    keras: Twins, mistake: str, module: str, op: str
) -> None:
    origin = keras.compared(mistake).origins[0]
    assert (origin.step, origin.module, origin.op.rpartition(".")[2]) == (0, module, op)


def test_a_kernel_whose_axes_were_exchanged_is_named_before_any_call(keras: Twins) -> None:
    origin = keras.compared("hwio").origins[0]
    assert (origin.phase.value, origin.tensor) == ("init", "c1.weight")


@pytest.fixture(scope="module")
def mindspore(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    rank = lockstep.open(MINDSPORE).ranks["rank0"]
    batch = next(iter(rank.calls(0, kind=CallKind.DATA))).records[0].content
    given = {"batch": elements(batch), "labels": np.arange(4) % 3, **start_of(rank)}
    folder = tmp_path_factory.mktemp("mindspore")
    np.savez(folder / "weights.npz", **given)
    return Twins(folder, programs / "python", MINDSPORE, "mindspore")


@pytest.mark.exhaustive
def test_pytorch_and_mindspore_need_names_alone(mindspore: Twins) -> None:
    # given a sound pair: only a normalisation and the optimizer have other names
    names = NameMapping.read(mindspore.mapping)
    assert names.modules == {"plus": "half"}
    assert names.parameters == {"bn.weight": "bn.gamma", "bn.bias": "bn.beta"}
    assert names.states == {"exp_avg": "moment1", "exp_avg_sq": "moment2"}
    assert names.layouts == {}
    # then both agree, the layer before the normalisation too
    found = mindspore.compared("sound")
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ()), headline(found)
    assert compared_of(found, "c1.bias") >= {Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER}


@pytest.mark.exhaustive
def test_a_wrong_slope_is_named_between_pytorch_and_mindspore(mindspore: Twins) -> None:
    origin = mindspore.compared("slope").origins[0]
    assert (origin.step, origin.module) == (0, "act")


def test_equal_names_need_no_mapping(tmp_path: Path) -> None:
    # When a training is mapped to one that calls everything alike, then that is said, and `compare` takes the file
    file = tmp_path / "mapping.yaml"
    made = CliRunner().invoke(map_, [str(KERAS), str(KERAS), "-o", str(file)])
    assert made.output == f"wrote {file}: every name is equal, so no mapping is needed\n"
    assert lockstep.compare_recordings(KERAS, KERAS, mapping=file).verdict is Verdict.AGREE
