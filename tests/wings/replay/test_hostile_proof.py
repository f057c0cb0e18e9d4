"""A written test is run and read by others: recorded text in it commands neither a shell, nor Python, nor a page."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.cli.main import main
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase, Site
from lockstep.replay.answers import inside_of
from lockstep.store import call_decoder
from lockstep.wings.replay.standalone import written_text
from lockstep.wings.replay.standalone.folder import Background, write_folder
from lockstep.wings.replay.standalone.module_proof import module_proof
from lockstep.wings.replay.standalone.proof import proof_of

WICKED = "cpu; touch made`id`\n$(touch made) [x](http://x) <script> '''\"\"\""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transposed weight, whole."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    model.weight = torch.nn.Parameter(torch.randn(3, 2).t())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(folder, model=model, steps="0:1", save="tensors"):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    return folder


def linear(recording: Path) -> Call:
    calls = lockstep.open(recording).ranks["rank0"].calls(0)
    return next(call for call in calls if call.site.op == "torch.nn.functional.linear")


@pytest.mark.parametrize("text", ["cpu", WICKED])
def test_recorded_text_stays_text(recording: Path, tmp_path: Path, text: str) -> None:
    # given a call whose module, device and versions are called anything
    call = linear(recording)
    site = Site(text, call.site.op, 0, Phase.FORWARD)
    proof = proof_of(replace(call, site=site))
    told = Background((), text, {text: text}, text, story=text, cannot_show=text)
    # when it is written down
    write_folder(tmp_path / "proof", proof, told)
    page = (tmp_path / "proof" / "README.md").read_text()
    # then the line to copy starts pytest and nothing else
    (line,) = [line for line in page.splitlines() if "TEST_DEVICE" in line]
    assert shlex.split(line) == ["TEST_DEVICE=cpu", "pytest", "test_linear.py"]
    # and the page has no markup of its author's, the test no code of it
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", page)
    assert "](" not in outside.replace("\\](", "")
    assert [line for line in page.splitlines() if line.startswith(("<", "$("))] == []
    tree = ast.parse((tmp_path / "proof" / "test_linear.py").read_text())
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)][-1:] == [
        "test_linear"
    ]


def test_a_module_of_any_name_stays_text(recording: Path, tmp_path: Path) -> None:
    # given a module whose class, path and one of whose operators are called anything
    calls = lockstep.open(recording).ranks["rank0"].calls(0)
    module = next(call for call in calls if call.kind is CallKind.MODULE)
    found = inside_of(module, calls)
    wicked = replace(found.inside[0], id=-5, site=Site(WICKED, WICKED, 0, Phase.FORWARD))
    called = replace(module, site=Site(WICKED, WICKED, 0, Phase.FORWARD))
    module_call = replace(found, call=called, inside=(wicked, *found.inside))
    # when it is written down
    proof = module_proof(module_call, like_its_own=True)
    told = Background((), WICKED, {}, not_run=(WICKED,), as_recorded=True)
    write_folder(tmp_path / "proof", proof, told)
    # then it is a test with a name of its own, and its page has no markup of its author's
    (test,) = (tmp_path / "proof").glob("test_*.py")
    assert re.fullmatch(r"test_\w*\.py", test.name)
    tree = ast.parse(test.read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert names[-2:] == [test.stem, f"{test.stem}_as_recorded"]
    page = (tmp_path / "proof" / "README.md").read_text()
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", page)
    assert "](" not in outside.replace("\\](", "")
    assert [line for line in page.splitlines() if line.startswith(("<", "$("))] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("npu:0", "npu:0"), ("cpu", "cpu"), ("cpu; touch x", "cpu"), ("", "cpu"), ("npu:0\n", "cpu")],
)
def test_a_device_is_one_or_the_cpu(text: str, expected: str) -> None:
    assert written_text.device_of(text) == expected


@pytest.mark.parametrize("text", ["a", "a`b", "``", "`a``b`"])
def test_no_backtick_ends_code(text: str) -> None:
    shown = written_text.code(text)
    fence = shown[: len(shown) - len(shown.lstrip("`"))]
    assert shown.endswith(fence)
    assert fence not in shown[len(fence) : -len(fence)]


def test_a_layout_of_other_axes_is_one_sentence(
    recording: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given a layout that has one stride too many
    read = call_decoder.layout_in
    monkeypatch.setattr(
        "lockstep.store.call_decoder.layout_in",
        lambda text: (found := read(text)) and replace(found, strides=(*found.strides, 1)),
    )
    site = ["--only", "*linear", "--write-test", str(tmp_path / "proof")]
    assert main(["replay", str(recording), *site]) == 2
    said = capsys.readouterr().err
    assert "is not a layout of 2 axes" in said
    assert said.count("\n") == 1
    # and the right one is none to speak of
    monkeypatch.undo()
    assert main(["replay", str(recording), *site]) == 0
