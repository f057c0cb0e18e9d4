"""What would go wrong without a word: places that are written twice, and whole numbers of another width."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from test_export_faults import Sound
from torch import nn

from lockstep.core.finding import Verdict
from lockstep_deploy.parity import ParityRuns


class Scatters(nn.Module):
    """Writes values at indices."""

    def forward(self, x, at):
        return torch.zeros(3, 4).scatter(1, at, 2 * x)


class Puts(nn.Module):
    """Writes rows at indices."""

    def forward(self, x, at):
        y = torch.zeros(4, 4)
        y[at] = x
        return y


class Adds(nn.Module):
    """Adds rows at indices."""

    def forward(self, x, at):
        return torch.zeros(4, 4).index_put((at,), x, accumulate=True)


ROWS, PLACES = torch.tensor([1, 0, 1]), torch.tensor([[0, 1, 0, 2]] * 3)


def compared(net, at, folder, edit=lambda model: None):
    """What is said of a net's file after an edit."""
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    given = {"x": x} if at is None else {"x": x, "at": at}
    sound = Sound(lambda: (net, given))
    faulty = sound.with_fault(edit)
    return (
        ParityRuns(faulty.program, sound.inputs, folder, sound.module)
        .plain(faulty.plain)
        .comparison
    )


@pytest.mark.parametrize(
    ("net", "at", "operator"),
    [
        (Scatters(), PLACES, "aten.scatter.src"),
        (Puts(), ROWS, "aten.index_put.default"),
        (Scatters(), torch.tensor([[0, 1, 3, 2]] * 3), None),
        (Puts(), torch.tensor([1, 0, 2]), None),
        (Adds(), ROWS, None),
    ],
)
def test_an_operator_that_writes_a_place_twice_is_warned_of(net, at, operator, tmp_path):
    found = compared(net, at, tmp_path)
    notes = [one for one in found.notes if "writes several values to one place" in one]
    assert found.verdict is Verdict.AGREE
    assert bool(notes) is (operator is not None)
    assert all(operator in one and "test_export_silent.py" in one for one in notes)


class Best(nn.Module):
    """The best three, and where they are."""

    def forward(self, x):
        return x.topk(3)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_choice_among_equal_values_is_a_warning_and_no_fault(is_tied, tmp_path):
    # given a net that chooses among equal values, or others, and a file of it that sorts the other way round
    x = torch.tensor([[2.0, 0.0, 0.0, 0.0]]) if is_tied else torch.tensor([[2.0, 0.3, 0.2, 0.1]])
    sound = Sound(lambda: (Best(), {"x": x}))
    backwards = helper.make_node(
        "ReverseSequence", ["x", "length"], ["x_back"], batch_axis=0, time_axis=1
    )

    def turned(model):
        """Chooses the last of equal values: of the reversed row, its places counted from the end."""
        node = next(one for one in model.graph.node if one.op_type == "TopK")
        node.input[0], places = "x_back", node.output[1]
        node.output[1] = "from_end"
        held = {"length": np.array([4]), "last": np.array(3)}
        model.graph.initializer.extend(
            numpy_helper.from_array(one, key) for key, one in held.items()
        )
        model.graph.node.insert(0, backwards)
        model.graph.node.append(helper.make_node("Sub", ["last", "from_end"], [places]))

    file = sound.with_fault(turned)
    found = ParityRuns(file.program, sound.inputs, tmp_path, sound.module).plain(file.plain)
    # then it agrees, and where there are ties it says so
    assert found.comparison.verdict is Verdict.AGREE, found.comparison.not_compared
    said = [one for one in found.comparison.notes if "chooses among equal values" in one]
    assert bool(said) is is_tied

    def wrong(model):
        turned(model)
        model.graph.node[-1].op_type = "Add"

    file = sound.with_fault(wrong)
    found = ParityRuns(file.program, sound.inputs, tmp_path / "wrong", sound.module).plain(
        file.plain
    )
    assert found.comparison.verdict is Verdict.DIVERGED


class Classes(nn.Module):
    """The index of the largest result."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x):
        return self.linear(x).argmax(-1)


def narrowed(model):
    """Casts what a model returns to int32."""
    name = model.graph.output[0].name
    for node in model.graph.node:
        node.output[:] = [f"{one}_wide" if one == name else one for one in node.output]
    model.graph.node.append(
        helper.make_node("Cast", [f"{name}_wide"], [name], to=TensorProto.INT32)
    )
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32


def test_whole_numbers_of_another_width_do_not_agree(tmp_path):
    assert compared(Classes(), None, tmp_path / "sound").verdict is Verdict.AGREE
    found = compared(Classes(), None, tmp_path / "narrow", narrowed)
    assert found.verdict is Verdict.INCOMPARABLE
    assert "output 0 is of int32 in the file, and of int64 in the module" in found.not_compared
