"""An ONNX file is opened without trusting it, and says what it is."""

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper, numpy_helper

from lockstep.core.errors import OutputExistsError, UsageError
from lockstep_deploy.model_file import open_model, write_model


def one_tensor(**changes):
    """A model that adds one held tensor of [4] to its input, the tensor changed."""
    tensor = numpy_helper.from_array(np.arange(4, dtype="f4"), "held")
    model = onnx_models.made(
        [helper.make_node("Add", ["x", "held"], ["y"])], [("x", [4])], [("y", [4])], [tensor]
    )
    held = model.graph.initializer[0]
    if "dims" in changes:
        held.dims[:] = changes["dims"]
    if "location" in changes:
        held.ClearField("raw_data")
        held.data_location = TensorProto.EXTERNAL
        for key in ("location", "offset", "length"):
            if key in changes:
                held.external_data.add(key=key, value=str(changes[key]))
    return model


def test_what_is_written_is_read_back_with_its_facts(tmp_path):
    written = write_model(
        onnx_models.convolution(), tmp_path / "m.onnx", {"class_names": ["a", "b"]}
    )
    found = open_model(tmp_path / "m.onnx")
    assert found.facts["class_names"] == ["a", "b"]
    assert found.digest == written.digest == found.facts["digest"]
    assert not found.was_changed
    assert (found.opset, found.weight_bytes) == (20, 4 * (8 * 27 + 4 * 8 + 40))
    assert [str(one) for one in (*found.inputs, *found.outputs)] == [
        "x:float32[batch,3,8,8]",
        "logits:float32[batch,5]",
    ]


def test_a_weight_that_was_changed_since_is_seen(tmp_path):
    model = write_model(onnx_models.convolution(), tmp_path / "m.onnx", {}).proto
    weight = next(one for one in model.graph.initializer if one.name == "head")
    weight.raw_data = b"\0" + weight.raw_data[1:]
    assert open_model(onnx_models.written(model, tmp_path / "m.onnx")).was_changed


def test_external_data_in_its_own_folder_is_read(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.arange(8, dtype="f4").tobytes())
    model = one_tensor(location="w.bin", offset=16, length=16)
    found = open_model(onnx_models.written(model, tmp_path / "m.onnx"))
    assert numpy_helper.to_array(found.proto.graph.initializer[0]).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"location": "../secret"}, "outside of the model's folder"),
        ({"location": "/etc/passwd"}, "outside of the model's folder"),
        ({"location": "link"}, "outside of the model's folder"),
        ({"location": ""}, "outside of the model's folder"),
        ({"location": "."}, "is not a file"),
        ({"location": "short", "length": 16}, "bytes 0 to 16 of 8"),
        ({"location": "short", "offset": -1, "length": 16}, "bytes -1 to"),
        ({"location": "short", "offset": "x"}, "is not a number"),
        ({"dims": [1 << 40]}, "asks for 4,398,046,511,104 bytes"),
        ({"dims": [1 << 62, 1 << 62]}, "nothing was allocated"),
        ({"dims": [-4]}, r"has the shape \[-4\]"),
        ({"dims": [5]}, "holds 16 bytes where its shape"),
    ],
)
def test_what_a_file_must_not_say_is_one_sentence(tmp_path, changes, said):
    (tmp_path / "secret").write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "short").write_bytes(bytes(8))
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match=said):
        open_model(onnx_models.written(one_tensor(**changes), folder / "m.onnx"))


def test_a_small_constant_that_makes_a_huge_tensor_is_refused(tmp_path):
    shape = numpy_helper.from_array(np.array([1 << 20, 1 << 20]), "shape")
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["wide"]),
        helper.make_node("ReduceSum", ["wide"], ["y"]),
    ]
    model = onnx_models.made(nodes, [("x", [1])], [("y", [1, 1])], [shape])
    with pytest.raises(UsageError, match=r"value 'wide' of shape .* nothing was allocated"):
        open_model(onnx_models.written(model, tmp_path / "m.onnx"))


def test_a_hidden_tensor_in_an_attribute_is_checked_too(tmp_path):
    tensor = one_tensor(location="../secret").graph.initializer[0]
    model = onnx_models.made(
        [helper.make_node("Constant", [], ["y"], value=tensor)], [("x", [4])], [("y", [4])]
    )
    with pytest.raises(UsageError, match="outside of the model's folder"):
        open_model(onnx_models.written(model, tmp_path / "m.onnx"))


@pytest.mark.parametrize("data", [b"", b"PK\3\4garbage", b"\x0a\xff\xff\xff\xff\x7f", bytes(1000)])
def test_garbage_is_no_model(tmp_path, data):
    (tmp_path / "m.onnx").write_bytes(data)
    with pytest.raises(UsageError, match="is not an ONNX model"):
        open_model(tmp_path / "m.onnx")


def test_a_file_cut_short_is_one_sentence(tmp_path):
    data = onnx_models.convolution().SerializeToString()
    for length in range(1, len(data), 97):
        (tmp_path / "m.onnx").write_bytes(data[:length])
        with pytest.raises(UsageError):
            open_model(tmp_path / "m.onnx")


def test_nothing_half_written_where_the_disk_does_not_take_it(tmp_path):
    with pytest.raises(OutputExistsError, match="cannot be written"):
        write_model(onnx_models.convolution(), tmp_path / "missing" / "m.onnx", {})
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        open_model(tmp_path / "m.onnx")
    assert onnx.__version__
