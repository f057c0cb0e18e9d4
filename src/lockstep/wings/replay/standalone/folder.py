"""The folder of a stand-alone test: the test, its tensors, and a page that says what it shows."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from lockstep.core.errors import OutputExistsError
from lockstep.core.replacement import aside_of
from lockstep.core.text import shell_line, times
from lockstep.core.version import VERSION
from lockstep.replay.calls.held_results import Held, Result
from lockstep.wings.replay.standalone.checks import ROUNDED_TWICE
from lockstep.wings.replay.standalone.proof import Proof, facts
from lockstep.wings.replay.standalone.written_text import code, device_of, plain, quoted

_IMPORTS = "from __future__ import annotations\n"


@dataclass(frozen=True, slots=True)
class Smaller:
    """Inputs that are a part of the recorded ones.

    shapes: Of each input that was cut: as recorded, and now.
    words: How it fails on them, and how that is known, in sentences.
    verb: How the candidate came by its results on them: "recorded" or "computes".
    """

    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    words: str
    verb: str


@dataclass(frozen=True, slots=True)
class Background:
    """The facts about a proof beside its tensors.

    results: What the call gave, as recorded and as run again.
    device: The device it was recorded on.
    versions: Names and versions of what it ran with.
    explanation: What it computes instead, in words, or "".
    story: Why the runs part, in words, or "".
    cannot_show: Why the test passes though they part, or "".
    as_recorded: Whether what the candidate recorded is tested too, against the reference's call.
    not_run: Calls of a module that the test does not run, with the reason.
    smaller: What is told of inputs that are a part of the recorded ones; None for all of them.
    """

    results: tuple[Result, ...]
    device: str
    versions: dict[str, str]
    explanation: str = ""
    story: str = ""
    cannot_show: str = ""
    as_recorded: bool = False
    not_run: tuple[str, ...] = ()
    smaller: Smaller | None = None


def write_folder(
    folder: Path, proof: Proof, story: Background, original: tuple[Proof, Background] | None = None
) -> None:
    """Write a test into a new folder, whole or not at all.

    folder: A new one.
    proof, story: The test, and what is told of it.
    original: The same on all of its inputs, where they are a part: a test in a folder of its own beside it.

    Raises OutputExistsError if the folder is there, or cannot be written.
    """
    if folder.exists():
        raise OutputExistsError(f"{folder}: is there already; give another folder")
    aside = aside_of(folder)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        _fill(aside, proof, story, "")
        if original is not None:
            (aside / "original").mkdir()
            _fill(aside / "original", *original, ORIGINAL)
        aside.rename(folder)
    except OSError as error:
        raise OutputExistsError(
            f"{folder}: cannot be written ({error.strerror or error}); give another place"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _fill(folder: Path, proof: Proof, story: Background, suffix: str) -> None:
    name = file_name(proof, suffix)
    for file, text in _texts(proof, story, name).items():
        (folder / file).write_text(text, encoding="utf-8")
    twice = {f"{key}{ROUNDED_TWICE}": tensor for key, tensor in proof.twice.items()}
    tensors = {"inputs": proof.inputs, "expected": {**proof.expected, **twice}}
    if story.as_recorded:
        tensors["recorded"] = proof.recorded
    for file, found in tensors.items():
        kept = {key: tensor.contiguous().clone() for key, tensor in found.items()}
        save_file(kept, folder / f"{file}.safetensors")


ORIGINAL = "_original"
"""What the test on all inputs is called by behind the name of the one on smaller inputs."""


def file_name(proof: Proof, suffix: str = "") -> str:
    """`test_layer_norm.py` for `torch.nn.functional.layer_norm`."""
    name = proof.call.site.op.rpartition(".")[2].strip("_").lower()
    if proof.call.site.op.startswith("aten."):
        name = proof.call.site.op.split(".")[1].strip("_")
    return f"test_{re.sub(r'[^a-z0-9_]', '_', name)}{suffix}.py"


def _texts(proof: Proof, story: Background, name: str) -> dict[str, str]:
    return {
        name: _test(proof, story, name.removesuffix(".py")),
        "facts.json": json.dumps(facts(proof), indent=1),
        "README.md": "\n".join(_lines(proof, story, name)) + "\n",
    }


def _test(proof: Proof, story: Background, name: str) -> str:
    helpers = (
        Path(__file__).with_name("checks.py").read_text(encoding="utf-8").partition(_IMPORTS)[2]
    )
    imports = [f"import {module}" for module in sorted(proof.modules)]
    lines = [*imports, "values = given()", *proof.lines]
    if proof.random:
        lines.insert(0, "if DEVICE.type != 'cpu':")
        lines.insert(
            1,
            "    pytest.skip('it draws random numbers, from the state of the generator of a CPU')",
        )
        helpers = helpers.replace("import torch\n", "import pytest\nimport torch\n", 1)
    body = "\n".join(f"    {line}" for line in lines)
    verb = "recorded" if story.smaller is None else story.smaller.verb
    made = "recorded" if proof.is_module else f"the_candidate_{verb}_it"
    beside = _AS_RECORDED.format(name=name, made=made) if story.as_recorded else ""
    inputs = "the inputs" if story.smaller is None else "a part of the inputs"
    return (
        f'"""{quoted(proof.call.site.op)}, on {inputs} of one recorded call.\n\n'
        f"Written by Lockstep {VERSION}. TEST_DEVICE says where it runs: `TEST_DEVICE=npu:0 pytest`; README.md tells"
        f' what it shows.\n"""\n\n{_IMPORTS}{helpers}\n\n'
        f"def {name}() -> None:\n{body}\n{beside}"
    )


_AS_RECORDED = """

def {name}_as_{made}() -> None:
    for name, tensor in load_file(FOLDER / "recorded.safetensors").items():
        check(name, tensor)
"""


def _lines(proof: Proof, story: Background, name: str) -> Iterator[str]:
    call, smaller = proof.call, story.smaller
    yield f"# {plain(call.site.op)}"
    yield ""
    yield f"One recorded call, {code(str(call.site))}, step {call.step}, on {code(story.device)}."
    if proof.is_module:
        yield "The test runs the calls in it, each on what those before it gave, and holds each result of the module"
        yield "against the same calls in double precision. What it may be off is what sound kernels are off together on"
        yield "these inputs."
    else:
        yield "The test runs it on the same inputs, laid in memory as they were, and holds each result against the same"
        yield "operator in double precision. What it may be off is what a sound kernel is off on these inputs."
    for module in sorted(proof.modules):
        yield ""
        yield f"It calls a custom function of {code(module)}, which has to be where Python finds it (`PYTHONPATH`)."
        yield "Double precision is that function in double precision: the test shows what a device makes of it, not"
        yield "whether its formula is right."
    for left_out in story.not_run:
        yield ""
        yield f"Not run, but taken as it was recorded: {plain(left_out)}."
    if story.as_recorded and proof.is_module:
        yield ""
        yield "A second test holds what was recorded of the module against it; it runs nothing."
    elif story.as_recorded:
        yield ""
        made = "recorded" if smaller is None else f"{smaller.verb} on them"
        yield f"It is the reference's call. A second test holds what the candidate {made} against it; it runs nothing."
    if smaller is not None:
        yield ""
        yield from _smaller_lines(smaller)
    yield ""
    yield "    pip install torch safetensors pytest"
    yield f"    {shell_line([f'TEST_DEVICE={device_of(story.device)}', 'pytest', name])}"
    yield ""
    if story.story:
        yield f"Why the runs part: {plain(story.story)}."
        yield ""
    if story.cannot_show:
        yield f"This test cannot show it, because {plain(story.cannot_show)}."
        yield ""
    if story.explanation:
        yield f"What it computes instead: {plain(story.explanation)}."
        yield ""
    yield "## As recorded, and as run again"
    yield ""
    for result in story.results:
        yield f"- {result.role.value} {code(result.name)}{_allowed(proof, result)}"
        yield from (
            f"  - {plain(held.maker)}: {_numbers(proof, result, held)}" for held in result.held
        )
        if result.refused:
            yield f"  - not run again: {plain(result.refused)}"
    for name, reason in proof.refused.items():
        yield f"- {plain(name)}: not tested, {plain(reason)}"
    yield ""
    yield "## Inputs"
    yield ""
    for name, tensor in proof.inputs.items():
        layout = proof.layouts.get(name)
        laid = "" if layout is None else f", strides {list(layout.strides)}"
        yield f"- {code(name)}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}{laid}"
    yield ""
    yield "## Versions"
    yield ""
    yield from (f"- {plain(name)} {plain(found)}" for name, found in story.versions.items())


def _smaller_lines(smaller: Smaller) -> Iterator[str]:
    yield "The inputs are a part of those that were recorded:"
    yield ""
    for name, (before, after) in smaller.shapes.items():
        yield f"- {code(name)}: {list(before)} to {list(after)}"
    yield ""
    yield f"{plain(smaller.words)} {code('original/')} holds the same test on all of them."


def _allowed(proof: Proof, result: Result) -> str:
    """The limits of the test, the only ones that the page names."""
    limits = proof.limits.get(proof.names.get((result.role, result.index, result.occurrence), ""))
    if limits is None:
        return ""
    if not limits:
        return ", each element exactly"
    said = [
        f"{limit.allowed:.3g} of its norm"
        + ("" if limit.up_to is None else f" up to a size of {limit.up_to:.3g}")
        + (
            ""
            if limit.allowed_misrounded is None
            else f", and {limit.allowed_misrounded:.2%} not the nearest number"
        )
        for limit in limits
    ]
    return f", allowed {'; above that '.join(said)}"


def _numbers(proof: Proof, result: Result, held: Held) -> str:
    if math.isnan(held.epsilons):
        return "sound" if held.sound else f"{held.error:.2%} of its elements are others"
    limits = proof.limits.get(
        proof.names.get((result.role, result.index, result.occurrence), ""), []
    )
    off = f"off by {held.error:.3g} of its norm"
    if len(limits) != 1 or held.sound:
        return f"{off}: {'sound' if held.sound else 'not sound'}"
    allowed = limits[0].allowed
    beyond = f"{times(held.error / allowed)} what is allowed" if allowed else "not sound"
    return f"{off}: {beyond if held.error > allowed else 'not sound by its roundings'}"
