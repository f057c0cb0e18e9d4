"""Where the module cannot be repeated by any file, that is said, and the export is not accused."""

import random

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from test_export_faults import Sound
from torch import nn
from torch.nn import functional as F

from lockstep.core.errors import UsageError
from lockstep.core.finding import Verdict
from lockstep_deploy.export_command import export
from lockstep_deploy.parity import ParityRuns
from lockstep_deploy.runtime import Session, Settings


class Plain(nn.Module):
    """A linear layer, for the modules below."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("held", torch.zeros(4))

    def forward(self, x):
        return self.linear(x) - self.held


class InPlace(Plain):
    def forward(self, x):
        return self.linear(x.mul_(2))


class Averages(Plain):
    def forward(self, x):
        self.held.mul_(0.9).add_(0.1 * x.mean(0))
        return super().forward(x)


class AveragesInTraining(Plain):
    def forward(self, x):
        if self.training:
            self.held.mul_(0.9).add_(0.1 * x.mean(0))
        return super().forward(x)


class Caches(Plain):
    def forward(self, x):
        return self.linear(torch.cat([torch.tensor([]), x]))


class Counts(Plain):
    def forward(self, x):
        self.held += 1
        return self.linear(x)


class Tracks(Plain):
    """Writes statistics of what it computes, which nothing that it returns is made of."""

    def forward(self, x):
        y = self.linear(x)
        self.held.lerp_(y.mean(0), 0.1)
        return y


class CountsInPython(Plain):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


class Grows(Plain):
    seen = None

    def forward(self, x):
        self.seen = x if self.seen is None else torch.cat([self.seen, x])
        return self.linear(self.seen.detach()).sum(0)


class NotANumber(Plain):
    def forward(self, x):
        return torch.log(self.linear(x)) * 2


class Draws(Plain):
    def forward(self, x):
        return self.linear(x + torch.rand_like(x))


class DrawsInPython(Plain):
    def forward(self, x):
        return self.linear(x) * random.random()


class DrawsInNumPy(Plain):
    def forward(self, x):
        return self.linear(x) + torch.from_numpy(np.random.rand(4).astype("f4"))  # as users do


class Drops(Plain):
    def forward(self, x):
        return F.dropout(self.linear(x), 0.5)


class DropsInTraining(Plain):
    def forward(self, x):
        return F.dropout(self.linear(x), 0.5, self.training)


class StaysInTraining(Plain):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def train(self, mode=True):
        super().train(mode)
        self.norm.training = True
        return self

    def forward(self, x):
        return self.norm(self.linear(x))


CASES = [
    (InPlace, Verdict.AGREE, "forward changes its input x in place"),
    (Counts, Verdict.AGREE, "forward writes held, which changes nothing that it returns"),
    (Tracks, Verdict.AGREE, "forward writes held, which changes nothing that it returns"),
    (NotANumber, Verdict.AGREE, ""),
    (Caches, Verdict.AGREE, ""),
    (AveragesInTraining, Verdict.AGREE, ""),
    (DropsInTraining, Verdict.AGREE, ""),
    (Averages, Verdict.INCOMPARABLE, "forward writes held, and returns something else"),
    (CountsInPython, Verdict.INCOMPARABLE, "reads something that is no input, parameter or buffer"),
    (Grows, Verdict.INCOMPARABLE, "forward keeps tensors from one call to the next"),
    (Draws, Verdict.INCOMPARABLE, "draws random numbers (aten.rand_like.default of the model, "),
    (DrawsInPython, Verdict.INCOMPARABLE, "of Python's `random` or of NumPy"),
    (DrawsInNumPy, Verdict.INCOMPARABLE, "of Python's `random` or of NumPy"),
    (Drops, Verdict.INCOMPARABLE, "draws random numbers (aten.native_dropout.default of"),
    (StaysInTraining, Verdict.DIVERGED, "statistics of the batch, as in training (aten._nat"),
]


SHORT = (InPlace, Averages, AveragesInTraining, Draws)


@pytest.mark.parametrize(
    ("kind", "verdict", "said"),
    [
        pytest.param(
            *case, id=case[0].__name__, marks=() if case[0] in SHORT else pytest.mark.exhaustive
        )
        for case in CASES
    ],
)
def test_a_module_at_fault_is_named_and_its_export_is_not(kind, verdict, said, tmp_path):
    # given a module, exported
    torch.manual_seed(0)
    sound = Sound(lambda: (kind(), torch.randn(3, 4)))
    before = {name: one.clone() for name, one in sound.module.state_dict().items()}
    # when it is compared with its file, as written and as it runs
    runs = ParityRuns(sound.exported.program, sound.inputs, tmp_path, sound.module)
    found = [
        runs.plain(sound.exported.plain).comparison,
        runs.as_run(sound.exported.optimized, Settings()).comparison,
    ]
    # then the module is named where it is at fault, and left as it was
    for one in found:
        assert one.verdict is verdict, one
        sentences = " ".join([*one.not_compared, *one.notes])
        assert said in sentences
        assert bool(one.not_compared) is ("at fault" in sentences)
        if verdict is Verdict.DIVERGED:
            assert one.origins[0].module == "norm"
    for name, one in sound.module.state_dict().items():
        torch.testing.assert_close(one, before[name], rtol=0, atol=0)


def test_a_fault_beside_random_numbers_is_still_named(tmp_path):
    sound = Sound(lambda: (Draws(), torch.randn(3, 4)))
    faulty = sound.with_fault(
        lambda model: model.graph.initializer[0].CopyFrom(_halved(model.graph.initializer[0]))
    )
    runs = ParityRuns(faulty.program, sound.inputs, tmp_path, sound.module)
    found = runs.plain(faulty.plain).comparison
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].module == "linear"


class Numbers(Plain):
    def forward(self, x):
        return self.linear(x), 3


def test_a_number_beside_the_tensors_that_are_returned_is_refused():
    with pytest.raises(UsageError, match="returns 3 beside its tensors"):
        Sound(lambda: (Numbers(), torch.randn(3, 4)))


class HandsOn(Plain):
    def forward(self, x):
        return self.linear(x), x


def test_an_input_that_is_returned_as_it_is_keeps_its_name():
    sound = Sound(lambda: (HandsOn(), torch.randn(3, 4)))
    given = {"x": sound.inputs["x"].numpy()}
    assert [one.name for one in sound.exported.optimized.graph.input] == ["x"]
    _, returned = Session(sound.exported.optimized).run(given).values()
    np.testing.assert_array_equal(returned, given["x"])


def _halved(tensor):
    from onnx import numpy_helper

    return numpy_helper.from_array(numpy_helper.to_array(tensor) / 2, tensor.name)


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        ("net[2]", "set to evaluation: 2\n"),
        ("net", "set to evaluation: dropout is off"),
        ("nn.ReLU()", ""),
    ],
)
def test_layers_that_were_in_training_are_named(leave, said, tmp_path):
    path = tmp_path / f"nets_{len(leave)}.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.BatchNorm1d(4)).eval()\n"
        f"{leave}.train()\n"
        "def made():\n    return net, torch.randn(3, 4)\n"
    )
    done = CliRunner().invoke(export, [f"{path}:made", "-o", str(tmp_path / "a.onnx")])
    assert said in done.output
    assert ("set to evaluation" in done.output) is bool(said)
