"""`lockstep compare net.py:net net.onnx`: two models are paired by their numbers, and the node at fault is named."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import helper, numpy_helper

from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Verdict
from lockstep.hookspecs import AskedModel
from lockstep.report.comparison.screen import headline
from lockstep_deploy.exporting import program_of, to_onnx
from lockstep_deploy.given_models.comparing import compare_models
from lockstep_deploy.given_models.pairing import Value, near, paired
from lockstep_deploy.model_source import ModelSource, model_source

NETS = """
import torch
from torch.nn import functional as F

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(6, eps=1e-5)
        self.second = torch.nn.Conv2d(6, 6, 3, padding=1)
        self.head = torch.nn.Linear(6, 4)

    def forward(self, x):
        hidden = F.relu(self.norm(self.conv(x)))
        hidden = F.gelu(self.second(hidden)) + hidden
        return self.head(hidden.mean((2, 3)))

def net():
    torch.manual_seed(0)
    made = Net()
    made.norm.running_mean.normal_(0, 0.3)
    return made.eval(), torch.randn(2, 3, 8, 8)

def eps():
    made, x = net()
    made.norm.eps = 1e-2
    return made, x

class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x.sin(), (x,))

def branch():
    return Branch(), torch.ones(2, 3)

class Logarithm(torch.nn.Module):
    def forward(self, x):
        return (x - 1).log()

def logarithm():
    return Logarithm(), torch.tensor([0.5, 2.0, 3.0])

def nothing():
    return Logarithm(), torch.zeros(3)
"""

Edit = Callable[[onnx.ModelProto], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nets, and a file of one of them in which nothing is called as torch calls it."""
    made = tmp_path_factory.mktemp("given")
    (made / "nets.py").write_text(NETS)
    source = model_source(f"{made}/nets.py:net")
    file = to_onnx(program_of(ModelSource("net", source.module), source.inputs), source.inputs)
    model = file.optimized
    names = {one for node in model.graph.node for one in (*node.input, *node.output) if one}
    kept = {one.name for one in (*model.graph.input, *model.graph.output)}
    new = {name: f"v{at}" for at, name in enumerate(sorted(names - kept))}
    for node in model.graph.node:
        node.input[:] = [new.get(one, one) for one in node.input]
        node.output[:] = [new.get(one, one) for one in node.output]
        node.name = ""
        del node.metadata_props[:]
    for one in model.graph.initializer:
        one.name = new.get(one.name, one.name)
    del model.graph.value_info[:]
    onnx.save(model, made / "net.onnx")
    return made


def edited(folder: Path, name: str, edit: Edit) -> Path:
    """A file with an edit."""
    model = onnx.load(folder / "net.onnx")
    edit(model)
    onnx.save(model, folder / name)
    return folder / name


def compared(reference: object, candidate: object, keep: Path | None = None) -> Comparison:
    """The comparison of two models."""
    found: Comparison = compare_models(AskedModel(str(reference)), AskedModel(str(candidate)), keep)
    return found


def node(model: onnx.ModelProto, op: str, number: int = 0) -> onnx.NodeProto:
    """A node of an operator."""
    return [one for one in model.graph.node if one.op_type == op][number]


def without_relu(model: onnx.ModelProto) -> None:
    node(model, "Relu").op_type = "Identity"


def approximate(model: onnx.ModelProto) -> None:
    gelu = node(model, "Gelu")
    del gelu.attribute[:]
    gelu.attribute.append(helper.make_attribute("approximate", "tanh"))


def subtracted(model: onnx.ModelProto) -> None:
    node(model, "Add").op_type = "Sub"


def heavier(model: onnx.ModelProto) -> None:
    held = next(one for one in model.graph.initializer if list(one.dims) == [6, 6, 3, 3])
    held.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(held) * np.float32(1.01), held.name)
    )


def test_a_sound_file_agrees_with_its_module_in_either_order(folder: Path) -> None:
    module, file = f"{folder}/nets.py:net", folder / "net.onnx"
    for found in (compared(module, file), compared(file, module)):
        assert found.verdict is Verdict.AGREE
        assert found.compared > 10


@pytest.mark.parametrize(
    ("edit", "op"),
    [(without_relu, "relu"), (approximate, "gelu"), (subtracted, "add")],
)
def test_the_node_at_fault_is_named(folder: Path, edit: Edit, op: str) -> None:
    # given a file of which one node computes something else
    file = edited(folder, f"{op}.onnx", edit)
    # when it is compared with the sound file, then that operator is the first origin
    found = compared(folder / "net.onnx", file)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op.lower().startswith(f"onnx.{op}")


def test_a_fault_of_a_file_is_named_at_the_line_of_its_module(folder: Path) -> None:
    found = compared(f"{folder}/nets.py:net", edited(folder, "line.onnx", without_relu))
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op == "aten.relu.default"
    assert "nets.py" in found.origins[0].source


def test_a_weight_that_differs_is_named(folder: Path) -> None:
    file = edited(folder, "heavier.onnx", heavier)
    found = compared(f"{folder}/nets.py:net", file)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].module == "second"


def test_a_difference_that_the_output_all_but_loses_is_located(folder: Path) -> None:
    found = compared(f"{folder}/nets.py:net", f"{folder}/nets.py:eps")
    assert (found.verdict, found.origins[0].module) == (Verdict.DIVERGED, "norm")


def test_rounding_of_other_weights_is_no_fault(folder: Path) -> None:
    # given a file whose batch norm was folded into the convolution, as optimizers do
    def folded(model: onnx.ModelProto) -> None:
        draw = np.random.default_rng(0)
        for one in model.graph.initializer:
            array = numpy_helper.to_array(one)
            if array.dtype == np.float32 and array.ndim == 4:
                signs = draw.integers(-1, 2, array.shape).astype(np.float32)
                moved = array * (1 + np.float32(6e-8) * signs)
                one.CopyFrom(numpy_helper.from_array(moved.astype(np.float32), one.name))

    found = compared(folder / "net.onnx", edited(folder, "moved.onnx", folded))
    assert found.verdict is Verdict.AGREE


def test_a_branch_that_inputs_do_not_take_is_not_compared(folder: Path) -> None:
    found = compared(f"{folder}/nets.py:branch", f"{folder}/nets.py:branch")
    assert found.verdict is Verdict.INCOMPARABLE
    assert any("the branch for False of cond" in str(one) for one in found.not_compared)


def test_nan_in_both_is_said(folder: Path) -> None:
    some, none = (
        compared(f"{folder}/nets.py:{one}", f"{folder}/nets.py:{one}")
        for one in ("logarithm", "nothing")
    )
    assert some.verdict is Verdict.AGREE
    assert any("1 NaN of 3" in str(one) for one in some.notes)
    assert none.verdict is Verdict.INCOMPARABLE
    assert any("NaN all over" in str(one) for one in none.not_compared)


def test_models_that_take_other_inputs_are_refused(folder: Path) -> None:
    model = onnx_models.made(
        [helper.make_node("Add", ["a", "b"], ["c"], "add")],
        [("a", [2, 3]), ("b", [2, 3])],
        [("c", [2, 3])],
    )
    onnx.save(model, folder / "two.onnx")
    with pytest.raises(UsageError, match="the candidate takes 2 inputs"):
        compared(folder / "net.onnx", folder / "two.onnx")
    onnx.save(onnx_models.convolution(), folder / "convolution.onnx")
    with pytest.raises(UsageError, match=r"has the shape|is of float32"):
        compared(f"{folder}/nets.py:logarithm", folder / "convolution.onnx")


def test_the_verb_prints_the_answer_of_compare_and_keeps_recordings_for_a_page(
    folder: Path, programs: Path
) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [programs / "lockstep", *words], cwd=folder, capture_output=True, text=True, timeout=300, env=os.environ,
        )  # fmt: skip

    edited(folder, "verb.onnx", without_relu)
    ended = run("compare", "nets.py:net", "verb.onnx", "--json", "--keep", "kept")
    found = json.loads(ended.stdout)
    assert (ended.returncode, found["verdict"]) == (1, "diverged")
    assert (folder / "kept" / "candidate" / "manifest.json").exists()
    assert (
        "is there; give another folder"
        in run("compare", "nets.py:net", "verb.onnx", "--keep", "kept").stderr
    )
    assert (
        "a model is compared with a model" in run("compare", "kept/reference", "verb.onnx").stderr
    )
    assert (
        "is for two models"
        in run("compare", "kept/reference", "kept/candidate", "--keep", "x").stderr
    )
    for option, value in (("--steps", "0"), ("--engine", "local")):
        ended = run("compare", "nets.py:net", "verb.onnx", option, value)
        assert ended.returncode == 2
        assert f"{option} is for recordings; two models are compared without it" in ended.stderr


def value(name: str, *numbers: float, sources: tuple[str, ...] = ()) -> Value:
    """A value of a graph."""
    return Value(name, np.array(numbers, np.float32), sources)


def test_values_are_paired_by_their_numbers_and_only_known_faults_by_their_sources() -> None:
    ours = [value("a", 1, 2), value("b", 3, 5, sources=("a",)), value("c", 4, 4.5, sources=("b",))]
    theirs = [
        value("x", 1, 2),
        value("y", 3, 5.5, sources=("x",)),
        value("z", 4, 4.6, sources=("y",)),
    ]
    assert paired(ours, theirs, {"c": "z"}, {}, have_parted=False) == {"a": "x", "c": "z"}
    assert paired(ours, theirs, {"c": "z"}, {}, have_parted=True) == {"a": "x", "b": "y", "c": "z"}


def test_a_value_that_is_one_number_all_over_is_no_evidence() -> None:
    ours, theirs = [value("zeros", 0, 0), value("one", 7)], [value("x", 0, 0), value("y", 7)]
    assert paired(ours, theirs, {}, {}, have_parted=False) == {}
    assert not near(value("a", 1, 2), value("b", 1, 2.1))
    assert near(value("a", 1, 2), value("b", 1, 2.0000002))


WRITES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, kind, factor):
        super().__init__()
        self.enter, self.leave, self.kind, self.factor = nn.Linear(6, 6), nn.Linear(6, 4), kind, factor

    def forward(self, x):
        h = self.enter(x)
        if self.kind == "whole":
            h.mul_(self.factor)
        elif self.kind == "part":
            h[:, 0].mul_(self.factor)
        else:
            made = torch.zeros_like(h)
            made[:, :3] = h[:, :3]
            made[:, 3:] = h[:, 3:]
            h = made
        return self.leave(h)

def made(*given):
    torch.manual_seed(0)
    return Net(*given).eval(), torch.randn(3, 6)

def whole(): return made("whole", 1.0)
def whole_twice(): return made("whole", 2.0)
def part(): return made("part", 1.0)
def part_twice(): return made("part", 2.0)
def pieces(): return made("pieces", 1.0)

class Folds(nn.Module):
    def __init__(self, activation, drop=False, fold=False, bias=1.0):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Linear(6, 4)
        self.drop, self.activation = nn.Dropout(0.3) if drop else nn.Identity(), activation
        self.norm.running_mean.normal_(0, 0.3)
        self.norm.running_var.uniform_(0.5, 2)
        self.eval()
        if fold:
            self.conv = nn.utils.fuse_conv_bn_eval(self.conv, self.norm)
            self.norm = nn.Identity()
            self.conv.bias.data.mul_(bias)

    def forward(self, x):
        return self.head(self.activation(self.drop(self.norm(self.conv(x)))).mean((2, 3)))

def folds(*given, **more):
    torch.manual_seed(0)
    return Folds(*given, **more), torch.randn(2, 3, 8, 8)

def norm(): return folds(torch.relu)
def dropped(): return folds(torch.relu, drop=True)
def gelu(): return folds(nn.functional.gelu)
def folded(): return folds(torch.relu, fold=True)
def folded_off(): return folds(torch.relu, fold=True, bias=1.3)

class Dead(nn.Module):
    def __init__(self, more):
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 6), nn.Linear(6, 4)
        self.enter.bias.data[2] = -100.0
        self.leave.weight.data[1, 2] += more

    def forward(self, x):
        return self.leave(torch.relu(self.enter(x)))

def dead(more):
    torch.manual_seed(0)
    return Dead(more).eval(), torch.randn(3, 6)

def dead_weight(): return dead(0.0)
def other_weight(): return dead(1.0)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules that write in place, and such that fold what others compute."""
    made = tmp_path_factory.mktemp("written") / "writes.py"
    made.write_text(WRITES)
    return made


@pytest.mark.parametrize(
    "pair", ["whole part", "part pieces", "norm folded", "folded norm", "dropped norm"]
)
def test_what_is_written_or_folded_otherwise_agrees(written: Path, pair: str) -> None:
    one, other = pair.split()
    found = compared(f"{written}:{one}", f"{written}:{other}")
    assert found.verdict is Verdict.AGREE, found.origins


@pytest.mark.parametrize(
    ("pair", "op"),
    [
        ("whole whole_twice", "aten.mul.Tensor"),
        ("part part_twice", "aten.mul.Tensor"),
        ("dropped gelu", "aten.relu.default"),
        ("norm folded_off", "fused.aten.batch_norm.default+"),
        # a weight that these inputs multiply by zero alone
        ("dead_weight other_weight", "torch.nn.Module"),
    ],
)
def test_what_is_written_or_folded_wrongly_is_named(written: Path, pair: str, op: str) -> None:
    one, other = pair.split()
    found = compared(f"{written}:{one}", f"{written}:{other}")
    assert (found.verdict, found.origins[0].op) == (Verdict.DIVERGED, op)


def test_weights_that_differ_where_all_agrees_are_named(written: Path) -> None:
    found = compared(f"{written}:folded", f"{written}:norm")
    assert "both hold conv.weight, conv.bias, with other numbers" in " ".join(found.notes)


OUTPUTS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.enter, self.leave, self.kind = nn.Linear(6, 6), nn.Linear(6, 6), kind

    def forward(self, x):
        h = torch.relu(self.enter(x))
        y = self.leave(h)
        return {
            "mapping": {"h": h, "y": y},
            "sorted": {"y": y, "h": h},
            "exchanged": {"h": y, "y": h},
            "reshaped": {"h": h, "y": y.reshape(2, 9)},
            "transposed": {"h": h, "y": y.t()},
            "half": {"h": h, "y": y.half()},
        }[self.kind]

def made(kind):
    torch.manual_seed(0)
    return Net(kind).eval(), torch.randn(3, 6)

def mapping(): return made("mapping")
def other(): return made("sorted")
def exchanged(): return made("exchanged")
def reshaped(): return made("reshaped")
def transposed(): return made("transposed")
def half(): return made("half")
"""


@pytest.mark.parametrize(
    ("candidate", "verdict", "said"),
    [
        ("other", Verdict.AGREE, ""),
        ("half", Verdict.AGREE, "output 1 is float32 in the reference, and float16"),
        ("exchanged", Verdict.DIVERGED, ""),
        ("reshaped", Verdict.INCOMPARABLE, "output 1 is float32 [3, 6]"),
        ("transposed", Verdict.INCOMPARABLE, "and float32 [6, 3]"),
    ],
)
def test_outputs_are_held_by_their_keys_shapes_and_dtypes(
    tmp_path: Path, candidate: str, verdict: Verdict, said: str
) -> None:
    file = tmp_path / "returns.py"
    file.write_text(OUTPUTS)
    found = compared(f"{file}:mapping", f"{file}:{candidate}")
    assert found.verdict is verdict
    assert said in " ".join((headline(found), *found.notes))
