"""Models over what one message may be, by a bound that is small here: weights lie beside the file, and verbs work."""

import shutil

import pytest
import torch
from onnx import numpy_helper
from test_export import called
from torch import nn

from lockstep.core.errors import LockstepError
from lockstep_deploy import large_models
from lockstep_deploy.bisect_command import bisect_fusions
from lockstep_deploy.export_command import export
from lockstep_deploy.model_file import open_model
from lockstep_deploy.quantize_command import quantize
from lockstep_deploy.run_command import run
from lockstep_deploy.runtime import Session

SMALL = 8 << 10


def net():
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(8, 300), nn.Tanh(), nn.Linear(300, 5))
    return module, torch.randn(2, 8)


@pytest.fixture
def small_bound(monkeypatch):
    monkeypatch.setattr(large_models, "MOST_IN_ONE", SMALL)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model that was exported under the small bound, and what was said."""
    folder = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_models, "MOST_IN_ONE", SMALL)
        return folder, called(export, f"{__file__}:net", "-o", folder / "net.onnx")


def test_weights_lie_beside_the_file_and_the_export_is_proven(exported, small_bound):
    folder, (said, code) = exported
    module, x = net()
    assert code == 0
    assert said.count("\nAGREE") == 2
    assert (folder / "net.onnx").stat().st_size < SMALL < (folder / "net.onnx.data").stat().st_size
    file = open_model(folder / "net.onnx")
    assert not file.was_changed
    found = Session(file.proto).run({file.inputs[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(next(iter(found.values()))), module(x))


def test_the_bytes_of_a_model_are_written_without_all_of_it_in_memory(exported, small_bound):
    # given a model whose weights are mapped, and the same with its weights inside
    file = open_model(exported[0] / "net.onnx")
    inside = large_models.whole(file.proto)
    held = {one.name: one for one in inside.graph.initializer}
    # then its weights are those of the file, and its pieces are the bytes that protobuf writes
    apart = [one for one in file.proto.graph.initializer if large_models.is_apart(one)]
    assert {one.name for one in apart} >= {"0.weight", "2.weight"}
    for one in apart:
        own = numpy_helper.to_array(held[one.name])
        assert (large_models.array_of_tensor(one) == own).all()
    for model in (file.proto, inside):
        written = b"".join(large_models.pieces_of(model))
        assert written == inside.SerializeToString(deterministic=True)


def test_a_byte_of_the_weights_that_changed_is_seen(exported, small_bound, tmp_path):
    for name in ("net.onnx", "net.onnx.data"):
        shutil.copy(exported[0] / name, tmp_path)
    data = bytearray((tmp_path / "net.onnx.data").read_bytes())
    data[7] ^= 1
    (tmp_path / "net.onnx.data").write_bytes(data)
    assert open_model(tmp_path / "net.onnx").was_changed
    (tmp_path / "net.onnx.data").unlink()
    with pytest.raises(LockstepError, match="put it beside the model"):
        open_model(tmp_path / "net.onnx")


def test_a_wrong_weight_is_named_in_a_large_model_too(small_bound, tmp_path, monkeypatch):
    from lockstep_deploy import exporting

    real = exporting.to_onnx

    def faulty(*given, **options):
        made = real(*given, **options)
        weight = next(one for one in made.plain.graph.initializer if one.name == "2.weight")
        array = large_models.array_of_tensor(weight).copy()
        array[1, 1] += 1
        weight.CopyFrom(numpy_helper.from_array(array, "2.weight"))
        return made

    monkeypatch.setattr(exporting, "to_onnx", faulty)
    said, code = called(export, f"{__file__}:net", "-o", tmp_path / "net.onnx")
    assert code == 1
    assert "2.weight" in said


def test_other_verbs_take_it(exported, small_bound, tmp_path):
    model = exported[0] / "net.onnx"
    assert called(run, model, "--runs", 1)[1] == 0
    assert called(bisect_fusions, model)[1] == 0
    output = tmp_path / "q.onnx"
    for how in (["--weight-only"], ["--dynamic-ranges"]):
        called(quantize, model, "-o", output, "--force", *how)
        assert open_model(output).facts["quantized"]
