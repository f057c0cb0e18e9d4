"""`lockstep quantize`: a model in fewer bits, with each layer's error held against its width."""

import itertools
import json
import logging
from dataclasses import replace

import numpy as np
import onnx
import onnx_models
import pytest
from click.testing import CliRunner
from digits_models import LeNet, SmallResNet, exported
from onnx import helper, numpy_helper

from lockstep.cli.main import main as command_line
from lockstep.core.errors import UsageError
from lockstep_deploy.engines import engine
from lockstep_deploy.model_file import open_model
from lockstep_deploy.quantize import errors as errors_of_layers
from lockstep_deploy.quantize.build import Plan, quantized_model
from lockstep_deploy.quantize.calibration import read_samples
from lockstep_deploy.quantize.errors import LayerError, Standing, layer_errors
from lockstep_deploy.quantize.layers import layers_of
from lockstep_deploy.quantize.screen import Answer, Floor, headline, render
from lockstep_deploy.quantize.static import Calibration
from lockstep_deploy.quantize.task import Outcome
from lockstep_deploy.quantize_command import quantize
from lockstep_deploy.runtime import Session

ANYWHERE = ("--reduce-range",)
"""On a processor without VNNI, onnxruntime's 8-bit kernels saturate, and a model of another width is worse there."""


@pytest.fixture(scope="module")
def lenet():
    return exported(LeNet)


def run(model, output, *options, standalone=False):
    result = CliRunner().invoke(
        quantize,
        [str(model), "-o", str(output), "--json", *map(str, options)],
        standalone_mode=standalone,
    )
    if result.exception is not None:
        raise result.exception
    return result.return_value, json.loads(result.stdout)


@pytest.fixture(scope="module")
def judged(lenet):
    """Errors of LeNet at a width, and of what a fault makes of the quantised model."""
    file = open_model(lenet.model)
    layers = layers_of(file.proto)
    samples = read_samples([str(lenet.calibrate)], file.inputs, option="--ranges-from")

    def errors(bits, fault=None, *, static=True):
        plan = Plan(
            dict.fromkeys((one.name for one in layers), bits),
            Calibration(samples, reduce_range=True) if static else None,
        )
        quantised = quantized_model(file.proto, layers, plan)
        if fault is not None:
            fault(quantised)
        return {str(one): one for one in layer_errors(file.proto, quantised, layers, plan, samples)}

    return errors


@pytest.mark.parametrize("network", [LeNet, SmallResNet])
def test_eight_bits_cost_what_is_said_of_them(network, tmp_path):
    """How much that is depends on the network, and on the processor that trained it."""
    model = exported(network)
    output = tmp_path / "int8.onnx"
    options = (
        "--ranges-from",
        model.calibrate,
        "--inputs",
        model.test,
        "--reduce-range",
        "--accept",
    )
    code, found = run(model.model, output, *options)
    outcome = found["outcome"]
    assert code == 0, found["headline"]
    assert outcome["size_bytes"] < outcome["size_before_bytes"]
    # Both files themselves give what is said of them.
    before, after = (_logits(path, model.test) for path in (model.model, output))
    labels = np.load(model.test)["labels"]
    accuracies = [(one.argmax(1) == labels).mean() for one in (before, after)]
    assert accuracies == pytest.approx([outcome["accuracy_before"], outcome["accuracy"]])
    sqnr = 10 * np.log10((before**2).sum() / ((after - before) ** 2).sum())
    assert outcome["sqnr_db"] == pytest.approx(sqnr, abs=0.1)
    assert ("accuracy falls" in found["headline"]) is bool(accuracies[1] < accuracies[0])
    assert open_model(output).facts["quantized"]["activations"] == 8


def _logits(path, test):
    (found,) = Session(onnx.load(path)).run({"image": np.load(test)["image"]}).values()
    return found.astype("f8")


def test_accuracy_that_falls_is_in_the_headline_with_what_may_bring_it_back():
    def answer(accuracy, *, reduced=False):
        outcome = Outcome(24.0, accuracy, 0.94, 1e-3, 1e-3, 1, 2)
        floor = Floor(lost_points=5)
        return Answer([], outcome, "360 samples of --inputs", reduced=reduced, floor=floor)

    fell, kept = answer(0.92, reduced=True), answer(0.94, reduced=True)
    assert headline(fell).endswith("; accuracy falls by 2.00 points")
    assert "--reduce-range takes a bit" in render(fell, limit=1).plain
    assert "--mixed 40dB" in render(fell, limit=1).plain
    assert "--reduce-range" not in render(answer(0.92), limit=1).plain
    for one in (kept, answer(0.95), answer(None)):
        assert "falls" not in headline(one)
        assert "--mixed" not in render(one, limit=1).plain


@pytest.mark.parametrize(
    ("times", "sizes", "said"),
    [
        ((1e-3, 1e-3), (1, 2), ()),
        ((1.1e-3, 1e-3), (1, 2), ()),
        ((1e-3, 1e-3), (2, 2), ("NOT SMALLER (2 -> 2 bytes)",)),
        ((3e-3, 1e-3), (1, 2), ("SLOWER here (a batch takes 3.0 times as long)",)),
        ((3e-3, 1e-3), (3, 2), ("NOT SMALLER", "SLOWER")),
    ],
)
def test_a_model_that_gains_nothing_says_so_in_the_headline(times, sizes, said):
    told = headline(Answer([], Outcome(40.0, None, None, *times, *sizes), "samples"))
    assert all(one in told for one in said)
    assert said or not ("SMALLER" in told or "SLOWER" in told)


@pytest.mark.parametrize("name", ["small", "lenet"])
def test_weights_that_take_more_than_in_8_bits_say_so_in_the_headline(name, lenet, tmp_path):
    # given a model whose weights are smaller than the operators that put them together, and one with larger ones
    model = lenet.model
    if name == "small":
        weight = numpy_helper.from_array(
            np.random.default_rng(0).standard_normal((40, 40)).astype("f4"), "weight"
        )
        nodes = [
            helper.make_node("Gemm", ["x", "weight"], ["h"], "first"),
            helper.make_node("Tanh", ["h"], ["t"], "tanh"),
            helper.make_node("Gemm", ["t", "weight"], ["y"], "second"),
        ]
        made = onnx_models.made(nodes, [("x", ["batch", 40])], [("y", ["batch", 40])], [weight])
        model = onnx_models.written(made, tmp_path / "model.onnx")
    sizes, told = {}, {}
    for bits in (3, 8):
        options = ("--bits", bits, "--weight-only", "--accept")
        _, found = run(model, tmp_path / f"{bits}.onnx", *options)
        sizes[bits], told[bits] = found["outcome"]["size_bytes"], found["headline"]
    # then that is told of the former alone
    words = f"NOT SMALLER than with --bits 8, which takes {sizes[8]:,} bytes"
    assert (words in told[3], sizes[3] >= sizes[8]) == (
        (True,) * 2 if name == "small" else (False,) * 2
    )
    assert "than with" not in told[8]


def test_a_target_that_float32_alone_reaches_quantises_nothing_and_is_no_success(lenet, tmp_path):
    code, found = run(
        lenet.model, tmp_path / "none.onnx", "--ranges-from", lenet.calibrate, "--mixed", "120dB", "--bits", 4
    )  # fmt: skip
    assert found["headline"].startswith("NOTHING QUANTISED: of the plans that were tried, float32")
    assert code == 2


def test_a_library_does_not_set_up_the_logs_of_all_others(tmp_path, monkeypatch):
    # given a library that shows every line of everybody's logs once it is imported
    (tmp_path / "loud_engine.py").write_text(
        "import logging\nlogging.basicConfig(level=logging.INFO, force=True)\nloaded = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = list(logging.root.handlers), logging.root.level
    # when it is loaded as an engine, then logs go on as they did
    assert engine("loud_engine").loaded
    assert (logging.root.handlers, logging.root.level) == before


@pytest.mark.parametrize(
    ("accuracy", "sqnr", "options", "below"),
    [
        (None, 19.9, (None, None), True),
        (None, 20.0, (None, None), False),
        (None, 12.0, (10.0, None), False),
        (None, 24.0, (25.0, None), True),
        (None, 3.0, (None, np.inf), False),
        (0.93, 3.0, (None, None), False),
        (0.92, 40.0, (None, None), True),
        (0.92, 40.0, (None, 3.0), False),
        (None, np.nan, (None, None), True),
    ],
)
def test_a_model_below_its_floor_is_named_with_the_cure(accuracy, sqnr, options, below):
    outcome = Outcome(sqnr, accuracy, None if accuracy is None else 0.94, 1e-3, 1e-3, 1, 2)
    answer = Answer([], outcome, "samples", floor=Floor.of(*options), per_channel=False)
    assert answer.is_below is below
    assert ("BELOW THE FLOOR" in headline(answer)) is below
    assert ("--per-channel" in render(answer, limit=1).plain) is (below or accuracy is not None)


def test_one_step_for_channels_of_other_sizes_is_below_the_floor(tmp_path):
    # given a depth-wise convolution whose channels have weights of very different sizes, and inputs that even them out
    draw = np.random.default_rng(0)
    sizes = np.array([1, 1e-1, 1e-3, 1e-3], dtype="f4")[:, None, None, None]
    weight = draw.standard_normal((4, 1, 3, 3)).astype("f4") * sizes
    node = helper.make_node("Conv", ["x", "weight"], ["y"], "conv", group=4)
    held = [numpy_helper.from_array(weight, "weight")]
    model = onnx_models.made([node], [("x", ["n", 4, 8, 8])], [("y", ["n", 4, 6, 6])], held)
    path = onnx_models.written(model, tmp_path / "model.onnx")
    x = draw.standard_normal((4, 4, 8, 8)).astype("f4") / sizes[:, 0]
    samples = samples_of(tmp_path, x=x.astype("f4"))
    # when it is quantised with one step for all channels, and with one for each
    given = ("--inputs", samples, "--weight-only")
    code, found = run(path, tmp_path / "tensor.onnx", *given, "--per-tensor")
    better, _ = run(path, tmp_path / "channel.onnx", *given)
    # then the first is below the floor, its layer is named, and the second is not
    assert (code, better) == (1, 0)
    assert "BELOW THE FLOOR" in found["headline"]
    assert "worst layers: conv" in found["headline"]
    assert run(path, tmp_path / "any.onnx", *given, "--per-tensor", "--accept")[0] == 0


def two_results(tmp_path, share):
    """A model of two matrix products on inputs of their own; the first result takes a share of its product."""
    draw = np.random.default_rng(0)
    held = [
        numpy_helper.from_array(draw.standard_normal((16, 16)).astype("f4"), name)
        for name in ("first", "second")
    ] + [numpy_helper.from_array(np.float32(share), "share")]
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["found"], "narrow"),
        helper.make_node("MatMul", ["y", "second"], ["other"], "wide"),
        helper.make_node("Mul", ["found", "share"], ["part"], "share"),
        helper.make_node("Add", ["part", "other"], ["mixed"], "mixed"),
        helper.make_node("ArgMax", ["found"], ["class"], "class", axis=-1, keepdims=0),
    ]
    inputs = [("x", ["n", 16]), ("y", ["n", 16])]
    model = onnx_models.made(nodes, inputs, [("mixed", ["n", 16])], held)
    model.graph.output.add(name="class").type.tensor_type.elem_type = onnx.TensorProto.INT64
    return model, draw.standard_normal((64, 16)).astype("f4")


@pytest.mark.parametrize(("share", "floor"), [(1.0, 1), (1e-3, 0)])
def test_a_clipped_layer_is_in_the_headline_with_its_cure_and_fails_below_the_floor(
    tmp_path, share, floor
):
    # given ranges from samples that are a tenth of what the model meets at one input
    model, x = two_results(tmp_path, share)
    del model.graph.output[1], model.graph.node[-1]
    path = onnx_models.written(model, tmp_path / "model.onnx")
    small = samples_of(tmp_path, x=x / 10, y=x).rename(tmp_path / "small.npz")
    large = samples_of(tmp_path, x=x, y=x)
    given = ("--ranges-from", small, "--inputs", large, "--reduce-range")
    # when it is quantised, and the layer's share of the results is whole, or a thousandth
    code, found = run(path, tmp_path / "int8.onnx", *given)
    # then it fails where the results are below the floor, and the layer and the cure are named in each case
    assert code == floor, found["headline"]
    assert ("BELOW THE FLOOR" in found["headline"]) is bool(floor)
    assert "narrow" in found["headline"]
    assert "clipped" in found["headline"]
    assert "--ranges-from samples like those it meets" in found["headline"]
    # and with ranges of what it meets, nothing is said
    given = ("--ranges-from", large, "--reduce-range")
    code, found = run(path, tmp_path / "sound.onnx", *given)
    assert code == 0, found["headline"]
    assert "clipped" not in found["headline"]


def test_each_result_holds_the_floor_and_whole_numbers_are_counted(tmp_path):
    # given a result that is large and sound, and classes of a layer whose inputs are clipped
    model, x = two_results(tmp_path, 1e-6)
    path = onnx_models.written(model, tmp_path / "model.onnx")
    small = samples_of(tmp_path, x=np.clip(x, 0, 0.1), y=x).rename(tmp_path / "small.npz")
    large = samples_of(tmp_path, x=x, y=x)
    given = ("--ranges-from", small, "--inputs", large, "--reduce-range")
    # when it is quantised by samples that one input lies beyond
    code, found = run(path, tmp_path / "int8.onnx", *given)
    # then the other result is named, by how many of its whole numbers are others
    assert code == 1
    assert "BELOW THE FLOOR: result class at" in found["headline"]
    assert found["outcome"]["sqnr_by_result"]["mixed"] > 30
    # and with ranges of what it meets, both hold the floor
    code, found = run(path, tmp_path / "int16.onnx", "--ranges-from", large, "--bits", 16)
    assert code == 0, found["headline"]


def test_a_result_whose_shape_depends_on_the_values_is_said_not_to_be_compared(tmp_path):
    model, x = two_results(tmp_path, 1.0)
    model.graph.node[-1].CopyFrom(helper.make_node("NonZero", ["over"], ["class"], "class"))
    model.graph.node.insert(1, helper.make_node("Greater", ["found", "share"], ["over"], "over"))
    path = onnx_models.written(model, tmp_path / "model.onnx")
    data = samples_of(tmp_path, x=x, y=x)
    code, found = run(path, tmp_path / "few.onnx", "--ranges-from", data, "--reduce-range")
    assert code == 0, found["headline"]
    assert found["headline"].endswith("depends on the values: class")
    assert found["outcome"]["sqnr_by_result"].keys() == {"mixed"}


def layer(standing, **more):
    numbers = (8, "static", 40.0, 12.0, 12.0, 12.0)
    return LayerError("node", "MatMul", "attention", "", *numbers, 0.0, standing, **more)


@pytest.mark.parametrize(
    ("wide", "cure"), [(0.1, "--activations 16 keeps them"), (0.9, "one of -inf is left out")]
)
def test_a_flushed_layer_is_told_the_cure_that_its_values_say(wide, cure):
    flushed = layer(Standing.FLUSHED, flushed=0.8, flushed_wide=wide)
    outcome = Outcome(30.0, None, None, 1e-3, 1e-3, 1, 2)
    for answer in (
        Answer([flushed, layer(Standing.NOISE)], outcome, "samples"),
        Answer([flushed], replace(outcome, sqnr_db=10.0), "samples"),
    ):
        assert "attention: flushed to zero, 80% of its values" in headline(answer)
        assert cure in headline(answer)
    assert "flushed" not in headline(Answer([layer(Standing.NOISE)], outcome, "samples"))


@pytest.mark.parametrize("bits", [1, 2, 3, 5, 8, 11, 16])
@pytest.mark.parametrize("static", [False, True])
def test_each_width_makes_the_error_that_is_expected_of_it(judged, bits, static):
    for one in judged(bits, static=static).values():
        assert one.standing is Standing.NOISE or (
            static and one.standing in (Standing.CLIPPED, Standing.MEASURED)
        ), one
        assert one.bits == bits
        if one.standing is Standing.NOISE:
            assert one.own > one.expected - 6.1


def changed(name, change):
    def fault(model):
        (found,) = [one for one in model.graph.initializer if one.name == name]
        found.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(found)), name))

    return fault


def shuffled(steps):
    return np.roll(steps * np.linspace(1, 2, steps.size, dtype="f4"), 40)


def other_zero(model):
    (node,) = [one for one in model.graph.node if one.name == "image_DequantizeLinear"]
    node.input[2] = "another"
    model.graph.initializer.append(numpy_helper.from_array(np.uint8(40), "another"))


def other_bias(model):
    node = next(one for one in model.graph.node if one.op_type == "Conv")
    del node.input[2]


FAULTS = {
    "a step that is wrong": ("conv2", changed("conv2.weight_scale", lambda a: a * np.float32(1.5))),
    "steps of the wrong channels": ("fc1", changed("fc1.weight_scale", shuffled)),
    "codes in another order": ("conv2", changed("conv2.weight_quantized", lambda a: a[::-1].copy())),
    "a zero point that is wrong": ("conv1", other_zero),
    "a bias that was dropped": ("conv1", other_bias),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_no_rounding_makes_is_a_fault_at_its_layer_alone(judged, name):
    layer, fault = FAULTS[name]
    found = judged(8, fault)
    assert [one for one in found if found[one].standing is Standing.FAULT] == [layer]
    assert found[layer].own < found[layer].expected - 6


def test_a_range_that_is_too_small_is_said_to_clip(judged):
    found = judged(8, changed("image_zero_point", lambda a: a + np.uint8(40)))
    assert found["conv1"].standing is Standing.CLIPPED
    assert found["conv1"].clipped > 0.01


def test_errors_are_those_of_the_modules_that_were_exported(judged):
    assert list(judged(8)) == ["conv1", "conv2", "fc1", "fc2"]
    assert judged(8)["conv1"].source.partition(":")[0].endswith("digits_models.py")


def test_weights_alone_need_no_samples_and_the_answer_says_what_was_measured(lenet, tmp_path):
    code, found = run(
        lenet.model, tmp_path / "two.onnx", "--bits", 2, "--weight-only", "--least-sqnr", "30dB"
    )
    assert code == 1
    assert found["first_beyond"] == found["layers"][0]["name"]
    assert "drawn at random, not data of yours" in found["measured_on"]
    assert [one["engine"] for one in found["layers"]] == ["packed"] * 4
    text = (
        CliRunner()
        .invoke(
            quantize,
            [str(lenet.model), "-o", str(tmp_path / "text.onnx"), "--bits", "2", "--weight-only"],
        )
        .output
    )
    assert "2 bits are four levels" in text


def test_matrix_products_are_kept_in_blocks_where_the_runtime_has_the_width(tmp_path):

    model = onnx_models.written(onnx_models.convolution(), tmp_path / "model.onnx")
    code, found = run(model, tmp_path / "four.onnx", "--bits", 4, "--weight-only", "--accept")
    assert code == 0, found["headline"]
    assert {one["op"]: one["engine"] for one in found["layers"]} == {
        "Conv": "packed",
        "MatMul": "blocks",
    }
    assert "MatMulNBits" in {node.op_type for node in onnx.load(tmp_path / "four.onnx").graph.node}


def samples_of(tmp_path, **arrays):
    np.savez(tmp_path / "samples.npz", **arrays)
    return tmp_path / "samples.npz"


ONES = np.ones((4, 1, 8, 8), "f4")
RANDOM = np.random.default_rng(0).random((4, 1, 8, 8)).astype("f4")
BAD_SAMPLES = {
    "empty": ({"image": ONES[:0]}, "image is empty"),
    "constant": ({"image": ONES}, "is 1 everywhere, which gives no range"),
    "NaN": (
        {"image": np.where(RANDOM > 0.9, np.nan, RANDOM).astype("f4")},
        "that are NaN or inf, the first in sample 0",
    ),
    "other names": ({"picture": RANDOM, "depth": RANDOM}, "lacks image:float32[batch,1,8,8]"),
    "another shape": ({"image": RANDOM[:, :, :4]}, "has the shape [4, 1, 4, 8]"),
    "another dtype": ({"image": RANDOM.astype("f8")}, "is of float64"),
    "labels of another count": (
        {"image": RANDOM, "labels": np.arange(3)},
        "one whole number a sample, [4]",
    ),
    "labels that are no class": (
        {"image": RANDOM, "labels": np.full(4, 10)},
        "labels from 10 to 10",
    ),
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_samples_that_calibrate_wrongly_are_refused_in_a_sentence(lenet, name, tmp_path, capsys):
    arrays, said = BAD_SAMPLES[name]
    output = tmp_path / "out.onnx"
    code = command_line(
        [
            "quantize",
            str(lenet.model),
            "-o",
            str(output),
            "--ranges-from",
            str(samples_of(tmp_path, **arrays)),
        ]
    )
    assert code == 2
    assert said in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--bits", "17", "--weight-only"], "--bits 17: weights are quantised to 1 to 16 bits"),
        ([], "--ranges-from FILE gives the samples"),
        (["--weight-only", "--activations", "8"], "exclude each other"),
        (["--ranges-from", "gone.npz"], "gone.npz"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(lenet, options, said, tmp_path, capsys):
    assert (
        command_line(["quantize", str(lenet.model), "-o", str(tmp_path / "out.onnx"), *options])
        == 2
    )
    assert said in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_mixed_widths_reach_their_target_and_say_what_each_step_cost(lenet, tmp_path):
    options = ("--bits", 3, "--weight-only", "--inputs", lenet.test, "--mixed", "30dB")
    code, found = run(lenet.model, tmp_path / "mixed.onnx", *options)
    assert code == 0, found["headline"]
    assert found["outcome"]["sqnr_db"] >= 30
    assert 1 < len(found["trials"]) <= 2 * 2 + 4
    assert not found["trials"][0]["reaches"]
    assert all(
        one["outcome"]["size_bytes"] > 0 and one["outcome"]["time_s"] > 0 for one in found["trials"]
    )
    assert found["outcome"]["size_bytes"] < found["outcome"]["size_before_bytes"]


def test_a_mask_that_takes_the_whole_range_is_said_to_flush_the_scores(tmp_path):
    draw = np.random.default_rng(0)
    weight = numpy_helper.from_array(draw.standard_normal((16, 16)).astype("f4"), "weight")
    mask = np.triu(np.full((16, 16), np.finfo("f4").min, "f4"), 1)
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["scores"], "scores"),
        helper.make_node("Add", ["scores", "mask"], ["masked"], "mask"),
        helper.make_node("Softmax", ["masked"], ["shares"], "shares", axis=-1),
    ]
    held = [weight, numpy_helper.from_array(mask, "mask")]
    model = onnx_models.made(
        nodes, [("x", ["batch", 16, 16])], [("shares", ["batch", 16, 16])], held
    )
    path = onnx_models.written(model, tmp_path / "attention.onnx")
    data = samples_of(tmp_path, x=draw.standard_normal((8, 16, 16)).astype("f4"))
    _, found = run(path, tmp_path / "int16.onnx", "--bits", 16, "--ranges-from", data)
    standings = {one["name"]: one["standing"] for one in found["layers"]}
    assert standings["scores"] == "noise"
    assert standings["shares"] == "flushed to zero"
    _, alone = run(path, tmp_path / "int4.onnx", "--bits", 5, "--weight-only", "--inputs", data)
    assert alone["not_quantised"] == {"mask": 16 * 16 * 4}
    assert {one["standing"] for one in alone["layers"]} == {"noise"}


def test_a_mask_of_infinities_stays_in_float32_and_is_no_fault(tmp_path):
    draw = np.random.default_rng(0)
    held = [
        numpy_helper.from_array(draw.standard_normal((16, 16)).astype("f4"), "weight"),
        numpy_helper.from_array(np.triu(np.full((16, 16), -np.inf, "f4"), 1), "mask"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["scores"], "scores"),
        helper.make_node("Add", ["scores", "mask"], ["masked"], "mask"),
        helper.make_node("Softmax", ["masked"], ["shares"], "shares", axis=-1),
    ]
    shape = ["batch", 16, 16]
    model = onnx_models.made(nodes, [("x", shape)], [("shares", shape)], held)
    path = onnx_models.written(model, tmp_path / "attention.onnx")
    data = samples_of(tmp_path, x=draw.standard_normal((8, 16, 16)).astype("f4"))
    code, found = run(path, tmp_path / "int8.onnx", "--ranges-from", data, *ANYWHERE)
    assert code == 0
    assert {one["standing"] for one in found["layers"]} <= {"noise", ""}


def test_a_vector_that_nodes_share_takes_no_name_of_another_value(tmp_path):
    """onnxruntime would call its copy of `bias` `bias0`, and the value of that name would be lost."""
    draw = np.random.default_rng(0)
    held = [
        numpy_helper.from_array(draw.standard_normal(shape).astype("f4"), name)
        for name, shape in (("first", (8, 8, 1, 1)), ("second", (8, 8, 1, 1)), ("bias", (8,)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "first", "bias"], ["a"], "a"),
        helper.make_node("Conv", ["a", "second", "bias"], ["b"], "b"),
        helper.make_node("Sigmoid", ["b"], ["bias0"], "gate"),
        helper.make_node("Mul", ["b", "bias0"], ["y"], "silu"),
    ]
    shape = ["batch", 8, 4, 4]
    model = onnx_models.made(nodes, [("x", shape)], [("y", shape)], held)
    path = onnx_models.written(model, tmp_path / "shared.onnx")
    data = samples_of(tmp_path, x=draw.standard_normal((8, 8, 4, 4)).astype("f4"))
    code, found = run(path, tmp_path / "int8.onnx", "--ranges-from", data, *ANYWHERE)
    made = open_model(tmp_path / "int8.onnx").proto
    assert code == 0
    assert "Sigmoid" in {node.op_type for node in made.graph.node}
    assert found["outcome"]["worst_error"]


def test_a_weight_that_layers_share_is_kept_once(tmp_path):
    draw = np.random.default_rng(0)
    held = [numpy_helper.from_array(draw.standard_normal((64, 64)).astype("f4"), "w")]
    names = ["x", *(f"y{at}" for at in range(6))]
    nodes = [
        helper.make_node("MatMul", [one, "w"], [other], other)
        for one, other in itertools.pairwise(names)
    ]
    model = onnx_models.made(nodes, [("x", ["b", 64])], [(names[-1], ["b", 64])], held)
    path = onnx_models.written(model, tmp_path / "tied.onnx")
    data = samples_of(tmp_path, x=draw.standard_normal((8, 64)).astype("f4"))
    _, found = run(path, tmp_path / "q.onnx", "--bits", 5, "--weight-only", "--inputs", data)
    assert len(found["layers"]) == 6
    assert {one["standing"] for one in found["layers"]} == {"noise"}
    packed = [one for one in open_model(tmp_path / "q.onnx").proto.graph.initializer
              if one.name.endswith(".planes")]  # fmt: skip
    assert len(packed) == 1


def test_a_transposed_convolution_of_groups_with_a_bias_is_quantised(tmp_path):
    draw = np.random.default_rng(0)
    held = [
        numpy_helper.from_array(draw.standard_normal(shape).astype("f4"), name)
        for name, shape in (("w", (8, 4, 2, 2)), ("b", (16,)))
    ]
    nodes = [helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], "up", group=4)]
    shape = ["n", 8, 4, 4]
    model = onnx_models.made(nodes, [("x", shape)], [("y", ["n", 16, 5, 5])], held)
    convolved = helper.make_node("Conv", ["y", "c"], ["z"], "conv")
    model.graph.node.append(convolved)
    model.graph.initializer.append(
        numpy_helper.from_array(draw.standard_normal((2, 16, 1, 1)).astype("f4"), "c")
    )
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("z", 1, ["n", 2, 5, 5]))
    path = onnx_models.written(model, tmp_path / "up.onnx")
    data = samples_of(tmp_path, x=draw.standard_normal((8, 8, 4, 4)).astype("f4"))
    code, found = run(path, tmp_path / "q.onnx", "--ranges-from", data)
    assert code == 0
    assert [one["bits"] for one in found["layers"] if one["name"] == "up"] == [8]


def test_nodes_and_edges_of_a_graph_are_one_call(tmp_path):
    draw = np.random.default_rng(0)
    held = [numpy_helper.from_array(draw.standard_normal((6, 8)).astype("f4"), "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "h"),
        helper.make_node("Gather", ["h", "edges"], ["y"], "sent", axis=0),
    ]
    inputs = [("x", [10, 6]), ("edges", [2, 30])]
    model = onnx_models.made(nodes, inputs, [("y", [2, 30, 8])], held)
    model.graph.input[1].type.tensor_type.elem_type = 7
    path = onnx_models.written(model, tmp_path / "graph.onnx")
    x = draw.standard_normal((10, 6)).astype("f4")
    data = samples_of(tmp_path, x=x, edges=draw.integers(0, 10, (2, 30)))
    code, found = run(path, tmp_path / "q.onnx", "--ranges-from", data, *ANYWHERE)
    assert code == 0
    assert "1 sample" in found["measured_on"]
    refused = samples_of(tmp_path, x=x[:9], edges=draw.integers(0, 9, (2, 30)))
    with pytest.raises(UsageError, match="give as many of each"):
        run(path, tmp_path / "q2.onnx", "--ranges-from", refused)


def test_a_model_that_draws_is_measured_with_the_same_numbers_in_both(tmp_path):
    draw = np.random.default_rng(0)
    held = [numpy_helper.from_array(draw.standard_normal((16, 16)).astype("f4"), "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["mean"], "mean"),
        helper.make_node("RandomNormalLike", ["mean"], ["noise"], "noise"),
        helper.make_node("Add", ["mean", "noise"], ["y"], "sample"),
    ]
    model = onnx_models.made(nodes, [("x", ["n", 16])], [("y", ["n", 16])], held)
    path = onnx_models.written(model, tmp_path / "drawing.onnx")
    data = samples_of(tmp_path, x=draw.standard_normal((8, 16)).astype("f4"))
    for how in (["--ranges-from", data], ["--dynamic-ranges", "--inputs", data]):
        code, found = run(path, tmp_path / "q.onnx", "--force", *how, *ANYWHERE)
        assert code == 0
        assert found["outcome"]["sqnr_db"] > 30
        made = open_model(tmp_path / "q.onnx").proto
        noise = next(node for node in made.graph.node if node.op_type == "RandomNormalLike")
        assert "seed" not in {one.name for one in noise.attribute}


def every_form():
    """Layers of each form beside each other: strides, groups, transposed, weights on either side, a large bias."""
    draw = np.random.default_rng(1)

    def held(name, *shape, scale=1.0):
        return numpy_helper.from_array((draw.standard_normal(shape) * scale).astype("f4"), name)

    weights = [
        held("depthwise.w", 8, 1, 3, 3), held("strided.w", 5, 8, 3, 3), held("transposed.w", 8, 6, 3, 3),
        held("grouped.w", 8, 3, 2, 2), held("gemm.w", 648, 10), held("gemm_t.w", 10, 648), held("left.w", 7, 9),
        held("right.w", 9, 33), held("biased.w", 4, 8, 1, 1, scale=0.01), held("biased.b", 4, scale=300.0),
    ]  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "depthwise.w"], ["depthwise"], "depthwise", group=8),
        helper.make_node(
            "Conv",
            ["x", "strided.w"],
            ["strided"],
            "strided",
            strides=[2, 2],
            dilations=[2, 2],
            pads=[2, 2, 2, 2],
        ),
        helper.make_node(
            "ConvTranspose", ["x", "transposed.w"], ["transposed"], "transposed", strides=[2, 2]
        ),
        helper.make_node("ConvTranspose", ["x", "grouped.w"], ["grouped"], "grouped", group=2),
        helper.make_node("Flatten", ["x"], ["flat"], "flat"),
        helper.make_node("Gemm", ["flat", "gemm.w"], ["gemm"], "gemm"),
        helper.make_node("Gemm", ["flat", "gemm_t.w"], ["gemm_t"], "gemm_t", transB=1),
        helper.make_node("MatMul", ["left.w", "x"], ["left"], "left"),
        helper.make_node("MatMul", ["x", "right.w"], ["right"], "right"),
        helper.make_node("Conv", ["x", "biased.w", "biased.b"], ["biased"], "biased"),
    ]
    names = [node.output[0] for node in nodes if node.op_type != "Flatten"]
    shapes = [4, 4, 4, 4, 2, 2, 4, 4, 4]
    outputs = [
        (name, ["batch", *[None] * (rank - 1)]) for name, rank in zip(names, shapes, strict=True)
    ]
    return onnx_models.made(nodes, [("x", ["batch", 8, 9, 9])], outputs, weights)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("static", [8, 16, None])
@pytest.mark.parametrize(
    "bits",
    [4, 8, 16, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (1, 2, 3, 6, 9, 12))],
)
def test_no_form_of_a_layer_is_taken_for_a_fault(bits, static, per_channel, tmp_path):
    file = open_model(onnx_models.written(every_form(), tmp_path / "forms.onnx"))
    layers = layers_of(file.proto)
    data = samples_of(
        tmp_path, x=np.random.default_rng(0).standard_normal((16, 8, 9, 9)).astype("f4")
    )
    samples = read_samples([str(data)], file.inputs, option="--ranges-from")
    calibration = (
        None
        if static is None
        else Calibration(samples, bits=static, per_channel=per_channel, reduce_range=True)
    )
    plan = Plan(dict.fromkeys((one.name for one in layers), bits), calibration, per_channel)
    errors = layer_errors(
        file.proto, quantized_model(file.proto, layers, plan), layers, plan, samples
    )
    assert len(errors) == len(layers) == 9
    assert {one.name: one.standing for one in errors if one.standing is not Standing.NOISE} == {}


def test_layers_in_several_graphs_and_small_batches_give_the_same_errors(judged, monkeypatch):
    whole = judged(6)
    monkeypatch.setattr(errors_of_layers, "_GROUP_BYTES", 1)
    monkeypatch.setattr(errors_of_layers, "_BATCH_BYTES", 1 << 18)
    parts = judged(6)
    assert list(parts) == list(whole)
    for name, one in parts.items():
        assert (one.own, one.fused, one.expected) == pytest.approx(
            (whole[name].own, whole[name].fused, whole[name].expected), abs=1e-3
        )


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_each_method_chooses_ranges_that_keep_the_results(lenet, method, tmp_path):
    options = (
        "--ranges-from",
        lenet.calibrate,
        "--inputs",
        lenet.test,
        "--reduce-range",
        "--method",
        method,
    )
    _, found = run(lenet.model, tmp_path / "out.onnx", *options)
    assert not [one for one in found["layers"] if one["standing"] in ("fault", "kernels")]
    assert found["outcome"]["sqnr_db"] > 20  # 39 of a network that learned elsewhere
    assert open_model(tmp_path / "out.onnx").facts["quantized"]["method"] == method


def test_ranges_that_are_taken_at_run_time_need_no_samples(lenet, tmp_path):
    # given a net of two linear layers
    draw = np.random.default_rng(0)
    held = [numpy_helper.from_array(draw.standard_normal((8, 16)).astype("f4"), "a.weight"),
            numpy_helper.from_array(draw.standard_normal((4, 8)).astype("f4"), "b.weight")]  # fmt: skip
    nodes = [helper.make_node("Gemm", ["x", "a.weight"], ["y"], "a", transB=1),
             helper.make_node("Gemm", ["y", "b.weight"], ["z"], "b", transB=1)]  # fmt: skip
    model = onnx_models.made(nodes, [("x", ["n", 16])], [("z", ["n", 4])], held)
    path = onnx_models.written(model, tmp_path / "model.onnx")
    # when its weights take 8 bits and the ranges of its activations are taken as it runs
    code, found = run(path, tmp_path / "dynamic.onnx", "--dynamic-ranges", "--accept")
    # then both layers are integer products, and the answer has size, time and error
    assert code == 0, found["headline"]
    operators = {node.op_type for node in onnx.load(tmp_path / "dynamic.onnx").graph.node}
    assert "MatMulInteger" in operators
    assert [one["name"] for one in found["layers"]] == ["a", "b"]
    assert found["headline"].startswith("QUANTISED: 2 layers measured, not judged")
    assert min(found["outcome"][one] for one in ("size_bytes", "time_s", "sqnr_db")) > 0
    # and what such ranges have no use for is refused
    with pytest.raises(UsageError, match="--dynamic-ranges excludes --mixed"):
        run(path, tmp_path / "no.onnx", "--dynamic-ranges", "--mixed", "30dB")
