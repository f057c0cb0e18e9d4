"""`--dynamic`: bounds of the module or of the user, names in the file, and several sets of inputs."""

from pathlib import Path

import onnx
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from lockstep.core.errors import UsageError
from lockstep_deploy.export_command import export
from lockstep_deploy.exporting import program_of, to_onnx
from lockstep_deploy.free_axes import constraint_sentence, free_axes
from lockstep_deploy.model_source import ModelSource, bound
from lockstep_deploy.run_command import run
from lockstep_deploy.runtime import Session

HERE = Path(__file__)


class Positions(nn.Module):
    """Tokens with positions from a table of 16 that forward slices: torch finds its bound."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.register_buffer("table", torch.randn(16, 8))

    def forward(self, ids):
        return self.tokens(ids) + self.table[: ids.shape[1]]


class Halves(nn.Module):
    """Takes an even number of elements."""

    def forward(self, x):
        return x.reshape(x.shape[0], x.shape[1] // 2, 2).sum(-1)


class Branches(nn.Module):
    """Computes otherwise with short inputs."""

    def forward(self, x):
        return 2 * x if x.shape[1] > 4 else x + 1


class Counts(nn.Module):
    """Computes otherwise with inputs whose first element is negative, decided outside of torch's sight."""

    def forward(self, x):
        return torch.where(x[:1, :1] < 0, -x, x)


def positions():
    torch.manual_seed(0)
    return Positions(), {"ids": torch.randint(0, 20, (2, 6))}


def halves():
    return Halves(), torch.randn(2, 6)


def branches():
    return Branches(), torch.randn(2, 6)


def counts():
    return Counts(), torch.rand(2, 6)


def called(command, *arguments):
    done = CliRunner().invoke(command, [str(one) for one in arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return " ".join(done.output.split()), done.return_value


def axes_of(path):
    (given,) = onnx.load(path).graph.input
    return [one.dim_param for one in given.type.tensor_type.shape.dim]


@pytest.mark.parametrize(
    ("net", "said", "names", "too"),
    [
        ("branches", "seq[5:]", ["batch", "seq"], "x:float32[1,4]"),
        pytest.param(
            "positions",
            "seq[:16]",
            ["batch", "seq"],
            "ids:int64[1,17]<20",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "halves",
            "seq is a multiple of 2",
            ["batch", "2*_seq"],
            None,
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_axes_are_free_as_far_as_the_module_goes(net, said, names, too, tmp_path):
    output = tmp_path / "net.onnx"
    told, code = called(export, f"{HERE}:{net}", "-o", output, "--dynamic", "batch,seq")
    assert code == 0, told
    assert f"free as far as the module's code allows: {said}" in told
    assert "With free axes of other extents" in told
    assert axes_of(output) == names
    assert called(run, output, "--runs", 1)[1] == 0
    if too is not None:
        with pytest.raises(UsageError, match="the file was exported for seq"):
            called(run, output, "--inputs", too)


def test_bounds_of_the_user_are_kept(tmp_path):
    output = tmp_path / "net.onnx"
    told, code = called(
        export, f"{HERE}:positions", "-o", output, "--dynamic", "ids:1=length[2:16]"
    )
    assert code == 0, told
    assert "as far as the module" not in told
    assert axes_of(output) == ["", "length"]
    with pytest.raises(UsageError, match="length\\[2:16\\]"):
        called(run, output, "--inputs", "ids:int64[2,1]<20")


def test_each_set_of_inputs_is_proven(tmp_path):
    # given a net that treats some inputs otherwise, and two sets of them
    sets = ("--inputs", tmp_path / "a.pt", "--inputs", tmp_path / "b.pt")
    torch.save({"x": torch.rand(2, 6)}, tmp_path / "a.pt")
    torch.save({"x": -torch.rand(3, 6)}, tmp_path / "b.pt")
    # when it is exported with a free batch, and without
    told, code = called(
        export, f"{HERE}:counts", "-o", tmp_path / "c.onnx", *sets, "--dynamic", "batch"
    )
    # then the second is proven too, or its shape is refused with what frees it
    assert (code, told.count("AGREE: step 0")) == (0, 4)
    assert "On inputs 2 (x [3, 6]), as it runs" in told
    with pytest.raises(UsageError, match=r"set 2 .*--dynamic"):
        called(export, f"{HERE}:counts", "-o", tmp_path / "d.onnx", *sets)


@pytest.mark.parametrize(
    "text", ["batch[", "x:0=b[7:9]", "x:0=b[3:1]", "x:5=b", "0", "x:0=b[1:2:3]"]
)
def test_what_is_no_axis_is_one_sentence(text):
    with pytest.raises(UsageError, match="--dynamic"):
        free_axes(text, {"x": torch.zeros(2, 3)})


def test_torch_own_suggestion_is_passed_on():
    said = "Constraints violated (seq)!\n  - a\nSuggested fixes:\n  {}\n\nThe error above"
    assert "seq is always 6" in constraint_sentence(said.format("seq = 6"))
    assert "seq = 2*_s + 1" in constraint_sentence(said.format("seq = 2*_s + 1"))


def tagger():
    """A recurrent layer, which torch runs step by step in a trace."""

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.lstm(x)[0]

    return Tagger(), torch.randn(2, 5, 3), "batch,seq", (3, 7, 3)


def strided():
    """A convolution with a stride: torch says a guard of its height, and suggests no bound."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.AdaptiveAvgPool2d(1))
    return net, torch.randn(2, 1, 8, 8), "input:2=high", (2, 1, 11, 8)


def one_row():
    """An example of one row, which torch takes for one that is always alone."""
    return nn.Linear(3, 4), torch.randn(1, 3), "batch", (5, 3)


def empty_past():
    """What a decoder keeps, of which there is nothing yet."""

    class Keeps(nn.Module):
        def forward(self, x):
            return torch.cat([x, x + 1], 1)

    return Keeps(), torch.zeros(2, 0, 3), "x:1=past", (2, 4, 3)


@pytest.mark.exhaustive
def test_a_recurrent_layer_that_is_written_out_step_by_step_keeps_its_length():
    inputs = {"input": torch.randn(2, 5, 3)}
    source = ModelSource("net", nn.RNN(3, 4, batch_first=True).eval())
    with pytest.raises(UsageError, match="seq is always 5"):
        program_of(source, inputs, free_axes("batch,seq", inputs))


def test_an_axis_that_cannot_be_free_is_refused_with_the_module_and_the_line_of_each():
    # given a module that fixes one axis in a part of its own, and one in its own forward
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(6, 8))

        def forward(self, x):
            return x + self.table  # the length

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 8), Positions())

        def forward(self, x, y):
            return self.body(x).mean(1), y.view(3, 4)  # the height

    lines = Path(__file__).read_text().splitlines()
    length, height = (
        next(at for at, line in enumerate(lines, 1) if line.endswith(f"# the {word}"))
        for word in ("length", "height")
    )
    inputs = {"x": torch.randn(2, 6, 8), "y": torch.randn(3, 4)}
    # when it is exported with both free, then each is told with its place
    axes = free_axes("x:0=rows,x:1=length,y:0=height", inputs)
    with pytest.raises(UsageError) as refused:
        program_of(ModelSource("net", Net().eval()), inputs, axes)
    told = str(refused.value)
    assert f"length is always 6 in module body.1 at {__file__}:{length}" in told
    assert f"height is always 3 at {__file__}:{height}" in told
    assert "rows" not in told
    # and torch is as it was
    assert ShapeEnv._set_replacement.__module__.startswith("torch")


@pytest.mark.parametrize(
    "net",
    [
        pytest.param(tagger, marks=pytest.mark.exhaustive),
        pytest.param(strided, marks=pytest.mark.exhaustive),
        pytest.param(empty_past, marks=pytest.mark.exhaustive),
        one_row,
    ],
)
def test_an_axis_is_free_that_torch_fixes_or_bounds_in_its_own_words(net):
    # given a module that takes any extent there
    module, x, dynamic, other = net()
    inputs = bound(module.eval(), x)
    (name,) = inputs
    # when it is exported with that axis free
    source = ModelSource("net", module)
    program = program_of(source, inputs, free_axes(dynamic, inputs))
    model = to_onnx(program, inputs).plain
    # then the file computes what the module does at another extent, and at its own
    for given in (x, torch.randn(other)):
        (found,) = Session(model).run({name: given.numpy()}).values()
        torch.testing.assert_close(torch.from_numpy(found), module(given))
