"""`lockstep bisect-fusions`: the optimizer that changes numbers is found, and sound ones are not blamed."""

import json
import shlex

import numpy as np
import onnx_models
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from lockstep.cli.main import cli
from lockstep_deploy.bisect_command import bisect_fusions
from lockstep_deploy.fusions import Apart, Trial, bisect


def called(*arguments):
    done = CliRunner().invoke(
        bisect_fusions,
        [str(one) for one in arguments],
        standalone_mode=False,
        help_option_names=["-h", "--help"],
    )
    if done.exception is not None:
        raise done.exception
    return done.output, done.return_value


@pytest.fixture(scope="module")
def convolution(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "conv.onnx"
    return onnx_models.written(onnx_models.convolution(), path)


@pytest.fixture(scope="module")
def gelu(tmp_path_factory):
    """Three layers, of which the runtime may approximate the second on request."""
    weights = np.random.default_rng(0).standard_normal((2, 16, 16)).astype("f4")
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["before"], "before"),
        helper.make_node("Gelu", ["before"], ["act"], "act", domain="com.microsoft"),
        helper.make_node("MatMul", ["act", "w1"], ["y"], "after"),
    ]
    nodes[1].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'mlp.act', 'gelu']")
    nodes[1].metadata_props.add(
        key="pkg.torch.onnx.stack_trace", value='File "net.py", line 7, in forward'
    )
    held = [numpy_helper.from_array(one, f"w{number}") for number, one in enumerate(weights)]
    model = onnx_models.made(nodes, [("x", [4, 16])], [("y", [4, 16])], held)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return onnx_models.written(model, tmp_path_factory.mktemp("models") / "gelu.onnx")


def test_sound_fusions_are_no_fault(convolution):
    said, code = called(convolution)
    assert code == 0
    assert said.startswith("AGREE")
    assert "changed the graph" in said


def test_who_makes_the_rounding_is_found_where_it_is_asked_for(convolution):
    told = json.loads(called(convolution, "--bitwise", "--json")[0])
    names = [one["name"] for one in told["culprits"]]
    assert names
    assert told["left"]["relative"] == 0
    assert any(one["removed"] or one["added"] for one in told["culprits"])
    said, code = called(convolution, "--bitwise")
    assert code == 1
    assert f"--disable {names[0]}" in said.splitlines()[-1]


@given(st.data())
def test_any_optimizer_at_fault_is_found_in_so_many_trials(data):
    # given optimizers of which some change numbers
    names = [f"O{number}" for number in range(data.draw(st.integers(1, 40)))]
    wrong = set(data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=3)))
    count = []

    def tried(disabled):
        count.append(disabled)
        off = wrong - set(disabled)
        return Trial(disabled, Apart("y", float(len(off)), 1e-3) if off else Apart(), {})

    # when they are searched
    culprits, left = bisect(
        tried, lambda out: [one for one in names if one not in out], (), lambda one: one.times > 10
    )
    # then exactly these are found, each in at most so many steps as halving takes
    assert {one.name for one in culprits} == wrong
    assert left.apart == Apart()
    assert len(count) <= 1 + len(wrong) * (np.ceil(np.log2(len(names))) + 2)


def test_an_optimizer_that_approximates_is_named_at_its_layer(gelu):
    assert called(gelu)[1] == 0
    given = ("--session", "optimization.enable_gelu_approximation=1", "--seed", "7")
    said, code = called(gelu, *given, "--bitwise")
    assert code == 1
    assert "first at Gelu 'act' of mlp.act, net.py:7" in said
    assert "GeluApproximation: with it 'act' is off by rel" in said
    assert "it makes 1 FastGelu of 1 Gelu" in said
    # And the line that leads on runs the model in the same way without it
    words = shlex.split(said.splitlines()[-1])
    assert words[-2:] == ["--disable", "GeluApproximation"]
    assert set(given) < set(words)
    done = CliRunner().invoke(cli, words[words.index("lockstep") + 1 :], standalone_mode=False)
    assert (done.exception, done.return_value) == (None, 0)
