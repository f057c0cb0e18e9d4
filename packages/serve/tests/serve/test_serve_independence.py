"""Which models are batched: by a proof from their graph, and never where one instance can see another."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import serve_models
import torch
from batch_models import APART, MIXES, NOT_IN_ONNX
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import EXTENTS, STEPS, OnnxGraph, TorchSteps, grow, onnx_answers

from lockstep_serve.independence import onnx_graph, program_graph
from lockstep_serve.repository import Limits, Repository

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]
QUICK = (
    "perceptron", "convolution, batch norm", "instance norm", "U-Net", "pixel shuffle", "masked mean", "last word",
    "experts by top two", "sorted scores", "products with a bias", "a column set to zero",
)  # fmt: skip
"""Programs that torch exports in a moment."""

Run = Callable[..., list[Any]]


def exported(net: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Any:
    n = torch.export.Dim("n", min=1, max=64)
    shapes: Any = tuple({0: n} for _ in inputs)
    if not isinstance(net, torch.nn.Sequential | torch.nn.TransformerEncoder):
        shapes = (shapes,)
    if isinstance(net, torch.nn.TransformerEncoder):
        shapes = {"src": {0: n}}
    return torch.export.export(net, tuple(inputs), dynamic_shapes=shapes)


def traced(net: torch.nn.Module, inputs: Sequence[torch.Tensor], path: Path) -> Path:
    names = [f"in{at}" for at in range(len(inputs))]
    mode = torch.onnx.TrainingMode.PRESERVE
    axes = {name: {0: "n"} for name in names}
    torch.onnx.export(
        net, tuple(inputs), str(path), input_names=names, dynamic_axes=axes, dynamo=False, training=mode,
        do_constant_folding=False, opset_version=18,
    )  # fmt: skip
    return path


def session_of(model: Path | bytes) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda *given: list(session.run(None, dict(zip(names, given, strict=True))))


def program_of(program: Any) -> Run:
    module = program.module()

    def run(*given: Any) -> list[Any]:
        with torch.no_grad():
            found = module(*map(torch.from_numpy, given))
        return [one.numpy() for one in torch.utils._pytree.tree_leaves(found)]

    return run


def seen_by_neighbours(run: Run, inputs: Sequence[Any], others: Sequence[Any]) -> str:
    """Which instance is given something else beside others, or alone; empty where none is."""
    together = run(*inputs)
    for place in range(len(inputs[0])):
        beside = [np.array(one) for one in others]
        for one, own in zip(beside, inputs, strict=True):
            one[place] = own[place]
        alone = run(*(one[place : place + 1] for one in inputs))
        for value, swapped, single in zip(together, run(*beside), alone, strict=True):
            if value.shape != swapped.shape or single.shape != (1, *value.shape[1:]):
                return f"{place}: {value.shape}, {single.shape}"
            for one in (swapped[place], single[0]):
                if not np.allclose(one, value[place], rtol=1e-3, atol=1e-4, equal_nan=True):
                    return f"{place}: {one}, {value[place]}"
    return ""


def shuffled(inputs: Sequence[Any]) -> list[Any]:
    return [one[np.roll(np.arange(len(one)), 1)] for one in inputs]


@pytest.mark.parametrize("name", APART)
def test_an_ordinary_model_of_onnx_is_proven_and_so_it_is(name: str, tmp_path: Path) -> None:
    # Given a model that keeps its instances apart
    torch.manual_seed(0)
    net, inputs = APART[name]()
    path = traced(net.eval(), inputs, tmp_path / "model.onnx")
    # Then its graph shows it, and no instance is given anything else beside others
    found = onnx_graph.mixing(path)
    assert NOT_IN_ONNX[name] in found if name in NOT_IN_ONNX else found == ""
    plain = [one.numpy() for one in inputs]
    assert seen_by_neighbours(session_of(path), plain, shuffled(plain)) == ""


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.exhaustive) for one in APART],
)
def test_an_ordinary_program_is_proven_and_so_it_is(name: str) -> None:
    torch.manual_seed(0)
    net, inputs = APART[name]()
    program = exported(net.eval(), inputs)
    assert program_graph.mixing(program) == ""
    plain = [one.numpy() for one in inputs]
    assert seen_by_neighbours(program_of(program), plain, shuffled(plain)) == ""


@pytest.mark.parametrize("name", MIXES)
def test_a_model_that_mixes_its_batch_is_refused_with_the_node(name: str, tmp_path: Path) -> None:
    # Given a model that brings its instances together, as a program of torch.export and as ONNX
    torch.manual_seed(0)
    (net, inputs), words = MIXES[name][0](), MIXES[name][1]
    program, path = exported(net, inputs), traced(net, inputs, tmp_path / "model.onnx")
    # Then both graphs say by which node
    for found in (program_graph.mixing(program), onnx_graph.mixing(path)):
        assert found.startswith("node "), found
        assert "the batch: it " in found
        assert words in found


def parsed(text: str, path: Path, opset: int = 18) -> Path:
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    model = onnx.parser.parse_model(f"{header} g {text}")
    path.write_bytes(model.SerializeToString())
    return path


ONNX_APART = {
    "static quantisation": """(float[n,4] x) => (float[n,3] y)
        <float s = {0.02}, uint8 z = {128}, int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3] ws = {0.1,0.2,0.3},
         int8[3] wz = {0,0,0}>
        { q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  v = DequantizeLinear <axis = 1> (w, ws, wz)
          y = MatMul(d, v) }""",
    "whole numbers": """(float[n,4] x) => (float[n,3] y)
        <float s = {0.02}, uint8 z = {128}, int8[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>
        { q = QuantizeLinear(x, s, z)  i = MatMulInteger(q, w, z)  y = Cast <to = 1> (i) }""",
    "sizes by shape": """(float[n,6] x) => (float[n,3,2] y)
        <int64[1] two = {2}, int64[1] rest = {-1}, int64 zero = {0}, int64[1] axes = {0}>
        { s = Shape(x)  b = Gather(s, zero)  u = Unsqueeze(b, axes)  t = Concat <axis = 0> (u, rest, two)
          y = Reshape(x, t) }""",
    "twice as many and back": """(float[n,6] x) => (float[n,6] y)
        <int64[1] two = {2}, int64[1] rest = {-1}, int64[1] one = {1}>
        { b = Shape <start = 0, end = 1> (x)  d = Mul(b, two)  t = Concat <axis = 0> (d, rest)  r = Reshape(x, t)
          s = Softmax <axis = -1> (r)  v = Concat <axis = 0> (b, rest)  y = Reshape(s, v) }""",
    "a free length": """(float[n,t,4] x) => (float[n,t,4] y)
        { a = Transpose <perm = [0,2,1]> (x)  m = MatMul(x, a)  s = Softmax <axis = -1> (m)  y = MatMul(s, x) }""",
    "old softmax": """(float[n,2,3] x) => (float[n,2,3] y) { y = Softmax <axis = 1> (x) }""",
    "a constant for each": """(float[n,4] x) => (float[n,4] y) <float[1,4] c = {1,2,3,4}>
        { s = Shape(x)  e = Expand(c, s)  f = ConstantOfShape(s)  a = Add(x, e)  y = Sub(a, f) }""",
}  # fmt: skip


@pytest.mark.parametrize("name", ONNX_APART)
def test_an_ordinary_graph_of_onnx_is_proven(name: str, tmp_path: Path) -> None:
    path = parsed(ONNX_APART[name], tmp_path / "model.onnx", 11 if name.startswith("old") else 18)
    assert onnx_graph.mixing(path) == ""
    model = onnx.load(path)
    dims = [one.dim_value or 3 for one in model.graph.input[0].type.tensor_type.shape.dim]
    x, z = np.random.default_rng(0).standard_normal((2, 4, *dims[1:])).astype("float32")
    assert seen_by_neighbours(session_of(path), [x], [z]) == ""


ONNX_MIXES = {
    "DynamicQuantizeLinear": "{ q, s, z = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s, z) }",
    "BatchNormalization": """<float[4] a = {1,1,1,1}>
        { y, m, v = BatchNormalization <training_mode = 1> (x, a, a, a, a) }""",
    "MaxPool": """<int64[2] s = {-1, 4}, int64[2] a = {1, 2}> { u = Unsqueeze(x, a)
        p, i = MaxPool <kernel_shape = [1, 1]> (u)  f = Cast <to = 1> (i)  y = Reshape(f, s) }""",
    "Upsample": "<float[2] s = {2, 1}> { y = Upsample(x, s) }",
    "MeanVarianceNormalization": "{ y = MeanVarianceNormalization <axes = [0]> (x) }",
    "RandomNormalLike": "{ r = RandomNormalLike(x)  y = Add(x, r) }",
    "RandomUniform": "{ r = RandomUniform <shape = [1, 4]> ()  y = Add(x, r) }",
    "Dropout": "<float r = {0.5}, bool t = {1}> { y = Dropout(x, r, t) }",
    "ReduceMax": "{ m = ReduceMax <keepdims = 0> (x)  y = Div(x, m) }",
    "TopK": "<int64[1] k = {1}> { y, i = TopK <axis = 0> (x, k) }",
    "ArgMax": "{ i = ArgMax <axis = 0, keepdims = 0> (x)  f = Cast <to = 1> (i)  y = Add(x, f) }",
    "CumSum": "<int64 a = {0}> { y = CumSum(x, a) }",
    "Softmax": "{ y = Softmax <axis = 0> (x) }",
    "Cast": "{ s = Size(x)  f = Cast <to = 1> (s)  y = Mul(x, f) }",
    "NonZero": "{ i = NonZero(x)  f = Cast <to = 1> (i)  m = ReduceMax <keepdims = 0> (f)  y = Add(x, m) }",
    "Compress": "<bool[2] c = {1, 0}> { y = Compress <axis = 0> (x, c) }",
    "Unique": "{ u = Unique(x)  m = ReduceMax <keepdims = 0> (u)  y = Add(x, m) }",
    "Slice": "<int64[1] a = {0}, int64[1] b = {-1}, int64[1] e = {-9223372036854775807}> { y = Slice(x, b, e, a, b) }",
    "Gather": "<int64[1] i = {0}> { f = Gather <axis = 0> (x, i)  y = Sub(x, f) }",
    "GatherND": "<int64[1, 1] i = {0}> { f = GatherND (x, i)  y = Sub(x, f) }",
    "ScatterND": "<int64[1, 1] i = {0}, float[1, 4] u = {1,1,1,1}> { y = ScatterND (x, i, u) }",
    "Reshape": "{ s = Shape(x)  t = Transpose(x)  y = Reshape(t, s) }",
    "MatMul": "{ t = Transpose(x)  m = MatMul(t, x)  y = MatMul(x, m) }",
    "Gemm": "{ m = Gemm <transA = 1> (x, x)  y = MatMul(x, m) }",
    "Einsum": """{ m = Einsum <equation = "bi,bj->ij"> (x, x)  y = MatMul(x, m) }""",
    "Pad": "<int64[4] p = {1,0,0,0}> { y = Pad(x, p) }",
    "Tile": "<int64[2] p = {2,1}> { y = Tile(x, p) }",
    "Concat": "{ y = Concat <axis = 0> (x, x) }",
    "Split": "{ a, b = Split <axis = 0, num_outputs = 2> (x)  y = Concat <axis = 0> (b, a) }",
    "Resize": "<float[2] s = {2, 1}> { y = Resize(x, , s) }",
    "If": """<bool c = {1}> { y = If (c) <then_branch = a () => (float[n,4] z) { z = Softmax <axis = 0> (x) },
        else_branch = b () => (float[n,4] z) { z = Identity(x) }> }""",
    "LSTM": """<float[1,16,4] w, float[1,16,4] r, int64[1] a = {1}, int64[2] b = {1,2}>
        { u = Unsqueeze(x, a)  o = LSTM <hidden_size = 4> (u, w, r)  y = Squeeze(o, b) }""",
    "Unheard": "{ y = com.microsoft.Unheard(x) }",
}  # fmt: skip


@pytest.mark.parametrize("kind", ONNX_MIXES)
def test_a_graph_of_onnx_that_mixes_is_refused_with_the_node(kind: str, tmp_path: Path) -> None:
    text = f"(float[n,4] x) => (float[n,4] y) {ONNX_MIXES[kind]}"
    path = parsed(text, tmp_path / "model.onnx", 9 if kind == "Upsample" else 18)
    found = onnx_graph.mixing(path)
    assert f"({kind})" in found
    assert "the batch: it " in found


@pytest.mark.parametrize(
    ("inputs", "nodes", "words"),
    [
        ("float[3,4] x", "y = Relu(x)", "the first axis of input x is 3 for ever"),
        ("float[1,4] x", "y = Relu(x)", "the first axis of input x is 1 for ever"),
        ("float x", "y = Relu(x)", "the first axis of input x is missing"),
        ("float[n,n] x", "y = Relu(x)", "input x gives a shape with the number of instances"),
        ("float[n,4] x, float[m,4] z", "y = Add(x, z)", "several names: m, n"),
        ("float[n,4] x", "y = Transpose(x)", "output y does not have the instances along its first"),
        ("float[n,4] x", "c = Constant <value_float = 1.0> ()  y = Identity(c)", "output y has no batch axis"),
    ],
)  # fmt: skip
def test_inputs_and_outputs_have_to_carry_the_batch(
    inputs: str, nodes: str, words: str, tmp_path: Path
) -> None:
    path = parsed(f"({inputs}) => (float y) {{ {nodes} }}", tmp_path / "model.onnx")
    assert words in onnx_graph.mixing(path)


def test_a_graph_that_is_not_in_order_is_refused(tmp_path: Path) -> None:
    # Given a node that reads what a later one gives, which a runtime may sort
    text = "(float[n,4] x) => (float[n,4] y) { m = ReduceMax(x)  y = Sub(x, m) }"
    path = parsed(text, tmp_path / "model.onnx")
    model = onnx.load(path)
    first, second = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([second, first])
    onnx.save(model, path)
    assert "it reads m, which no node before it gives" in onnx_graph.mixing(path)


def test_an_input_without_batch_axis_is_a_constant(tmp_path: Path) -> None:
    text = "(float[n,4] x, float[m,4] bank) => (float y) { t = Transpose(bank)  y = MatMul(x, t) }"
    path = parsed(text, tmp_path / "model.onnx")
    assert onnx_graph.mixing(path, ["bank"]) == ""
    assert "several names" in onnx_graph.mixing(path)


def test_a_program_that_writes_to_its_buffers_is_refused() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return x + self.seen

    shapes = ({0: torch.export.Dim("n", min=1, max=64)},)
    program = torch.export.export(Counts(), (torch.ones(2, 4),), dynamic_shapes=shapes)
    assert program_graph.mixing(program) == "a run writes to seen, which the next one reads"


def test_a_program_of_one_size_is_refused() -> None:
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.ones(2, 4),))
    assert program_graph.mixing(program) == "the first axis of input input is 2 for ever"


def test_bags_of_words_are_instances() -> None:
    # Given an embedding bag, whose bags begin where torch counts them
    words = torch.randint(0, 20, (4, 5))
    shapes = {"input": {0: torch.export.Dim("n", min=1, max=64)}}
    program = torch.export.export(torch.nn.EmbeddingBag(20, 8), (words,), dynamic_shapes=shapes)
    assert program_graph.mixing(program) == ""
    given = [words.numpy()]
    assert seen_by_neighbours(program_of(program), given, shuffled(given)) == ""


def told_of(path: Path, text: str = "", *, batch: bool = False) -> tuple[bool, str]:
    if text:
        (path.parent / "serve.yaml").write_text(text)

    async def go() -> tuple[bool, str]:
        repository = Repository([path], Limits(batch=batch))
        await repository.load_all()
        (entry,) = repository.index()
        signature = repository.get(path.stem).signature
        await repository.close()
        assert entry.batching == signature.batching
        return signature.batches, signature.batching

    return asyncio.run(go())


def test_a_proof_or_the_users_word_decides_and_is_told(tmp_path: Path) -> None:
    # Given a model that keeps its instances apart, and one that takes the mean of its batch
    apart = serve_models.linear(tmp_path / "apart" / "linear.onnx")
    mixes = serve_models.over_the_batch(tmp_path / "mixes" / "mean.onnx")
    node = "node mean (ReduceMean) mixes the batch: it works along the batch axis"
    # Then each says whether requests are run together, and why
    assert told_of(apart) == (True, "batched: proven")
    assert told_of(mixes) == (False, f"not batched: {node}")
    # And what the user asks for is done, with the doubt that there is
    assert told_of(mixes, batch=True) == (True, f"batched: asked for, though {node}")
    assert told_of(apart, "batches: true") == (True, "batched: asked for")
    assert told_of(apart, "batches: false", batch=True) == (False, "not batched: asked for")


def test_what_runners_were_told_is_told_again(tmp_path: Path) -> None:
    async def go() -> set[str]:
        repository = Repository(
            [serve_models.linear(tmp_path / "linear.onnx")], Limits(processes=2)
        )
        await repository.load_all()
        version = repository.get("linear")
        runners = version.batcher._runners
        found = {one.signature.batching for one in runners}  # type: ignore[attr-defined]
        await repository.close()
        return found

    assert asyncio.run(go()) == {"batched: proven"}


def test_a_graph_that_breaks_the_proof_is_not_batched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_graph, "mixing", lambda path, without: 1 / 0)
    found = told_of(serve_models.linear(tmp_path / "linear.onnx"))
    assert found == (
        False,
        "not batched: its graph cannot be followed (ZeroDivisionError: division by zero)",
    )


def language_model(kind: str) -> tuple[torch.nn.Module, str]:
    models = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}
    more = {"intermediate_size": 32, "bos_token_id": 0, "eos_token_id": 1}
    if kind == "gpt2":
        return models.GPT2LMHeadModel(models.GPT2Config(**sizes, **more)).eval(), "logits"
    if kind == "llama":
        return models.LlamaForCausalLM(models.LlamaConfig(**sizes, **more)).eval(), "logits"
    return models.BertModel(models.BertConfig(**sizes, **more)).eval(), "last_hidden_state"


class Asked(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.net, self.wanted = language_model(kind)

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> Any:
        more = {"use_cache": False} if self.wanted == "logits" else {}
        return getattr(self.net(input_ids=words, attention_mask=mask, **more), self.wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", ["program", "traced", "dynamo"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_language_models_with_a_mask_are_proven(kind: str, form: str, tmp_path: Path) -> None:
    net, path = Asked(kind), tmp_path / "model.onnx"
    mask = torch.ones(4, 7, dtype=torch.long)
    mask[1, 4:] = mask[2, 6:] = 0
    inputs = torch.randint(0, 50, (4, 7)), mask
    n = torch.export.Dim("n", min=1, max=64)
    if form == "traced":
        run, found = session_of(traced(net, inputs, path)), onnx_graph.mixing(path)
    elif form == "dynamo":
        torch.onnx.export(
            net, inputs, str(path), dynamic_shapes=({0: n}, {0: n}), dynamo=True, verbose=False
        )
        run, found = session_of(path), onnx_graph.mixing(path)
    else:
        program = torch.export.export(net, inputs, dynamic_shapes=({0: n}, {0: n}))
        run, found = program_of(program), program_graph.mixing(program)
    assert found == ""
    plain = [one.numpy() for one in inputs]
    assert seen_by_neighbours(run, plain, shuffled(plain)) == ""


def numbers(count: int = 4) -> Any:
    return np.random.default_rng(0).standard_normal((2, count, *EXTENTS)).astype("float32")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_graph_of_onnx_is_proven_has_rows_of_their_own(data: st.DataObject) -> None:
    # Given operators drawn at random, of which some bring instances together
    graph = OnnxGraph()
    for _ in range(data.draw(st.integers(1, 6))):
        if graph.ranks[graph.last] < 2:
            break
        grow(graph, lambda below: data.draw(st.integers(0, below - 1)))
    model = graph.model()
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        Path(file.name).write_bytes(model)
        found = onnx_graph.mixing(Path(file.name))
    try:
        run = onnx_answers(model)
        for count in (1, 2, 4):
            run(np.zeros((count, *EXTENTS), "float32"))
    except Exception:  # no runtime takes such a graph
        return
    # Then where the graph is proven, no instance sees its neighbours
    x, z = numbers()
    assert found or seen_by_neighbours(lambda one: [run(one)], [x], [z]) == ""


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, STEPS - 1), st.integers(0, 8), st.integers(0, 8)),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_program_is_proven_has_rows_of_its_own(draws: list[tuple[int, int, int]]) -> None:
    net = TorchSteps(draws).eval()
    shapes = ({0: torch.export.Dim("n", min=1, max=64)},)
    try:
        program = torch.export.export(net, (torch.rand(2, *EXTENTS),), dynamic_shapes=shapes)
        run = program_of(program)
        for count in (1, 2, 4):
            run(np.zeros((count, *EXTENTS), "float32"))
    except Exception:  # torch takes no such program
        return
    x, z = numbers()
    assert program_graph.mixing(program) or seen_by_neighbours(run, [x], [z]) == ""
