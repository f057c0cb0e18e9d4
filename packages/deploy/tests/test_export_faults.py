"""Planted export faults are named at their layer; what was exported soundly stays silent (test_export.py)."""

import numpy as np
import pytest
import small_nets
import torch
from onnx import TensorProto, helper, numpy_helper

from lockstep.core.finding import Verdict
from lockstep_deploy.exporting import Exported, program_of, to_onnx
from lockstep_deploy.model_source import ModelSource, bound
from lockstep_deploy.parity import ParityRuns
from lockstep_deploy.runtime import Level, Settings, optimized_graph


class Sound:
    """A net that was exported soundly."""

    def __init__(self, net, **how):
        module, inputs = net()
        self.module, self.inputs = module.eval(), bound(module, inputs)
        program = program_of(ModelSource("net", self.module), self.inputs)
        self.exported = to_onnx(program, self.inputs, **how)

    def with_fault(self, edit):
        """The model with an edit made to the plain file."""
        model = type(self.exported.plain)()
        model.CopyFrom(self.exported.plain)
        edit(model)
        return Exported(self.exported.program, model, None)

    def compared(self, edit, folder):
        """What is said of the model with a fault."""
        faulty = self.with_fault(edit)
        return (
            ParityRuns(faulty.program, self.inputs, folder, self.module)
            .plain(faulty.plain)
            .comparison
        )


@pytest.fixture(scope="module")
def gpt():
    return Sound(small_nets.gpt)


@pytest.fixture(scope="module")
def resnet():
    return Sound(small_nets.resnet)


def node(model, op, number=0):
    return [one for one in model.graph.node if one.op_type == op][number]


def held(model, name):
    return next(one for one in model.graph.initializer if one.name == name)


def set_held(model, name, change):
    tensor = held(model, name)
    tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)).copy(), name))


def set_attribute(one, name, value):
    kept = [attribute for attribute in one.attribute if attribute.name != name]
    del one.attribute[:]
    one.attribute.extend([*kept, helper.make_attribute(name, value)])


def set_constant(model, wanted, value):
    """Change a constant that a rule wrote for a number of the program."""
    for one in model.graph.node:
        for attribute in one.attribute:
            if one.op_type == "Constant" and attribute.name == "value":
                array = numpy_helper.to_array(attribute.t)
                if array.size == 1 and np.isclose(float(array), wanted):
                    attribute.t.CopyFrom(
                        numpy_helper.from_array(
                            np.asarray(value, dtype=array.dtype), attribute.t.name
                        )
                    )
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if (
            array.size == 1
            and array.dtype.kind == "f"
            and np.isclose(float(array.reshape(-1)[0]), wanted)
        ):
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(array, value), tensor.name))


def through(model, one, *between):
    """Put nodes behind another: each a type and its attributes."""
    name, at = one.output[0], list(model.graph.node).index(one)
    one.output[0] = f"{name}_before"
    last = one.output[0]
    made = []
    for number, (op, attributes) in enumerate(between):
        new = name if number == len(between) - 1 else f"{name}_{number}"
        made.append(helper.make_node(op, [last], [new], **attributes))
        last = new
    for offset, new in enumerate(made):
        model.graph.node.insert(at + 1 + offset, new)


HALF = (("Cast", {"to": TensorProto.FLOAT16}), ("Cast", {"to": TensorProto.FLOAT}))


def on(op, name, value, number=0):
    """Sets an attribute of a node."""
    return lambda model: set_attribute(node(model, op, number), name, value)


def held_as(name, change):
    """Changes what the model holds."""
    return lambda model: set_held(model, name, change)


def behind(op, *between):
    """Puts nodes behind a node."""
    return lambda model: through(model, node(model, op), *between)


TURNED = ("Transpose", {"perm": [0, 2, 1]})

OF_GPT = {
    "eps": (on("LayerNormalization", "epsilon", 0.1), "norm", "layer_norm"),
    "axis of softmax": (on("Softmax", "axis", 1), "attention", "softmax"),
    "another gelu": (on("Gelu", "approximate", "tanh"), "mlp.1", "gelu"),
    "constant of the mask": (lambda m: set_constant(m, -1e9, -1.0), "attention", "masked_fill"),
    "constant of the scale": (lambda m: set_constant(m, 4.0, 3.9), "attention", "div"),
    "half precision in between": (behind("Gelu", *HALF), "mlp.1", "gelu"),
    "axes of transpose": (behind("Softmax", TURNED), "attention", "softmax"),
    "transposed weight": (
        held_as("attention.out.weight", np.transpose),
        "attention.out",
        "out.weight",
    ),
}

OF_RESNET = {
    "pads": (on("Conv", "pads", [2, 1, 0, 1], 1), "blocks.0.conv", "conv2d"),
    "relu left out": (lambda m: _left_out(node(m, "Relu", 1)), "blocks.0", "relu"),
    "statistics": (held_as("blocks.1.norm.running_var", np.flip), "blocks.1.norm", "running_var"),
    "eps of batch norm": (
        on("BatchNormalization", "epsilon", 0.05, 1),
        "blocks.1.norm",
        "batch_norm",
    ),
}


def _left_out(one):
    new = helper.make_node("Identity", one.input, one.output, one.name)
    new.metadata_props.extend(one.metadata_props)
    one.CopyFrom(new)


def _doubled(model):
    one = node(model, "ReduceMean")
    name, at = one.output[0], list(model.graph.node).index(one)
    one.output[0] = f"{name}_before"
    model.graph.node.insert(at + 1, helper.make_node("Add", [one.output[0]] * 2, [name]))


OF_RESNET["a factor"] = (_doubled, "", "mean")
SHORT = {"eps", "constant of the scale", "pads", "statistics"}


def cases(faults):
    return [
        pytest.param(*fault, id=name, marks=() if name in SHORT else pytest.mark.exhaustive)
        for name, fault in faults.items()
    ]


def names(comparison, module, what):
    """Whether the first origin is of this module, and of this operator or tensor."""
    assert comparison.verdict is Verdict.DIVERGED, comparison
    first = comparison.origins[0]
    assert (first.module, what in f"{first.op} {first.tensor}") == (module, True), (
        first.module,
        first.op,
        first.tensor,
    )
    return first


@pytest.mark.parametrize(("edit", "module", "what"), cases(OF_GPT))
def test_a_fault_in_a_transformer_is_named_at_its_layer(gpt, tmp_path, edit, module, what):
    names(gpt.compared(edit, tmp_path), module, what)


@pytest.mark.parametrize(("edit", "module", "what"), cases(OF_RESNET))
def test_a_fault_in_a_convolution_network_is_named_at_its_layer(
    resnet, tmp_path, edit, module, what
):
    names(resnet.compared(edit, tmp_path), module, what)


def test_a_wrong_rule_is_named_with_the_line_that_calls_it(tmp_path):
    from onnxscript import opset20 as op

    def wrong(x, approximate="none"):
        return op.Mul(x, op.Sigmoid(x))

    sound = Sound(small_nets.gpt, rules={torch.ops.aten.gelu.default: wrong})
    first = names(sound.compared(lambda model: None, tmp_path), "mlp.1", "gelu")
    assert "small_nets.py" in first.source


RESULTS_FROM_THE_FAULT_ON = {
    "getitem": ("blocks.0.norm", "batch_norm"),
    "add": ("blocks.0", "add"),
    "relu_1": ("blocks.0", "relu"),
    "relu_2": ("blocks.1", "relu"),
}
"""Values of the program by their name in the graph: module and operator of each."""


@pytest.mark.parametrize(
    ("wide", "level"), [(8, Level.ALL), (16, Level.ALL), (8, Level.BASIC)], ids=str
)
def test_a_wrong_optimisation_is_found_where_its_result_comes_out(wide, level, tmp_path):
    # given a pass that folds a batch norm into the convolution before it, and forgets its scale; which values of the
    # blocks are left depends on the level and, as kernels take channels by 8 or 16, on the width and the processor
    resnet, settings = Sound(lambda: small_nets.resnet(wide)), Settings(level)
    wrong = type(resnet.exported.optimized)()
    wrong.CopyFrom(resnet.exported.optimized)
    set_held(wrong, node(wrong, "Conv", 1).input[1], lambda array: array * 1.01)
    # when it, and the sound one, are compared with the program as they run
    sound, found = (
        ParityRuns(resnet.exported.program, resnet.inputs, tmp_path / name, resnet.module)
        .as_run(model, settings)
        .comparison
        for name, model in (("sound", resnet.exported.optimized), ("wrong", wrong))
    )
    # then the first value from the fault on that this machine's graph still has is named, and nothing of the sound one
    graph = optimized_graph(wrong, settings).graph
    left = {output for one in graph.node for output in one.output}
    where = next(where for name, where in RESULTS_FROM_THE_FAULT_ON.items() if name in left)
    first = names(found, *where)
    assert "small_nets.py" in first.source
    assert sound.verdict is Verdict.AGREE, sound
