"""A quantised model beside its float one: how far it may be, how its errors are told, and by which layer they come."""

from __future__ import annotations

import asyncio
import csv
import json
import shlex
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import serve_models
import torch
from click.testing import CliRunner
from onnx import numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)

from lockstep.cli.compare import compare
from lockstep.core.errors import UsageError
from lockstep_serve.parity.judging import Outcome, judged_within
from lockstep_serve.parity.matching import matched
from lockstep_serve.parity.shadowing import Shadowing, begin_shadows
from lockstep_serve.parity.tolerance import Exceeding, Tolerance, tolerance_from
from lockstep_serve.repository import Limits, Repository
from lockstep_serve.servable import TensorSpec

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SAMPLES = np.random.default_rng(1).standard_normal((64, 16)).astype("float32")


async def beside(
    served: Path, reference: Path, *, tolerance: Tolerance | None = None, kept: Path | None = None, count: int = 40
) -> dict[str, Any]:  # fmt: skip
    """What is found after so many requests of two instances."""
    repository = Repository([served], Limits())
    await repository.load_all()
    try:
        shadowing = Shadowing([reference], Fraction(1), kept, tolerance=tolerance)
        await begin_shadows(repository, shadowing)
        ((name, shadow),) = repository.shadows.items()
        version, random = repository.get(name), np.random.default_rng(0)
        (one,) = version.signature.inputs
        for number in range(count):
            x = {one.name: random.standard_normal((2, 16)).astype("float32")}
            shadow.offer(f"r{number}", version.number, x, await version.batcher.infer(x))
            await shadow.settled()
        return shadow.parity.told()
    finally:
        await repository.close()


def by_lockstep(folder: Path, *options: str) -> tuple[Path, Path, Path]:
    """A float model, what `lockstep quantize` of the member deploy makes of it, and its report."""
    quantize = pytest.importorskip("lockstep_deploy.quantize_command").quantize
    plain, made = serve_models.deep(folder / "float.onnx"), folder / "int8.onnx"
    np.savez(folder / "samples.npz", x=SAMPLES)
    told = options or ("--ranges-from", str(folder / "samples.npz"))
    words = [str(plain), "-o", str(made), "--json", *told]
    report = CliRunner().invoke(quantize, words, standalone_mode=False)
    (folder / "report.json").write_text(report.output)
    return plain, made, folder / "report.json"


def scaled_layer(path: Path, to: Path, factor: float) -> Path:
    """The same with one weight's scales off."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == "w5_scale":
            array = numpy_helper.to_array(tensor) * np.float32(factor)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, to)
    return to


def test_what_quantize_measured_is_the_tolerance(tmp_path: Path) -> None:
    # Given a quantised model beside the float one that it was made of
    plain, made, report = by_lockstep(tmp_path)
    # When it serves what quantize's samples were drawn from, then it agrees, and its errors are told
    found = asyncio.run(beside(made, plain))
    assert (found["verdict"], found["compared"], found["agree"]) == ("agree", 40, 40)
    assert found["tolerance_from"].startswith("lockstep quantize, on ")
    errors = found["errors"]["y"]
    assert 0 < errors["p50"] <= errors["p90"] <= errors["p99"] <= errors["max"] < 0.1
    assert errors["top1_rows"] == 80
    assert errors["top1_agreement"] > 0.9
    # And so it does by the report that was printed
    assert tolerance_from(str(report)).outputs["y"] > errors["max"]


def test_errors_above_those_that_were_measured_are_told_with_the_layer(tmp_path: Path) -> None:
    # Given a quantised model of which the scales of one layer are an eighth off, and one request may be as far off
    plain, made, _ = by_lockstep(tmp_path)
    other = scaled_layer(made, tmp_path / "other.onnx", 1.125)
    (onnx_facts,) = [one for one in onnx.load(other).metadata_props if "quantized" in one.key]
    worst = json.loads(onnx_facts.value)["worst_error"]["y"]
    found = asyncio.run(beside(other, plain, kept=tmp_path / "left", tolerance=measured(worst)))
    # Then many that are above the worst are no accident
    assert found["verdict"] == "diverged"
    first = found["first"]
    assert first["request"] > 5
    assert "requests are above" in first["outputs"][0]["words"]
    # And the layers say where
    assert first["most_added_at"]["layer"].startswith("layer5/")
    assert first["compared_layers"] >= 12


def measured(worst: float) -> Tolerance:
    return Tolerance(None, {"y": 1.0}, "a report", {"y": worst}, 64)


@pytest.mark.parametrize(
    ("tolerance", "verdict"),
    [
        ("10dB", "agree"),
        ("1e-6", "diverged"),
        pytest.param("1", "agree", marks=pytest.mark.exhaustive),
        pytest.param("120dB", "diverged", marks=pytest.mark.exhaustive),
    ],
)
def test_the_users_tolerance_is_the_last_word(tmp_path: Path, tolerance: str, verdict: str) -> None:
    plain, made, _ = by_lockstep(tmp_path)
    found = asyncio.run(beside(made, plain, tolerance=tolerance_from(tolerance), count=3))
    assert (found["verdict"], found["tolerance_from"]) == (verdict, "--tolerance")


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self.left = iter([{"x": SAMPLES[at : at + 8]} for at in range(0, 64, 8)])

    def get_next(self) -> Any:
        return next(self.left, None)


def dynamic(plain: Path, made: Path) -> None:
    quantize_dynamic(plain, made)


def operators(plain: Path, made: Path) -> None:
    quantize_static(plain, made, Reader(), quant_format=QuantFormat.QOperator)


def pairs(plain: Path, made: Path) -> None:
    quantize_static(plain, made, Reader(), quant_format=QuantFormat.QDQ)


LONG = [pytest.param(one, marks=pytest.mark.exhaustive) for one in (operators, pairs)]


@pytest.mark.parametrize("make", [dynamic, *LONG])
def test_another_quantisers_model_is_not_judged_without_a_tolerance(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    # Given a model by a quantiser that leaves no report in it
    plain, made = serve_models.deep(tmp_path / "float.onnx"), tmp_path / "made.onnx"
    make(plain, made)
    # Then its errors are told, and nothing is said of them
    found = asyncio.run(beside(made, plain, count=3))
    assert (found["verdict"], found["not_judged"]) == ("incomparable", 3)
    assert "--tolerance was not given" in found["tolerance_from"]
    assert found["errors"]["y"]["count"] == 3


@pytest.mark.parametrize("make", [dynamic, operators, LONG[1]])
def test_a_kept_request_has_layers_as_floats(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    # Given a quantised model that is held against less than it can do
    plain, made = serve_models.deep(tmp_path / "float.onnx"), tmp_path / "made.onnx"
    make(plain, made)
    left = tmp_path / "left"
    found = asyncio.run(beside(made, plain, tolerance=tolerance_from("1e-6"), kept=left, count=1))
    first = found["first"]
    with Path(first["layers"]).open() as stream:
        rows = list(csv.DictReader(stream))
    # Then layers are compared by their floats, however it keeps them: no error is as large as codes would make it
    assert first["compared_layers"] == len(rows) >= 6
    assert first["layers_of_all"] == 24
    assert all(0 <= float(one["error"]) < 0.2 for one in rows)
    assert rows[-1]["value"] == "y"
    # And so they are by the command that is printed
    runs = shlex.split(first["compare"])[2:]
    named = CliRunner().invoke(compare, runs, standalone_mode=False)
    assert named.return_value == 0
    assert "AGREE" in named.output


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(given)))


@pytest.mark.parametrize("names", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_program_stands_beside_a_graph_of_onnx(tmp_path: Path, names: bool) -> None:
    # Given the same model as ONNX and as a program, whose names are not the same
    torch.manual_seed(0)
    net, x, rows = Layers().eval(), torch.ones(2, 16), torch.export.Dim("rows", min=1, max=64)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: rows},))
    torch.export.save(program, tmp_path / "reference.pt2")
    axes = {"x": {0: "n"}, "y": {0: "n"}}
    served = tmp_path / "served.onnx"
    torch.onnx.export(
        net, (x,), str(served), input_names=["x"], output_names=["y"], dynamic_axes=axes, dynamo=False
    )  # fmt: skip
    if names:
        told = [("inputs", "x", [-1, 16]), ("outputs", "y", [-1, 3])]
        text = {
            what: [{"name": name, "dtype": "float32", "shape": shape}] for what, name, shape in told
        }
        (tmp_path / "signature.json").write_text(json.dumps(text))
    # Then they are compared, by place or by the names of signature.json
    found = asyncio.run(beside(served, tmp_path / "reference.pt2", count=5))
    assert (found["verdict"], found["compared"]) == ("agree", 5)


def spec(name: str, dtype: str = "float32", *shape: int) -> TensorSpec:
    return TensorSpec(name, np.dtype(dtype), shape or (-1, 4))


@pytest.mark.parametrize(
    ("served", "reference", "names"),
    [
        ([spec("x")], [spec("x")], {"x": "x"}),
        ([spec("x"), spec("m", "int64")], [spec("m", "int64"), spec("x")], {"x": "x", "m": "m"}),
        ([spec("x"), spec("m", "int64")], [spec("a"), spec("b", "int64")], {"x": "a", "m": "b"}),
        ([spec("x"), spec("m")], [spec("x"), spec("b")], {"x": "x", "m": "b"}),
        ([spec("x"), spec("m")], [spec("m"), spec("b")], None),
        ([spec("x"), spec("m", "int64")], [spec("a", "int64"), spec("b")], None),
        ([spec("x")], [spec("x"), spec("m")], None),
        ([spec("x")], [spec("x", "float64")], None),
        ([spec("x")], [spec("a", "float32", -1, 5)], None),
        ([spec("x")], [spec("a", "float32", -1)], None),
    ],
)
def test_tensors_are_matched_by_name_or_by_place(
    served: list[TensorSpec], reference: list[TensorSpec], names: dict[str, str] | None
) -> None:
    if names is not None:
        assert matched("takes", served, reference) == names
        return
    with pytest.raises(UsageError, match="give both the same names"):
        matched("takes", served, reference)


@pytest.mark.parametrize(
    ("text", "distance"), [("0.02", 0.02), ("1e-3", 1e-3), ("40dB", 0.01), ("20 db", 0.1)]
)
def test_a_tolerance_is_a_distance_or_decibels(text: str, distance: float) -> None:
    assert tolerance_from(text).of("y") == pytest.approx(distance)


NOTHING = '{"outcome": {"worst_error": {}, "samples": 0}, "measured_on": ""}'


@pytest.mark.parametrize("content", [None, "{}", "no", NOTHING])
def test_a_tolerance_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "report.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match="--tolerance "):
        tolerance_from(str(file))


def test_samples_that_were_drawn_are_no_tolerance(tmp_path: Path) -> None:
    plain, made, report = by_lockstep(tmp_path, "--weight-only")
    with pytest.raises(UsageError, match="no data of yours"):
        tolerance_from(str(report))
    found = asyncio.run(beside(made, plain, count=1))
    assert found["verdict"] == "incomparable"


def test_the_worst_of_many_samples_is_rarely_exceeded_and_often_is_no_accident() -> None:
    draw = np.random.default_rng(0)
    # Given errors of one heavy-tailed distribution, then no draw of them is said to be too large
    for _ in range(200):
        exceeding = Exceeding(float(draw.lognormal(size=100).max()), 100)
        assert not any(exceeding.add(one) for one in draw.lognormal(size=300))
    # And of errors three times as large soon one is
    exceeding = Exceeding(float(draw.lognormal(size=100, sigma=0.3).max()), 100)
    assert any(exceeding.add(one) for one in 3 * draw.lognormal(size=60, sigma=0.3))


@pytest.mark.parametrize(
    ("served", "tolerance", "outcome"),
    [
        ([[1.0, 2.02]], 0.02, Outcome.AGREE),
        ([[1.0, 2.2]], 0.02, Outcome.DIFFER),
        ([[1.0, np.nan]], 9.0, Outcome.DIFFER),
        ([[1.0]], 9.0, Outcome.DIFFER),
        ([[1.0, 2.0]], None, Outcome.OPEN),
    ],
)
def test_an_output_is_judged_by_its_distance_alone(
    served: Any, tolerance: float | None, outcome: Outcome
) -> None:
    reference = np.array([[1.0, 2.0]], "float32")
    for dtype in ("float32", "float16"):
        found = judged_within("y", reference, np.array(served, dtype), tolerance)
        assert found.outcome is outcome


def test_classes_are_counted_and_not_judged() -> None:
    reference, served = np.array([1, 2, 3]), np.array([1, 2, 4])
    assert judged_within("y", reference, served, 0.1).outcome is Outcome.OPEN
    assert judged_within("y", reference, reference, 0.1).outcome is Outcome.AGREE
    rows = np.array([[0.1, 0.9], [0.6, 0.4]], "float32")
    found = judged_within("y", rows, rows[:, ::-1].copy(), 9.0)
    assert (found.top1_same, found.top1_of) == (0, 2)
