"""Weights that an optimiser folded into others agree; the same fold with a wrong weight is named at its layer."""

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from small_nets import _trained
from test_export_faults import Sound
from torch import nn
from torch.nn import functional as F

from lockstep.core.finding import Verdict
from lockstep_deploy.parity import ParityRuns
from lockstep_deploy.runtime import Session, Settings


class Steps(nn.Module):
    """Layers in a row."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class SharedWeights(nn.Module):
    """Two convolutions with one weight, each with a batch norm of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4)])

    def forward(self, x):
        return self.norms[1](self.second(self.norms[0](self.first(x))))


class ScaledProducts(nn.Module):
    """Products with weights that are scaled first."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(8, 8)), nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        return torch.tanh(x @ (self.weight * self.scale)) @ (self.weight.T / 2)


class TiedWeights(nn.Module):
    """An embedding whose table, scaled, is the last layer."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(16, 8), nn.LayerNorm(8)

    def forward(self, ids):
        return self.norm(self.table(ids) * 8**0.5) @ (self.table.weight * 0.5).T


class Positions(nn.Module):
    """A table of sines that forward makes each time."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        angles = torch.arange(x.shape[1])[:, None] * torch.exp(-torch.arange(4.0))
        return self.linear(x + torch.cat([angles.sin(), angles.cos()], -1))


class SmallUNet(nn.Module):
    """A U-Net of two levels."""

    def __init__(self):
        super().__init__()
        self.down, self.low = self._level(1, 4), self._level(4, 8)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), self._level(8, 2)

    def _level(self, inner, outer):
        one = nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU()
        two = nn.Conv2d(outer, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU()
        return nn.Sequential(*one, *two)

    def forward(self, x):
        beside = self.down(x)
        return self.last(torch.cat([self.up(self.low(F.max_pool2d(beside, 2))), beside], 1))


IMAGES = (2, 4, 6, 6)
KINDS = {
    "convolution": (lambda: Steps(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)), IMAGES, "layers.0"),
    "convolution without bias": (
        lambda: Steps(nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        IMAGES,
        "layers.0",
    ),
    "one dimension": (
        lambda: Steps(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4, affine=False)),
        (2, 4, 9),
        "layers.0",
    ),
    "linear": (lambda: Steps(nn.Linear(6, 6), nn.BatchNorm1d(6)), (5, 6), "layers.0"),
    "transposed": (
        lambda: Steps(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.BatchNorm2d(4)),
        IMAGES,
        "layers.0",
    ),
    "transposed without bias": (
        lambda: Steps(nn.ConvTranspose2d(4, 6, 2, bias=False), nn.BatchNorm2d(6)),
        IMAGES,
        "layers.0",
    ),
    "padding": (
        lambda: Steps(nn.ZeroPad2d(1), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)),
        IMAGES,
        "layers.1",
    ),
    "norm before": (lambda: Steps(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3)), IMAGES, "layers.1"),
    "shared weights": (SharedWeights, IMAGES, ""),
    "scaled weights": (ScaledProducts, (3, 8), ""),
    "positions": (Positions, (2, 5, 8), "linear"),
    "tied weights": (TiedWeights, None, ""),
    "u-net": (SmallUNet, (1, 1, 8, 8), ""),
}
SHORT = ("convolution", "transposed without bias", "scaled weights")


def sound_export(make, shape):
    """The module of a kind, its weights drawn, exported."""

    def net():
        torch.manual_seed(0)
        given = torch.randint(0, 16, (2, 5)) if shape is None else torch.randn(shape)
        return _trained(make()), given

    return Sound(net)


def as_run(sound, model, folder):
    """What is said of a model as the runtime runs it."""
    runs = ParityRuns(sound.exported.program, sound.inputs, folder, sound.module)
    return runs.as_run(model, Settings()).comparison


def with_wrong_weight(model):
    """A copy of a model whose largest weight is half as large again, none of its results dead."""
    wrong = type(model)()
    wrong.CopyFrom(model)
    held = {one.name: numpy_helper.to_array(one) for one in wrong.graph.initializer}
    name = max((one for one in held if held[one].dtype.kind == "f"), key=lambda one: held[one].size)
    tensor = next(one for one in wrong.graph.initializer if one.name == name)
    tensor.CopyFrom(numpy_helper.from_array(held[name] * np.float32(1.5), name))
    return wrong


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in SHORT else pytest.mark.exhaustive) for kind in KINDS],
)
def test_what_was_folded_agrees_and_a_wrong_weight_is_named(kind, tmp_path):
    # given an export whose optimiser may fold weights into others, and one with a wrong weight
    make, shape, layer = KINDS[kind]
    sound = sound_export(make, shape)
    wrong = with_wrong_weight(sound.exported.optimized)
    # when both are compared as they run
    agrees = as_run(sound, sound.exported.optimized, tmp_path / "sound")
    differs = as_run(sound, wrong, tmp_path / "wrong")
    # then the sound one agrees, and the wrong one is named at its layer, or at the operators that it became
    assert agrees.verdict is Verdict.AGREE, agrees
    assert differs.verdict is Verdict.DIVERGED
    first = differs.origins[0]
    assert layer in ("", first.module) or f"{layer} / " in " ".join(differs.notes), differs.notes


def test_a_row_that_no_input_reads_is_compared_where_the_table_is_read_alone(tmp_path):
    # given a table of which the inputs read few rows, and another number in a row that they do not read
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(16, 8)

        def forward(self, ids):
            return torch.tanh(self.table(ids))

    sound = Sound(lambda: (Table(), torch.tensor([[1, 2]])))
    wrong = type(sound.exported.optimized)()
    wrong.CopyFrom(sound.exported.optimized)
    (held,) = [one for one in wrong.graph.initializer if one.name == "table.weight"]
    changed = numpy_helper.to_array(held).copy()
    changed[9] += 1
    held.CopyFrom(numpy_helper.from_array(changed, held.name))
    # when the file is compared as it runs
    found = as_run(sound, wrong, tmp_path)
    # then the table is at fault, though no result differs
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].module, found.origins[0].tensor) == ("table", "table.weight")


class Normalised(nn.Module):
    """Divides by a norm that may be zero, and scales by next to one."""

    def forward(self, x):
        return x / (x.norm(dim=-1, keepdim=True) + 1e-8) * (1 + 1e-5)


def test_a_small_number_that_keeps_a_division_whole_is_not_taken_for_zero():
    """onnxscript's patterns take 1e-8 for 0: the file would return NaN for a row of zeros, where the module has 0."""
    module, x = Normalised().eval(), torch.randn(2, 3)
    sound = Sound(lambda: (module, {"x": x}))
    zeros = np.zeros((2, 3), "f4")
    found = Session(sound.exported.optimized).run({"x": zeros})
    assert np.array_equal(next(iter(found.values())), zeros)
    assert [one.name for one in sound.exported.optimized.graph.input] == ["x"]
    returned = next(iter(Session(sound.exported.optimized).run({"x": x.numpy()}).values()))
    torch.testing.assert_close(torch.from_numpy(returned), module(x), rtol=1e-6, atol=0)
