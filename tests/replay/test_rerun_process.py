"""Re-runs in a process of their own: the same verdicts, and nothing that a recording does there gets out."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replay_bench import altered, judged, loaded, operators, recorded
from torch.nn import functional as F

from lockstep.core.errors import CorruptError
from lockstep.core.finding import Kind
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Judgement, Rounding
from lockstep.replay.answers import judgement_of
from lockstep.replay.calls.refusals import CannotReplay, Crashed
from lockstep.replay.local_error import LocalErrorJudge
from lockstep.replay.process import rerun_process as apart
from lockstep.replay.process.confinement import landlock_version
from lockstep.replay.process.messages import answer, answer_in
from lockstep.replay.process.rerun_process import RerunsApart
from lockstep.replay.questions import Again

MEMORY_BYTES = 1 << 30


class Does:
    """Does something in the process that unpacks it."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.done = function, arguments

    def __reduce__(self) -> Any:
        return self.done


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """Operators of a recording on disk, by name."""

    def program() -> None:
        torch.manual_seed(0)
        image = torch.randn(2, 3, 8, 8, requires_grad=True)
        pooled, indices = torch.ops.aten.max_pool2d_with_indices(image, [2, 2], [2, 2])
        torch.ops.aten.max_pool2d_with_indices_backward(
            torch.ones_like(pooled), image, [2, 2], [2, 2], [0, 0], [1, 1], False, indices
        )
        (F.gelu(image).sum() + torch.erf(image).sum()).backward()

    found = operators(recorded(tmp_path_factory.mktemp("calls") / "ref", program))
    return {call.site.op.rpartition(".")[2]: call for call in found}


@pytest.fixture(autouse=True)
def starts_at_once(
    request: pytest.FixtureRequest, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that re-run are forked from a warm one, but where their start is what is tested."""
    if request.node.get_closest_marker("cold") is None:
        monkeypatch.setattr(sys, "executable", str(programs / "python"))


def apart_judge() -> LocalErrorJudge:
    return LocalErrorJudge(ErrorModel(), reruns=RerunsApart)


@pytest.mark.parametrize("factor", [1.0 + 2.0**-23, 1.01])
@pytest.mark.parametrize("op", ["gelu", "erf"])
def test_verdicts_are_those_of_this_process(calls: dict[str, Call], op: str, factor: float) -> None:
    # given a result that is off by a rounding, and one that is wrong
    result = loaded(calls[op], Role.OUTPUT).numpy()
    other = altered(calls[op], Role.OUTPUT, 0, (result * factor).astype(result.dtype))
    # when both processes judge it, its inputs read from their files and the result given
    here, there = judged(calls[op], other), judged(calls[op], other, judge=apart_judge())
    # then they say the same
    assert here == there
    assert here.local
    assert (here.kind is Kind.FAULT) is (factor == 1.01)


def question(call: Call, does: Any = "") -> Again:
    """A question that does something on the way to the process."""
    return Again(call, None, does, 0)


@pytest.mark.parametrize("end", [Does(os.abort), Does(os.getpid)])
def test_a_process_that_dies_is_no_verdict_and_is_replaced(
    calls: dict[str, Call], end: Does
) -> None:
    # given a question that ends the process, or (the twin) one that does not
    survives = end.done[0] is os.getpid
    words = "AttributeError" if survives else "ended the process that made it"
    with pytest.raises(CannotReplay, match=words):
        RerunsApart(MEMORY_BYTES).ask(question(calls["gelu"], end))
    # then the next is answered
    result = loaded(calls["gelu"], Role.OUTPUT).numpy() * np.float32(1.01)
    wrong = altered(calls["gelu"], Role.OUTPUT, 0, result)
    assert judged(calls["gelu"], wrong, judge=apart_judge()).kind is Kind.FAULT


def test_a_crash_stands_in_the_notes(
    calls: dict[str, Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a call whose re-run crashes
    monkeypatch.setattr(RerunsApart, "ask", lambda *_: asked_once())
    judge = apart_judge()

    def asked_once() -> Judgement:
        raise Crashed("its re-run ended the process that made it (SIGSEGV)")

    wrong = altered(calls["gelu"], Role.OUTPUT, 0, loaded(calls["gelu"], Role.OUTPUT).numpy() + 1)
    # when it is judged, then the next judge decides, and it is said
    assert judged(calls["gelu"], wrong, judge=judge).unexplained
    assert (judge.decided, judge.name) == (0, ErrorModel().name)
    assert judge.notes() == [
        "torch.nn.functional.gelu: judged without a re-run: its re-run ended the process that made it (SIGSEGV)"
    ]


@pytest.mark.parametrize("executable", ["/no/such/python", "/bin/false"])
def test_where_no_process_can_be_started_that_is_said(
    calls: dict[str, Call], monkeypatch: pytest.MonkeyPatch, executable: str
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(apart, "_running", [])
    with pytest.raises(Crashed, match="no process for it could be started"):
        RerunsApart(MEMORY_BYTES).ask(question(calls["gelu"]))


WRITES_WHEN_LOADED = """
import importlib, sys, tempfile
tempfile.TemporaryFile().close()
del sys.path[0], sys.modules["typing_extensions"]
sys.modules["typing_extensions"] = importlib.import_module("typing_extensions")
"""


@pytest.mark.cold
def test_what_torch_loads_may_write_while_it_is_loaded(
    calls: dict[str, Call], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given a library of torch's that writes a file when it is loaded, as those of builds for GPUs do
    (tmp_path / "typing_extensions.py").write_text(WRITES_WHEN_LOADED)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(apart, "_running", [])
    # when a result that is off by a rounding is judged, then by running the call again
    result = loaded(calls["gelu"], Role.OUTPUT).numpy()
    other = altered(calls["gelu"], Role.OUTPUT, 0, (result * (1.0 + 2.0**-23)).astype(result.dtype))
    assert judged(calls["gelu"], other, judge=apart_judge()).local
    for process in apart._running:
        process.end()


def test_after_some_crashes_no_more_is_asked(
    calls: dict[str, Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_MOST_CRASHES", 1)
    reruns = RerunsApart(MEMORY_BYTES)
    with pytest.raises(CannotReplay, match="SIGABRT"):
        reruns.ask(question(calls["gelu"], Does(os.abort)))
    with pytest.raises(CannotReplay, match="1 re-runs ended their process, so no more"):
        reruns.ask(question(calls["gelu"]))


def test_an_answer_that_never_comes_is_not_waited_for(
    calls: dict[str, Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given no patience, and a question that blocks
    monkeypatch.setattr(apart, "_PATIENCE_S", 0.0)
    with pytest.raises(CannotReplay, match="took more than"):
        RerunsApart(MEMORY_BYTES).ask(question(calls["gelu"], Does(signal.pause)))


@pytest.mark.skipif(landlock_version() < 1, reason="the system has no Landlock")
def test_the_process_may_not_write(tmp_path: Path, calls: dict[str, Call]) -> None:
    with pytest.raises(CannotReplay, match="exit code 1"):
        RerunsApart(MEMORY_BYTES).ask(
            question(calls["gelu"], Does(os.mkdir, str(tmp_path / "made")))
        )
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("make", [lambda: LocalErrorJudge(ErrorModel()), apart_judge])
def test_indices_beyond_all_tensors_are_refused(
    calls: dict[str, Call], make: Callable[[], LocalErrorJudge]
) -> None:
    # given indices of which one points a gigabyte behind the tensor, in both runs
    call = calls["max_pool2d_with_indices_backward"]
    call = replace(call, site=replace(call.site, op=f"{call.site.op}.default"))
    index = next(r for r in call.with_role(Role.INPUT) if r.dtype == "int64")
    far = loaded(call, Role.INPUT, index.index).numpy().copy()
    far.flat[0] = 1 << 30
    hostile = altered(call, Role.INPUT, index.index, far)
    other = altered(hostile, Role.OUTPUT, 0, loaded(call, Role.OUTPUT).numpy() + 1)
    judge = make()
    judged(hostile, other, judge=judge)
    assert ["points beyond every tensor" in why for _, why in judge.refused] == [True]
    # The twin, whose indices are its own, is run again
    wrong = altered(call, Role.OUTPUT, 0, loaded(call, Role.OUTPUT).numpy() + 1)
    assert judged(call, wrong, judge=make()).kind is Kind.FAULT


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"[]", b"{}", b'{"answer": 1}', b'{"answer": {}}', b'{"too_large": "x"}',
     b'{"answer": {"tolerance": 0, "floor": 0, "kind": "\\u001b"}}', b'{"judgement": {}}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_answer_is_no_verdict(line: bytes) -> None:
    with pytest.raises(CannotReplay):
        answer_in(line, judgement_of)


def test_a_damaged_file_is_said_as_here() -> None:
    with pytest.raises(CorruptError, match=r"^x: was changed\\x1b; record again$"):
        answer_in(b'{"damaged": ["x", "was changed\\u001b", "record again"]}', judgement_of)


@pytest.mark.parametrize("rounding", [None, Rounding("inputs", ("fp16", "TF32"))])
def test_what_a_judge_says_comes_back_as_it_was(rounding: Rounding | None) -> None:
    judgement = Judgement(
        0.5,
        0.25,
        beyond_floor=True,
        unexplained=True,
        kind=Kind.FAULT,
        rounding=rounding,
        words="so",
    )
    said = json.dumps(answer(lambda: judgement)).encode()
    assert answer_in(said, judgement_of) == judgement
