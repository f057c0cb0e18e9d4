"""Reading traces: what calls what, from which line, in which step; and what is no trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from traces import MadeTrace

from lockstep.core.errors import RecordingError
from lockstep_tune.profile import Operator, Phase
from lockstep_tune.trace import read_profile


def _training(trace: MadeTrace) -> None:
    """A step: one product in a module, its backward, an update. Sequence numbers go on from step to step."""
    sequence = trace.number
    trace.call(
        "aten::linear", 30, line="9:/net.py", module="up", sequence=sequence,
        inside=lambda t: t.call("aten::addmm", 20, sequence=sequence, python=0),
    )  # fmt: skip
    trace.call(
        "autograd::engine::evaluate_function: AddmmBackward0", 50, line="12:/train.py", sequence=sequence,
        inside=lambda t: t.call("aten::mm", 40, python=0),
    )  # fmt: skip
    trace.call(
        "Optimizer.step#SGD.step", 15, line="13:/train.py", kind="user_annotation",
        inside=lambda t: t.call("aten::add_", 5, python=0),
    )  # fmt: skip


def _profiled(folder: Path) -> dict[str, Operator]:
    trace = MadeTrace()
    trace.step(3, _training)
    trace.step(4, _training)
    trace.marked_step(5, _training)
    return {one.name: one for one in read_profile(trace.write(folder)).operators}


def test_lines_and_modules_of_the_marked_step_are_those_of_the_timed_ones(tmp_path: Path) -> None:
    found = _profiled(tmp_path / "rank0")
    # then forward is placed by its marks, backward by the forward that it belongs to
    assert (found["aten::addmm"].module, found["aten::addmm"].source) == ("up", "/net.py:9")
    assert (found["aten::mm"].module, found["aten::mm"].source) == ("up", "/net.py:9")
    assert found["aten::add_"].source == "/train.py:13"
    phases = [found[name].phase for name in ("aten::addmm", "aten::mm", "aten::add_")]
    assert phases == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]


def test_times_are_means_of_the_timed_steps_without_the_marked_one(tmp_path: Path) -> None:
    found = _profiled(tmp_path / "rank0")
    linear = found["aten::linear"]
    assert (linear.calls, linear.host_us, linear.self_host_us) == pytest.approx((1, 30, 10))
    assert found["autograd::engine::evaluate_function: AddmmBackward0"].python_us == pytest.approx(
        1
    )


def test_kernels_count_for_the_operator_that_launches_them(tmp_path: Path) -> None:
    # given a trace of a device, from elsewhere
    trace = MadeTrace()
    trace.call("aten::linear", 30, inside=lambda t: t.call("aten::addmm", 20, python=0))
    launched = next(one for one in trace.events if one["name"] == "aten::addmm")
    number = launched["args"]["External id"]
    trace.range("gemm_kernel", 1000, 70, "kernel", None, {"External id": number})
    trace.events[-1]["tid"] = 7
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps({"traceEvents": trace.events}))
    # when
    profile = read_profile(file)
    # then
    found = {one.name: one for one in profile.operators}
    assert (found["aten::addmm"].self_device_us, found["aten::linear"].device_us) == (70, 70)
    assert found["aten::linear"].self_device_us == 0
    # and what the trace lacks is said
    assert any("marks no steps" in one for one in profile.missing)
    assert any("call stacks" in one for one in profile.missing)


def test_call_stacks_of_another_trace_give_lines_and_modules(tmp_path: Path) -> None:
    trace = MadeTrace()
    trace.call("aten::relu", 10, python=100)
    trace.range("model.py(12): forward", 1050, 200, "python_function", 0)
    trace.range("nn.Module: Net_0", 1040, 220, "python_function", 0)
    trace.range("torch/nn/functional.py(7): relu", 1090, 100, "python_function", 0)
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps({"traceEvents": trace.events}))
    (found,) = read_profile(file).operators
    assert (found.module, found.source) == ("Net_0", "model.py:12")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"traceEvents": [{"ph": "X", "na', "cut"),
        (gzip.compress(mtime=0, data=b'{"traceEvents": []}')[:-6], "cut"),
        (b"Op Name,Duration\nMatMul,3\n", "no trace"),
        (b'{"a": 1}', "no events with a duration"),
        (b"[1, 2]", "no events with a duration"),
    ],
)
def test_what_is_cut_or_no_trace_is_said_in_a_sentence(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(content)
    with pytest.raises(RecordingError, match=words) as raised:
        read_profile(file)
    assert str(file) in str(raised.value)


def test_a_trace_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        read_profile(tmp_path / "none.json")
