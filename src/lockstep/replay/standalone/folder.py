"""The folder of a stand-alone test: the test, its tensors, and a page that says what it shows."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from lockstep.core.errors import OutputExistsError
from lockstep.core.replacement import aside_of
from lockstep.core.version import VERSION
from lockstep.replay.held_results import Held, Result
from lockstep.replay.standalone.proof import Proof, facts

_IMPORTS = "from __future__ import annotations\n"


@dataclass(frozen=True, slots=True)
class Story:
    """What is told of a proof beside its tensors.

    Parameters
    ----------
    results
        What the call gave, as recorded and as run again.
    device
        The device it was recorded on.
    versions
        Names and versions of what it ran with.
    explanation
        What it computes instead, in words, or "".
    note
        A sentence on how the call was come by, or "".
    """

    results: tuple[Result, ...]
    device: str
    versions: dict[str, str]
    explanation: str = ""
    note: str = ""


def write_folder(folder: Path, proof: Proof, story: Story) -> None:
    """Write a test into a new folder, whole or not at all.

    Raises
    ------
    OutputExistsError
        If the folder is there, or cannot be written.
    """
    if folder.exists():
        raise OutputExistsError(f"{folder}: is there already; give another folder")
    aside = aside_of(folder)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for name, text in _texts(proof, story).items():
            (aside / name).write_text(text, encoding="utf-8")
        inputs = {name: tensor.contiguous().clone() for name, tensor in proof.inputs.items()}
        save_file(inputs, aside / "inputs.safetensors")
        expected = {name: tensor.contiguous().clone() for name, tensor in proof.expected.items()}
        save_file(expected, aside / "expected.safetensors")
        aside.rename(folder)
    except OSError as error:
        raise OutputExistsError(
            f"{folder}: cannot be written ({error.strerror or error}); give another place"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def file_name(proof: Proof) -> str:
    """`test_layer_norm.py` for `torch.nn.functional.layer_norm`."""
    name = proof.call.site.op.rpartition(".")[2].strip("_").lower()
    if proof.call.site.op.startswith("aten."):
        name = proof.call.site.op.split(".")[1].strip("_")
    return f"test_{re.sub(r'[^a-z0-9_]', '_', name)}.py"


def _texts(proof: Proof, story: Story) -> dict[str, str]:
    return {
        file_name(proof): _test(proof, story),
        "facts.json": json.dumps(facts(proof), indent=1),
        "README.md": _page(proof, story),
    }


def _test(proof: Proof, story: Story) -> str:
    name = file_name(proof).removesuffix(".py")
    helpers = (
        Path(__file__).with_name("checks.py").read_text(encoding="utf-8").partition(_IMPORTS)[2]
    )
    lines = ["values = given()", *proof.lines]
    if proof.random:
        lines.insert(0, "if DEVICE.type != 'cpu':")
        lines.insert(
            1,
            "    pytest.skip('it draws random numbers, from the state of the generator of a CPU')",
        )
        helpers = helpers.replace("import torch\n", "import pytest\nimport torch\n", 1)
    body = "\n".join(f"    {line}" for line in lines)
    return (
        f'"""{proof.call.site.op}, on the inputs of one recorded call.\n\n'
        f"Written by Lockstep {VERSION}. TEST_DEVICE says where it runs: `TEST_DEVICE=npu:0 pytest`; README.md tells"
        f' what it shows.\n"""\n\n{_IMPORTS}{helpers}\n\n'
        f"def {name}() -> None:\n{body}\n"
    )


def _page(proof: Proof, story: Story) -> str:
    return "\n".join(_lines(proof, story)) + "\n"


def _lines(proof: Proof, story: Story) -> Iterator[str]:
    call = proof.call
    yield f"# {call.site.op}"
    yield ""
    yield f"One recorded call, `{call.site}`, step {call.step}, on `{story.device}`."
    yield "The test runs it on the same inputs, laid in memory as they were, and holds each result against the same"
    yield "operator in double precision. What it may be off is what a sound kernel is off on these inputs."
    yield ""
    yield "    pip install torch safetensors pytest"
    yield f"    TEST_DEVICE={story.device} pytest {file_name(proof)}"
    yield ""
    if story.note:
        yield story.note
        yield ""
    if story.explanation:
        yield f"What it computes instead: {story.explanation}."
        yield ""
    yield "## As recorded, and as run again"
    yield ""
    for result in story.results:
        yield f"- {result.role.value} `{result.name}`"
        yield from (f"  - {held.maker}: {_numbers(held)}" for held in result.held)
        if result.refused:
            yield f"  - not run again: {result.refused}"
    for name, reason in proof.refused.items():
        yield f"- {name}: not tested, {reason}"
    yield ""
    yield "## Inputs"
    yield ""
    for name, tensor in proof.inputs.items():
        layout = proof.layouts.get(name)
        laid = "" if layout is None else f", strides {list(layout.strides)}"
        yield f"- `{name}`: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{laid}"
    yield ""
    yield "## Versions"
    yield ""
    yield from (f"- {name} {found}" for name, found in story.versions.items())


def _numbers(held: Held) -> str:
    verdict = "sound" if held.sound else f"{held.excess:.3g} times what is allowed"
    return f"off by {held.error:.3g} of its norm, allowed {held.allowed:.3g}: {verdict}"
