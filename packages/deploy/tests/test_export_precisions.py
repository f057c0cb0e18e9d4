"""Rounding of the runtime's own in 16 bits, numbers that free axes give, and complex buffers are no fault."""

from types import SimpleNamespace

import pytest
import torch
from onnx import numpy_helper
from test_export_faults import Sound
from torch import nn
from torch.nn import functional as F

from lockstep.core.finding import Verdict
from lockstep.judge.calibration import SiteNoise
from lockstep.judge.protocol import Judgement
from lockstep_deploy.as_run_judge import AsRunJudge
from lockstep_deploy.exporting import program_of, to_onnx
from lockstep_deploy.free_axes import free_axes
from lockstep_deploy.model_source import ModelSource, bound
from lockstep_deploy.parity import ParityRuns
from lockstep_deploy.runtime import Settings


class Half(nn.Module):
    """What runtimes compute in single precision between casts, and an operator of several nodes, in float16."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 1), nn.LayerNorm(4)
        self.group = nn.GroupNorm(2, 8)
        nn.init.normal_(self.group.weight)
        nn.init.normal_(self.group.bias)

    def forward(self, x):
        x = F.gelu(self.group(self.conv(x)))
        x = F.silu(self.norm(x).abs() ** 2.5)
        x = 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.0447 * x**3)))
        return torch.rsqrt(x.abs() + 0.1).softmax(-1)


class Rotary(nn.Module):
    """A rotation by a complex table."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.polar(torch.ones(6, 4), torch.randn(6, 4)))

    def forward(self, x):
        pairs = torch.view_as_complex(x.reshape(2, 6, 4, 2))
        return torch.view_as_real(pairs * self.table).flatten(-2)


class Scores(nn.Module):
    """Scores scaled by a root of a free axis."""

    def forward(self, x):
        return (x @ x.transpose(1, 2) / x.shape[1] ** 0.5).softmax(-1) @ x


def half():
    torch.manual_seed(0)
    return Half().half(), torch.randn(2, 3, 4, 4).half()


def rotary():
    torch.manual_seed(0)
    return Rotary(), torch.randn(2, 6, 8)


def verdicts(sound, edit, folder):
    """The verdicts on a model as its rules wrote it and as it runs, after an edit of both files."""
    found = []
    for name, model in (("plain", sound.exported.plain), ("as_run", sound.exported.optimized)):
        changed = type(model)()
        changed.CopyFrom(model)
        edit(changed)
        runs = ParityRuns(sound.exported.program, sound.inputs, folder / name, sound.module)
        parity = runs.plain(changed) if name == "plain" else runs.as_run(changed, Settings())
        assert parity.operators
        found.append(parity.comparison.verdict)
    return found


def nothing(_model):
    """Leaves a model as it is."""


def larger(model):
    """Makes the largest weight of a model larger by a twentieth."""
    arrays = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    name = max(
        (n for n, one in arrays.items() if one.dtype.kind == "f"), key=lambda n: arrays[n].size
    )
    (held,) = [one for one in model.graph.initializer if one.name == name]
    held.CopyFrom(numpy_helper.from_array(arrays[name] * arrays[name].dtype.type(1.05), name))


@pytest.mark.parametrize("net", [half, rotary])
def test_other_forms_of_the_same_numbers_agree_and_others_do_not(net, tmp_path):
    sound = Sound(net)
    assert verdicts(sound, nothing, tmp_path / "sound") == [Verdict.AGREE] * 2
    assert verdicts(sound, larger, tmp_path / "wrong") == [Verdict.DIVERGED] * 2


def test_a_number_in_single_precision_is_that_number(tmp_path):
    # given a scale that torch computes in double precision of a free axis, and the runtime in single
    inputs = bound(Scores(), torch.randn(2, 6, 8))
    axes = free_axes("batch,seq", inputs)
    program = program_of(ModelSource("scores", Scores()), inputs, axes)
    exported = to_onnx(program, inputs)
    # when they are compared
    runs = ParityRuns(exported.program, inputs, tmp_path, Scores())
    found = [runs.plain(exported.plain), runs.as_run(exported.optimized, Settings())]
    # then the last digits of it are no fault
    assert [one.comparison.verdict for one in found] == [Verdict.AGREE] * 2


class Output:
    """An output that is off by half a unit in the last place."""

    equal, floating, known, norm, unit = False, True, True, 1.0, 2.0**-24
    difference = 2.0**-24

    class pair:  # noqa: N801  # as a measured pair has it
        reference = None


@pytest.mark.parametrize(("units", "agrees"), [(1.0, True), (2.0, True), (25.0, False)])
def test_no_tolerance_lies_below_a_unit_in_the_last_place(units, agrees):
    # given a judge that allows a fifth of a unit roundoff
    class Strict:
        def operator(self, operation, output):
            allowed = output.unit / 5
            unexplained = output.difference > allowed
            return Judgement(allowed, allowed, beyond_floor=unexplained, unexplained=unexplained)

    judge = AsRunJudge(SiteNoise({}), Strict())
    # when an output is off by some unit roundoffs
    output = Output()
    output.difference = units * output.unit

    operation = SimpleNamespace(entering=(), known=SimpleNamespace(convolves=False))

    found = judge.operator(operation, output)
    # then it agrees at the distance of two neighbours at least
    assert found.unexplained is not agrees
