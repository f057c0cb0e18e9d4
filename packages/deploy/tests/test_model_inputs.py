"""What a model is given: of files, or drawn as a text says, checked against its signature."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from lockstep.core.errors import UsageError
from lockstep_deploy.inputs import read_inputs, spec_of
from lockstep_deploy.model_file import TensorSpec

IMAGES = TensorSpec("x", "float32", ("batch", 3, 4, 4))
IDS = TensorSpec("ids", "int64", ("batch", "seq"))


def test_a_text_draws_the_same_numbers_each_time():
    texts = ["x:float32[2,3,4,4]", "ids:int64[2,7]<1000"]
    first, again = (read_inputs(texts, [IMAGES, IDS], seed=3) for _ in range(2))
    other = read_inputs(texts, [IMAGES, IDS], seed=4)
    assert list(first) == ["x", "ids"]
    assert (first["x"] == again["x"]).all()
    assert (first["x"] != other["x"]).any()
    assert (first["ids"].shape, first["ids"].min() >= 0, first["ids"].max() < 1000) == (
        (2, 7),
        True,
        True,
    )


def test_without_inputs_all_are_drawn_free_axes_as_told():
    found = read_inputs([], [IMAGES, IDS], free={"seq": 5})
    assert (found["x"].shape, found["ids"].shape) == ((1, 3, 4, 4), (1, 5))


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
def test_files_give_arrays_by_name_or_by_order(tmp_path, suffix):
    array, path = np.arange(48, dtype="f4").reshape(1, 3, 4, 4), tmp_path / f"in{suffix}"
    if suffix == ".npz":
        np.savez(path, array)
    elif suffix == ".npy":
        np.save(path, array)
    else:
        save_file({"x": array}, path)
    assert (read_inputs([str(path)], [IMAGES])["x"] == array).all()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["x:float32[2,3,4,4]"], r"lacks ids:int64\[batch,seq\]"),
        (
            ["x:float32[2,3,4,4]", "ids:int64[2,7]", "mask:bool[2]"],
            "has mask, which the model does not take",
        ),
        (["x:float64[2,3,4,4]", "ids:int64[2,7]"], "x is of float64"),
        (["x:float32[2,4,4,3]", "ids:int64[2,7]"], r"x has the shape \[2, 4, 4, 3\]"),
        (["x:float32[2,3,4,4]", "ids:int64[3,7]"], "has 3 along 'batch', and x has 2"),
        (["x:float32"], "neither a file that is there"),
        (["x:float99[2]"], "no dtype float99"),
        (["x:float32[99999,99999,99]"], "more than"),
        (["x:float32[2]<7"], "bounds whole numbers"),
        (["missing.npz"], "cannot be read"),
    ],
)
def test_what_does_not_fit_is_one_sentence(texts, said):
    with pytest.raises(UsageError, match=said):
        read_inputs(texts, [IMAGES, IDS])


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"\x93NUMPY\x01\x00", b"\xff" * 64, b"PK\3\4" + bytes(40)]
)
def test_garbage_in_a_file_is_one_sentence(tmp_path, suffix, data):
    path = tmp_path / f"in{suffix}"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="cannot be read"):
        read_inputs([str(path)], [IMAGES])


def test_objects_in_a_file_are_not_unpickled(tmp_path):
    np.save(tmp_path / "in.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UsageError, match="cannot be read"):
        read_inputs([str(tmp_path / "in.npy")], [IMAGES])


@given(st.text(max_size=30))
def test_any_text_is_a_spec_or_one_sentence(text):
    with suppress(UsageError):
        assert spec_of(text).name
