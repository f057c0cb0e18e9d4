"""Public architectures are exported and agree by operator: no false alarm."""

import public_nets
import pytest

from lockstep.core.finding import Verdict
from lockstep_deploy.exporting import program_of, to_onnx
from lockstep_deploy.model_source import ModelSource, bound
from lockstep_deploy.parity import ParityRuns
from lockstep_deploy.runtime import Settings

SHORT = {"unet", "detector"}


def cases():
    return [
        pytest.param(
            one, id=one.__name__, marks=() if one.__name__ in SHORT else pytest.mark.exhaustive
        )
        for one in public_nets.EVERY
    ]


@pytest.mark.parametrize("net", cases())
def test_a_sound_export_of_a_public_architecture_agrees(net, tmp_path):
    module, given = net()
    inputs = bound(module.eval(), given)
    exported = to_onnx(program_of(ModelSource(net.__name__, module), inputs), inputs)
    runs = ParityRuns(exported.program, inputs, tmp_path, module)
    plain, as_run = runs.plain(exported.plain), runs.as_run(exported.optimized, Settings())
    assert plain.comparison.verdict is Verdict.AGREE, plain.comparison
    assert plain.compared == plain.operators > 4
    assert as_run.comparison.verdict is Verdict.AGREE, as_run.comparison
    assert as_run.compared >= 3
