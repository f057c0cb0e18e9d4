"""What can be served: programs of torch, TorchScript, one's own Python, and what stands beside them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serve_models
import torch
from click.testing import CliRunner
from serve_asgi import python_model, repository_of

from lockstep.core.errors import UsageError
from lockstep_serve import plugin
from lockstep_serve.command import serve
from lockstep_serve.repository import Repository
from lockstep_serve.servables.kinds import open_servable

DOCS = Path(__file__).parents[4] / "docs" / "serve.md"
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4), dtype="uint8")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.inner(x))


def exported(net: torch.nn.Module, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(net, (torch.ones(2, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)


def scripted(net: torch.nn.Module, path: Path) -> None:
    torch.jit.trace(net, torch.ones(2, 4)).save(str(path))
    one = {"name": "x", "dtype": "float32", "shape": [-1, 4]}
    told = {"inputs": [one], "outputs": [{**one, "name": "y", "shape": [-1, 3]}]}
    (path.parent / "signature.json").write_text(json.dumps(told))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("write", "name"), [(exported, "model.pt2"), (scripted, "model.pt")])
def test_what_torch_wrote_gives_torchs_own_numbers(
    tmp_path: Path, write: Callable[[torch.nn.Module, Path], None], name: str
) -> None:
    # Given a module of torch, saved
    torch.manual_seed(0)
    net = Net().eval()
    (tmp_path / "net" / "1").mkdir(parents=True)
    write(net, tmp_path / "net" / "1" / name)

    async def go() -> Any:
        repository = await repository_of(tmp_path)
        version = repository.get("net")
        ((spec,), (out,)) = version.signature.inputs, version.signature.outputs
        assert (spec.name, spec.shape) == ("x", (-1, 4))
        proven = (
            "not batched: it has no graph to look into" if name == "model.pt" else "batched: proven"
        )
        assert version.signature.batching == proven
        assert version.signature.batches == (name == "model.pt2")
        assert version.signature.most == (64 if name == "model.pt2" else None)
        found = await version.batcher.infer({"x": PIXELS.astype("float32")})
        await repository.close()
        return found[out.name]

    # Then it is batched where its graph shows it, and its numbers are the module's, to the bit
    with torch.no_grad():
        assert np.array_equal(
            asyncio.run(go()), net(torch.from_numpy(PIXELS.astype("float32"))).numpy()
        )


def test_the_example_of_the_docs_is_served(tmp_path: Path) -> None:
    # Given docs/serve.md's own servable.py, beside the model that it asks
    code = next(
        one
        for one in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
        if "def load" in one
    )
    file = python_model(tmp_path, "digits", code)
    serve_models.linear(file.parent / "digits.onnx", inner=64)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype="uint8")

    async def go() -> Any:
        repository = await repository_of(tmp_path)
        version = repository.get("digits")
        assert version.platform == "python"
        found = await version.batcher.infer({"pixels": pixels})
        await repository.close()
        return found["y"]

    # Then pixels go in, and what comes out is the model's on their normalised form
    plain = open_servable(file.parent / "digits.onnx", "cpu")
    wanted = plain.infer({"x": pixels.reshape(-1, 64).astype("float32") / 255})["y"]
    assert np.array_equal(asyncio.run(go()), wanted)


def scaled(folder: Path, settings: str) -> Path:
    serve_models.scaled(folder / "scaled" / "1" / "model.onnx")
    (folder / "scaled" / "serve.yaml").write_text(settings)
    return folder


def test_an_input_without_batch_axis_is_shared_by_a_run(tmp_path: Path) -> None:
    async def go() -> None:
        # Given y = x * by, where `by` is one number for all instances
        repository = await repository_of(scaled(tmp_path, "without_batch_axis: [by]"))
        batcher = repository.get("scaled").batcher
        assert repository.get("scaled").signature.batches

        def ask(value: float, by: float) -> Any:
            given = np.full((1, 2), value, "float32"), np.array([by], "float32")
            return batcher.infer({"x": given[0], "by": given[1]})

        # When five ask at once
        found = await asyncio.gather(ask(1, 2), ask(2, 2), ask(3, 2), ask(4, 5), ask(5, 2))
        # Then those with the same number ran together, and each has its own
        assert [one["y"][0, 0] for one in found] == [2, 4, 6, 20, 10]
        assert (batcher.runs, batcher.instances) == (2, 5)
        await repository.close()

    asyncio.run(go())


COUNTS_WORDS = """
import numpy as np
from lockstep_serve.servable import BYTES, Signature, TensorSpec

class CountsWords:
    platform = "python"
    signature = Signature(
        (TensorSpec("x", np.dtype("float32"), (-1, 1)), TensorSpec("words", BYTES, (-1,))),
        (TensorSpec("y", np.dtype("float32"), (-1, 1)),),
        batches=True,
        without_batch_axis=frozenset({"words"}),
    )

    def infer(self, inputs):
        return {"y": inputs["x"] * sum(word == b"yes" for word in inputs["words"])}

def load(version_dir):
    return CountsWords()
"""


def test_long_texts_without_batch_axis_are_told_apart_by_each_word(tmp_path: Path) -> None:
    async def go() -> list[float]:
        # Given 2 000 words that all instances share, of which one request has another one in the middle
        python_model(tmp_path, "words", COUNTS_WORDS)
        repository = await repository_of(tmp_path)
        batcher = repository.get("words").batcher

        def ask(word: bytes) -> Any:
            words = np.array([b"no"] * 2000, object)
            words[1000] = word
            return batcher.infer({"x": np.ones((1, 1), "float32"), "words": words})

        # When all ask at once, while one is at work
        found = await asyncio.gather(ask(b"no"), ask(b"no"), ask(b"yes"), ask(b"no"))
        await repository.close()
        return [one["y"][0, 0] for one in found]

    # Then each is answered by its own words
    assert asyncio.run(go()) == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            "without_batch_axis: [bye]",
            "without_batch_axis names bye, which is not an input; they are x, by",
        ),
        ("most: 0", "most is 0; give 1 or more"),
        (
            "most: many",
            "most is none of most, without_batch_axis, batches, device, threads, or of another type",
        ),
        ("mots: 3", "mots is none of"),
        ("batches: 1", "batches is none of"),
        ("a: [", "is not a YAML file of settings"),
        ("- a", "is not a YAML file of settings"),
        ("device: moon", "--device moon: ONNX Runtime has"),
    ],
)
def test_wrong_settings_are_the_reason_in_the_index(
    tmp_path: Path, settings: str, words: str
) -> None:
    async def go() -> Repository:
        repository = await repository_of(scaled(tmp_path, settings))
        await repository.close()
        return repository

    (entry,) = asyncio.run(go()).index()
    assert entry.state == "UNAVAILABLE"
    assert words in entry.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def load(version_dir):\n    1 / 0", "its load fails (ZeroDivisionError"),
        ("1 / 0", "fails as it is imported (ZeroDivisionError"),
        ("x = 1", "has no `def load(version_dir)`"),
        ("def load(version_dir):\n    return 1", "has no `signature`"),
    ],
)
def test_a_wrong_servable_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_servable(python_model(tmp_path, "own", text), "cpu")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.onnx", b"\x08\x01no", "is not a model for ONNX Runtime"),
        ("model.pt2", b"PK\x03\x04", "is not a program of torch.export"),
        ("model.pt", b"PK\x03\x04", "TorchScript does not tell what it takes"),
        ("weights.bin", b"", "cannot be served; give one of .onnx, .pt, .pt2, .py, .ts"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_corrupt_file_is_one_sentence(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError) as raised:
        open_servable(tmp_path / name, "cpu")
    assert words in str(raised.value)


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        one for one in sys.modules if one.startswith("lockstep_serve.") and one != plugin.__name__
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    result = CliRunner().invoke(serve, [str(tmp_path)])
    assert "pip install 'lockstep-numerics[serve]'" in str(result.exception)
