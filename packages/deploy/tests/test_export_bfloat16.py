"""bfloat16: inputs in files that carry it, exports compared though the runtime has no kernels for it."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from onnx import numpy_helper
from safetensors.torch import save_file
from test_export_faults import Sound
from torch import nn
from torch.nn import functional as F

from lockstep.core.errors import UsageError
from lockstep.core.finding import Verdict
from lockstep_deploy.calls import array_of, tensor_of
from lockstep_deploy.export_command import export
from lockstep_deploy.inputs import read_inputs
from lockstep_deploy.parity import ParityRuns
from lockstep_deploy.runtime import Settings


class Net(nn.Module):
    """Layers of bfloat16, and one of float32 between."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        y = F.gelu(self.norm(self.linear(x)))
        return (y.float().exp().to(torch.bfloat16) * 2.5).softmax(-1)


def net():
    torch.manual_seed(0)
    return Net().bfloat16(), torch.randn(4, 8).bfloat16()


@pytest.fixture(scope="module")
def sound():
    return Sound(net)


def verdicts(sound, factor, folder):
    """The verdicts on both files with the linear layer's weight scaled."""
    found = []
    for name, model in (("plain", sound.exported.plain), ("as_run", sound.exported.optimized)):
        changed = type(model)()
        changed.CopyFrom(model)
        held = max(changed.graph.initializer, key=lambda one: len(one.raw_data))
        array = numpy_helper.to_array(held)
        held.CopyFrom(numpy_helper.from_array((array * factor).astype(array.dtype), held.name))
        runs = ParityRuns(sound.exported.program, sound.inputs, folder / name, sound.module)
        one = runs.plain(changed) if name == "plain" else runs.as_run(changed, Settings())
        assert one.compared
        found.append(one.comparison.verdict)
    return found


def test_an_export_of_bfloat16_is_compared_though_no_kernel_runs_it(sound, tmp_path):
    assert verdicts(sound, 1.0, tmp_path / "sound") == [Verdict.AGREE] * 2
    assert verdicts(sound, 1.25, tmp_path / "wrong") == [Verdict.DIVERGED] * 2


def test_a_model_that_only_casts_to_bfloat16_is_run_as_it_is(sound, tmp_path):
    class Casts(nn.Module):
        def forward(self, x):
            return x.bfloat16().float() * 3

    casts = Sound(lambda: (Casts(), torch.randn(4, 8)))
    for one, is_emulated in ((casts, False), (sound, True)):
        folder = tmp_path / str(is_emulated)
        runs = ParityRuns(one.exported.program, one.inputs, folder, one.module)
        found = runs.as_run(one.exported.optimized, Settings())
        assert found.comparison.verdict is Verdict.AGREE
        assert runs.is_emulated is is_emulated


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_files_carry_bfloat16(suffix, tmp_path):
    x = net()[1]
    path = tmp_path / f"x{suffix}"
    (torch.save if suffix == ".pt" else save_file)({"x": x}, path)
    found = read_inputs([str(path)], ())["x"]
    assert found.dtype.name == "bfloat16"
    assert torch.equal(tensor_of(found), x)
    np.testing.assert_array_equal(array_of(tensor_of(found)), found)


def test_a_file_of_torch_gives_tensors_alone(tmp_path):
    torch.save([torch.ones(2), torch.zeros(3)], tmp_path / "two.pt")
    assert list(read_inputs([str(tmp_path / "two.pt")], ())) == ["arr_0", "arr_1"]
    torch.save({"x": nn.Linear(2, 2)}, tmp_path / "module.pt")
    with pytest.raises(UsageError, match="cannot be read as"):
        read_inputs([str(tmp_path / "module.pt")], ())


def test_the_verb_says_that_the_file_itself_was_not_run(tmp_path):
    torch.save({"x": net()[1]}, tmp_path / "x.pt")
    done = CliRunner().invoke(
        export,
        [f"{__file__}:net", "-o", str(tmp_path / "a.onnx"), "--inputs", str(tmp_path / "x.pt")],
        standalone_mode=False,
    )
    assert done.return_value == 2, done.output
    said = " ".join(done.output.split())
    assert "AGREE: step 0" in said
    assert "onnxruntime has no kernels for bfloat16 on CPUs" in said
    assert (tmp_path / "a.onnx").is_file()
