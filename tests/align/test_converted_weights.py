"""Weights of one framework as another keeps them, there and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockstep
from lockstep.align.mapping import NameMapping
from lockstep.core.errors import UsageError
from lockstep.core.tensor_layouts import Layout

NAMES = NameMapping(
    parameters={
        "c.weight": "c.kernel",
        "rnn.weight_ih": "cell.kernel",
        "rnn.bias_ih + rnn.bias_hh": "cell.bias",
    },
    layouts={
        "c.weight": "OIHW -> HWIO",
        "rnn.weight_ih": "OI -> IO, gates ifgo -> icfo",
        "rnn.bias_ih": "O -> O, gates ifgo -> icfo, forget -1",
    },
)


def weights(hidden: int, inputs: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {
        "c.weight": (hidden, inputs, 3, 2),
        "rnn.weight_ih": (4 * hidden, inputs),
        "rnn.bias_ih": (4 * hidden,),
        "rnn.bias_hh": (4 * hidden,),
        "head.weight": (hidden,),
    }
    return {name: random.normal(size=shape).astype("f4") for name, shape in shapes.items()}


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_there_and_back_gives_the_same_weights(hidden: int, inputs: int, seed: int) -> None:
    # given weights of a layer, of a cell with two biases, and one that no line names
    before = weights(hidden, inputs, seed)
    # when they go to the other framework and come back
    there = lockstep.convert_weights(before, NAMES)
    after = lockstep.convert_weights(there, NAMES, back=True)
    # then each is what it was, and the biases' sum is in the first
    assert there.keys() == {"c.kernel", "cell.kernel", "cell.bias", "head.weight"}
    for name in ("c.weight", "rnn.weight_ih", "head.weight"):
        assert np.array_equal(after[name], before[name])
    assert np.allclose(
        after["rnn.bias_ih"], before["rnn.bias_ih"] + before["rnn.bias_hh"], atol=1e-6
    )
    assert not after["rnn.bias_hh"].any()
    assert all(array.dtype == np.float32 for array in (*there.values(), *after.values()))


def test_gates_and_axes_go_where_the_words_say() -> None:
    before = weights(2, 3, 0)
    there = lockstep.convert_weights(before, NAMES)
    assert there["c.kernel"].shape == (3, 2, 3, 2)
    assert there["c.kernel"][1, 0, 2, 1] == before["c.weight"][1, 2, 1, 0]
    # the third gate of torch, the cell's, is the second there
    assert np.array_equal(there["cell.kernel"][:, 2:4], before["rnn.weight_ih"][4:6].T)
    # and the other framework adds 1 to the forget gate's bias while it runs
    summed = before["rnn.bias_ih"] + before["rnn.bias_hh"]
    assert np.array_equal(there["cell.bias"][4:6], summed[2:4] - 1)


@pytest.mark.parametrize(
    "words", ["OIHW", "OI -> OO", "OI -> IK", "HW -> WH, gates if -> fi", "OI -> IO, gates io -> oi, forget 1", 3]
)  # fmt: skip
def test_what_is_no_layout_is_said(words: object) -> None:
    with pytest.raises(UsageError, match=r"names\.yaml"):
        Layout.parse(words, "names.yaml")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (NameMapping(parameters={"d.weight": "d.kernel"}), "'d.weight' is not among the weights"),
        (NameMapping(parameters={"*.weight": "*.kernel"}), "by full names"),
        (NameMapping(layouts={"c.weight": "OI -> IO"}), "does not fit c.weight"),
        (NameMapping(layouts={"head.weight": "O -> O, gates ifgo -> icfo"}), "not made of 4 gates"),
    ],
)
def test_a_mapping_that_does_not_fit_is_said(names: NameMapping, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        lockstep.convert_weights(weights(2, 3, 0), names)


def test_guesses_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "names.yaml"
    path.write_text("guesses: {parameters: {c.weight: c.kernel}}\n")
    assert "c.weight" in lockstep.convert_weights(weights(1, 1, 0), path)
