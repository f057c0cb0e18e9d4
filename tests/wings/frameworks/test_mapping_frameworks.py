"""`lockstep map` and `compare --mapping` between PyTorch and a Keras training that was recorded once.

The Keras side is `tests/fixtures/tensorflow/eager`: its tensors are so small that their sketches hold every element, so
the PyTorch side starts from its weights. `tests/wings/frameworks_tensorflow` records both sides anew.
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
from lockstep.wings.frameworks.mapping.command import map_

KERAS = Path(__file__).parents[2] / "fixtures" / "tensorflow" / "eager"
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


@pytest.fixture(scope="module")
def folder(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PyTorch side of each mistake, and `mapping.yaml`, which `lockstep map` made of the sound one."""
    folder = tmp_path_factory.mktemp("twins")
    calls = lockstep.open(KERAS).ranks["rank0"].calls(0)
    start = {
        record.name: elements(record.content)
        for call in calls
        if call.kind is CallKind.INIT
        for record in call.records
        if ".bn." not in record.name
    }
    batch = next(call for call in calls if call.kind is CallKind.DATA).records[0].content
    labels = next(call for call in calls if call.site.op == "tf.Cast").with_role(Role.OUTPUT)[0]
    np.savez(
        folder / "weights.npz", batch=np.ascontiguousarray(elements(batch).transpose(0, 3, 1, 2)),
        labels=elements(labels.content).astype("i8"), **lockstep.convert_weights(start, TO_TORCH),
    )  # fmt: skip
    script = Path(__file__).with_name("torch_twin.py")
    command = [str(programs / "python"), str(script), str(folder), *MISTAKES]
    subprocess.run(command, check=True, capture_output=True)
    made = CliRunner().invoke(
        map_, [str(folder / "sound"), str(KERAS), "-o", str(folder / "mapping.yaml")]
    )
    assert made.exception is None, made.output
    (folder / "said.txt").write_text(made.output)
    return folder


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
