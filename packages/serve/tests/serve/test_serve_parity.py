"""A served model beside its reference: a planted fault is said and named, a twin stays silent."""

from __future__ import annotations

import asyncio
import json
import shlex
import urllib.request
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import serve_models
import torch
from click.testing import CliRunner
from serve_asgi import python_model
from serve_process import serving

from lockstep.cli.compare import compare
from lockstep.core.errors import UsageError
from lockstep_serve.failures import ModelFailedError
from lockstep_serve.parity.shadow import Shadow
from lockstep_serve.parity.shadowing import ParityMetrics, Shadowing, begin_shadows
from lockstep_serve.repository import Limits, Repository

PLAIN = """
import numpy as np, onnxruntime
from lockstep_serve.servables.onnx import OnnxServable

def load(version_dir):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = OnnxServable(version_dir / "plain.onnx", "cpu")
    model._session = onnxruntime.InferenceSession(version_dir / "plain.onnx", options)
    return model
"""


async def asked(
    served: Path, reference: Path, *, kept: Path | None = None, count: int = 40
) -> dict[str, Any]:
    """What is found after so many requests of two instances."""
    repository = Repository([served], Limits())
    await repository.load_all()
    try:
        await begin_shadows(repository, Shadowing([reference], Fraction(1), kept))
        ((name, shadow),) = repository.shadows.items()
        version, random = repository.get(name), np.random.default_rng(0)
        for number in range(count):
            x = {"x": random.standard_normal((2, 16)).astype("float32")}
            shadow.offer(f"r{number}", version.number, x, await version.batcher.infer(x))
            if number % 30 == 29:
                await shadow.settled()
        await shadow.settled()
        families = {one.name: one for one in ParityMetrics(repository.shadows).collect()}
        assert families["lockstep_serve_diverged"].samples[0].value == (
            shadow.parity.first is not None
        )
        return shadow.parity.told()
    finally:
        await repository.close()


def test_the_same_model_stays_silent_however_it_is_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Given the same weights by another plan of the runtime
    plain = python_model(tmp_path / "served", "deep", PLAIN)
    serve_models.deep(plain.parent / "plain.onnx")
    reference = serve_models.deep(tmp_path / "deep.onnx")
    # When hundred requests are compared, then not one is said
    found = asyncio.run(asked(tmp_path / "served", reference, count=100))
    assert (found["verdict"], found["compared"], found["agree"]) == ("agree", 100, 100)
    assert not caplog.records


def scaled_weight(path: Path) -> Path:
    return serve_models.deep(path, fault=3, factor=1.01)


def other_activation(path: Path) -> Path:
    return serve_models.deep(path, fault=3, activation="LeakyRelu")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        pytest.param(scaled_weight, "w3 times 1.01", marks=pytest.mark.exhaustive),
        (other_activation, "layer3/relu"),
    ],
)
def test_a_planted_fault_is_said_and_the_printed_command_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write: Callable[[Path], Path], words: str
) -> None:
    # Given a model of which one layer is not what it was
    served = write(tmp_path / "served.onnx")
    reference = serve_models.deep(tmp_path / "deep.onnx")
    found = asyncio.run(asked(served, reference, kept=tmp_path / "left", count=3))
    # Then the first request that leaves the reference is told with its figures, once
    assert (found["verdict"], found["differ"], found["first"]["request"]) == ("diverged", 3, 1)
    (output,) = found["first"]["outputs"]
    assert output["difference"] > 10 * output["tolerance"] > 10 * output["noise"] > 0
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith("served leaves its reference: output y of request 1 (r0) is ")
    with np.load(found["first"]["kept"]) as inputs:
        assert inputs["x"].shape == (2, 16)
    # When the command that was printed is run, then it names the operator
    lockstep, verb, *runs = shlex.split(found["first"]["compare"])
    assert (lockstep, verb) == ("lockstep", "compare")
    named = CliRunner().invoke(compare, runs, standalone_mode=False)
    assert named.return_value == 1
    assert "DIVERGED" in named.output
    assert words in " ".join(named.output.split())


class Layers(torch.nn.Module):
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.first(x), approximate=self.approximate))


@pytest.mark.exhaustive
def test_a_program_of_torch_is_named_too(tmp_path: Path) -> None:
    # Given two programs with the same weights, of which one approximates its activation
    for name, approximate in (("reference", "none"), ("served", "tanh")):
        torch.manual_seed(0)
        rows = {0: torch.export.Dim("rows", min=1, max=64)}
        net, x = Layers(approximate).eval(), torch.ones(2, 16)
        torch.export.save(
            torch.export.export(net, (x,), dynamic_shapes=(rows,)), tmp_path / f"{name}.pt2"
        )
    found = asyncio.run(
        asked(tmp_path / "served.pt2", tmp_path / "reference.pt2", kept=tmp_path / "left", count=1)
    )
    assert found["verdict"] == "diverged"
    runs = shlex.split(found["first"]["compare"])[2:]
    named = CliRunner().invoke(compare, runs, standalone_mode=False)
    assert named.return_value == 1
    assert "aten.gelu" in named.output


class Scripted:
    """A reference that says what it is told to."""

    def __init__(self, *outcomes: str | Exception) -> None:
        self.outcomes, self.seen = list(outcomes), 0

    async def run(self, inputs: Any) -> dict[str, Any]:
        self.seen += 1
        outcome = self.outcomes.pop(0) if self.outcomes else "agree"
        if isinstance(outcome, Exception):
            raise outcome
        one = {"output": "y", "outcome": outcome, "difference": 1.0, "tolerance": 0.5, "words": ""}
        return {"judged": np.array([json.dumps({"outputs": [one]}).encode()], object)}

    async def close(self) -> None: ...


def scripted(share: str, count: int, *outcomes: str | Exception, settle: bool = True) -> Shadow:
    async def go() -> Shadow:
        shadow = Shadow("m", Scripted(*outcomes), Fraction(share), 1, Random(0))
        for _ in range(count):
            shadow.offer("", 1, {}, {})
            if settle:
                await shadow.settled()
        await shadow.close()
        return shadow

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("share", "least", "most"), [("1", 2000, 2000), ("1/3", 560, 770), ("1/100", 4, 40)]
)
def test_a_share_is_drawn(share: str, least: int, most: int) -> None:
    # Given a generator of the shadow's own, whose draws are within five deviations of the share
    counts = scripted(share, 2000).parity.counts
    assert counts["answered"] == 2000
    assert least <= counts["compared"] <= most


def test_what_is_drawn_has_no_stride() -> None:
    async def go() -> list[int]:
        shadow, taken = Shadow("m", Scripted(), Fraction(1, 4), 1, Random(1)), []
        for number in range(400):
            before = shadow.parity.counts["compared"]
            shadow.offer("", 1, {}, {})
            await shadow.settled()
            if shadow.parity.counts["compared"] > before:
                taken.append(number)
        return taken

    taken = asyncio.run(go())
    # Then neighbours among those that were taken are of many distances
    assert len({later - one for one, later in pairwise(taken)}) > 5


@pytest.mark.parametrize(
    ("share", "count", "outcomes", "words"),
    [
        ("1", 0, [], "NOTHING COMPARED of 0 answered requests: none was answered"),
        ("1/9000", 5, [], "NOTHING COMPARED of 5 answered requests: none was drawn"),
        (
            "1",
            1,
            [ModelFailedError("no")],
            "NOTHING COMPARED of 1 answered request: the reference failed",
        ),
        ("1", 3, [], "AGREE: 3 of 3 answered requests compared"),
        ("1", 2, ["agree", "differ"], "DIVERGED: 2 of 2 answered requests compared; 1 differ"),
        ("1", 1, ["not judged"], "NOT JUDGED: 1 of 1 answered request compared; 1 not judged"),
    ],
)
def test_what_was_looked_at_comes_first(
    share: str, count: int, outcomes: list[Any], words: str
) -> None:
    told = scripted(share, count, *outcomes).parity.told()
    assert told["sentence"].startswith(words)


def test_of_another_version_nothing_is_said() -> None:
    # Given a reference that stands behind version 1, when version 2 answers what would differ
    async def go() -> Shadow:
        shadow = Shadow("m", Scripted("agree", "differ"), Fraction(1), 1)
        for version in (1, 2, 2):
            shadow.offer("", version, {}, {})
        await shadow.settled()
        return shadow

    told = asyncio.run(go()).parity.told()
    # Then only the first is compared, and the others are counted
    assert (told["verdict"], told["version"]) == ("agree", "1")
    assert (told["compared"], told["other_versions"]) == (1, 2)


def test_what_the_reference_cannot_keep_up_with_is_skipped_and_counted() -> None:
    # Given 200 requests before the reference has run once, and a server that ends then
    counts = scripted("1", 200, settle=False).parity.counts
    assert (counts["compared"], counts["skipped"]) == (0, 200)


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        ([], "incomparable"),
        (["agree", "agree"], "agree"),
        (["agree", "not judged"], "incomparable"),
        (["agree", ModelFailedError("no")], "incomparable"),
        (["not judged", "differ", "agree"], "diverged"),
    ],
)
def test_agreement_is_said_of_what_was_compared_alone(outcomes: list[Any], verdict: str) -> None:
    told = scripted("1", len(outcomes), *outcomes).parity.told()
    assert told["verdict"] == verdict
    assert ("reason" in told) == any(isinstance(one, Exception) for one in outcomes)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        (
            "words.onnx",
            "the model takes x (float32[-1, 16]), and its reference x (BYTES[-1])",
        ),
        ("models", "no model is called other, as this reference is; there are deep"),
        ("nothing", "is neither a model nor a folder of models"),
    ],
)
def test_a_reference_that_cannot_be_asked_is_refused(
    tmp_path: Path, reference: str, words: str
) -> None:
    served = serve_models.deep(tmp_path / "deep.onnx")
    serve_models.words(tmp_path / "words.onnx")
    for name in ("other", "others"):
        serve_models.logarithm(tmp_path / "models" / name / "1" / "model.onnx")
    with pytest.raises(UsageError) as raised:
        asyncio.run(asked(served, tmp_path / reference))
    assert words in str(raised.value)


def test_the_command_tells_parity_over_http(tmp_path: Path) -> None:
    served = scaled_weight(tmp_path / "served.onnx")
    reference = serve_models.deep(tmp_path / "deep.onnx")
    data = [0.5] * 16
    body = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 16], "data": data}],
        "id": "seven",
    }
    with serving(served, "--shadow", reference, "--share", "100%") as one:
        address = f"http://{one.http}/v2/models/served"
        sent = urllib.request.Request(f"{address}/infer", json.dumps(body).encode())
        with urllib.request.urlopen(sent) as answer:
            assert answer.status == 200
        assert one.process.stderr is not None
        for line in one.process.stderr:
            if "leaves its reference" in line:
                break
        assert "served leaves its reference: output y of request 1 (seven) is" in line
        with urllib.request.urlopen(f"{address}/parity") as answer:
            found = json.load(answer)
        assert (found["verdict"], found["first"]["id"]) == ("diverged", "seven")
        with urllib.request.urlopen(f"http://{one.http}/metrics") as answer:
            assert b'lockstep_serve_diverged{model="served"} 1.0' in answer.read()
