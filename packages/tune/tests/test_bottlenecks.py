"""Each kind of bottleneck is named first with its line, and a well-tuned step gets no advice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from traces import MadeTrace

from lockstep_tune.bottlenecks import Bottleneck, Class, bottlenecks
from lockstep_tune.profile_screen import headline, starved_words
from lockstep_tune.trace import read_profile


def _tuned(trace: MadeTrace) -> None:
    """Two large products with their backward, a fused update, one number read."""
    for at, module in enumerate(("up", "down")):
        trace.call(
            "aten::linear", 4000, line=f"{9 + at}:/net.py", module=module, shapes=[[512, 512]]
        )
    trace.call(
        "autograd::engine::evaluate_function: AddmmBackward0", 8000, line="30:/train.py",
        inside=lambda t: t.call("aten::mm", 7990, python=0),
    )  # fmt: skip
    trace.call(
        "Optimizer.step#AdamW.step", 300, line="31:/train.py", kind="user_annotation",
        inside=lambda t: t.call("aten::_fused_adamw_", 290, python=0),
    )  # fmt: skip
    trace.call("aten::item", 4, line="32:/train.py")


def _loads(trace: MadeTrace) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    trace.call(name, 9000, line="50:/train.py", kind="user_annotation")


def _reads(trace: MadeTrace) -> None:
    for _ in range(200):
        trace.call("aten::select", 20, line="50:/train.py")
        trace.call("aten::item", 30, line="50:/train.py")


def _loops(trace: MadeTrace) -> None:
    for _ in range(2000):
        trace.call("aten::add", 4, line="50:/train.py", shapes=[[4]])


def _updates(trace: MadeTrace) -> None:
    def inside(t: MadeTrace) -> None:
        for _ in range(900):
            t.call("aten::lerp_", 3, python=5)

    trace.call(
        "Optimizer.step#Adam.step", 0, line="50:/train.py", kind="user_annotation", inside=inside
    )


def _casts(trace: MadeTrace) -> None:
    for _ in range(4):
        trace.call(
            "aten::to", 900, line="50:/train.py", shapes=[[512, 512]],
            inside=lambda t: t.call(
                "aten::_to_copy", 890, python=0, types=["float"], given=["", "15"], shapes=[[512, 512]]
            ),
        )  # fmt: skip


def _copies(trace: MadeTrace) -> None:
    for _ in range(3):
        trace.call(
            "aten::contiguous", 1500, line="50:/train.py", shapes=[[64, 64]], strides=[[1, 64]],
            inside=lambda t: t.call(
                "aten::clone", 1490, python=0, shapes=[[64, 64]], strides=[[1, 64]]
            ),
        )  # fmt: skip


def _attends(trace: MadeTrace) -> None:
    trace.call("aten::bmm", 900, line="49:/train.py", module="attention", shapes=[[8, 256, 64]])
    trace.call(
        "aten::softmax", 5000, line="50:/train.py", module="attention", shapes=[[8, 256, 256]]
    )
    trace.call("aten::bmm", 900, line="51:/train.py", module="attention", shapes=[[8, 256, 256]])


def _doubles(trace: MadeTrace) -> None:
    trace.call("aten::mm", 9000, line="50:/train.py", types=["double", "double"])


def _chains(trace: MadeTrace) -> None:
    for name in ("mul", "add", "tanh", "mul", "add", "sigmoid"):
        trace.call(f"aten::{name}", 1500, line="50:/train.py", module="act", shapes=[[4096, 512]])


def _computes_in_python(trace: MadeTrace) -> None:
    trace.call("aten::mm", 10, line="50:/train.py", python=9000)


def _waits_for_ranks(trace: MadeTrace) -> None:
    trace.call("c10d::allreduce_", 9000, line="50:/train.py")


def _of(folder: Path, *parts: Callable[[MadeTrace], None], **beside: object) -> list[Bottleneck]:
    def step(trace: MadeTrace) -> None:
        for part in parts:
            part(trace)

    trace = MadeTrace(beside=dict(beside))
    trace.step(3, step)
    trace.step(4, step)
    trace.marked_step(5, step)
    return bottlenecks(read_profile(trace.write(folder / "rank0")))


@pytest.mark.parametrize(
    ("slow", "kind", "words"),
    [
        (_loads, Class.DATA, "num_workers"),
        (_reads, Class.FRAMEWORK, ".item()"),
        (_loops, Class.FRAMEWORK, "loop"),
        (_updates, Class.FRAMEWORK, "fused=True"),
        (_casts, Class.FRAMEWORK, "dtype"),
        (_copies, Class.COPIES, ".contiguous()"),
        (_attends, Class.OPERATOR, "scaled_dot_product_attention"),
        (_doubles, Class.OPERATOR, "float32"),
        (_chains, Class.OPERATOR, "torch.compile"),
        (_computes_in_python, Class.HOST, "out of the loop"),
        (_waits_for_ranks, Class.COMMUNICATION, "no_sync"),
    ],
)
def test_what_slows_a_step_is_named_first_with_its_line(
    tmp_path: Path, slow: Callable[[MadeTrace], None], kind: Class, words: str
) -> None:
    found = _of(tmp_path, _tuned, slow)
    assert (found[0].kind, found[0].place) == (kind, "/train.py:50")
    assert words in f"{found[0].evidence} {found[0].advice}"
    # and it is all that is named
    assert len(found) == 1


def test_a_well_tuned_step_gets_no_advice(tmp_path: Path) -> None:
    assert _of(tmp_path, _tuned, threads=2, cores=2) == []


def test_idle_cores_are_named(tmp_path: Path) -> None:
    (found,) = _of(tmp_path, _tuned, threads=1, cores=4)
    assert (found.kind, found.place) == (Class.HOST, "OMP_NUM_THREADS")
    assert "1 of 4 cores" in found.evidence


def test_idle_cores_stand_at_the_line_that_sets_the_threads_and_behind_a_sure_gain(
    tmp_path: Path,
) -> None:
    threads = {"threads": 1, "cores": 8, "threads_set": "3:/train.py"}
    (alone,) = _of(tmp_path / "alone", _tuned, **threads)
    assert alone.place == "/train.py:3"
    # and a loop that costs less than they could gain, were it so, is told before them
    found = _of(tmp_path / "beside", _tuned, _loops, **threads)
    assert [one.place for one in found] == ["/train.py:50", "/train.py:3"]
    assert found[0].cost_us < found[1].cost_us


def test_lines_of_one_kind_are_added_before_they_are_ranked(tmp_path: Path) -> None:
    def loads(trace: MadeTrace) -> None:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        trace.call(name, 5000, line="60:/train.py", kind="user_annotation")

    def copies(trace: MadeTrace) -> None:
        for line in ("50:/train.py", "51:/train.py"):
            trace.call("aten::clone", 3000, line=line, shapes=[[64, 64]])

    # given a wait that is longer than each of two copies, and shorter than both
    found = _of(tmp_path, _tuned, loads, copies)
    assert [one.kind for one in found] == [Class.COPIES, Class.COPIES, Class.DATA]


def test_many_small_pieces_of_one_kind_are_told_as_one(tmp_path: Path) -> None:
    def copies(trace: MadeTrace) -> None:
        for line in range(50, 62):
            trace.call("aten::clone", 300, line=f"{line}:/train.py", shapes=[[64, 64]])

    (found,) = _of(tmp_path, _tuned, copies)
    assert found.kind is Class.COPIES
    assert "12 lines like it together" in found.evidence
    assert found.share > 0.1


def _cells(trace: MadeTrace, *, times: int, inside: int) -> None:
    """So many calls of a cell, each of which calls so many operators, as their backward does."""

    def inner(t: MadeTrace) -> None:
        for _ in range(inside):
            t.call("aten::mul", 2, python=0)

    for _ in range(times):
        trace.call("aten::lstm_cell", 2 * inside, line="50:/train.py", module="cell", inside=inner)
    for _ in range(times):
        trace.call(
            "autograd::engine::evaluate_function: MulBackward0", 2 * inside, line="50:/train.py", module="cell",
            inside=inner,
        )  # fmt: skip


def test_calls_within_calls_that_are_made_again_and_again_count(tmp_path: Path) -> None:
    # given 60 calls of a cell, and a fused call that makes as many within it
    def loop(trace: MadeTrace) -> None:
        _cells(trace, times=60, inside=40)

    def fused(trace: MadeTrace) -> None:
        _cells(trace, times=1, inside=2400)

    # then the loop alone is named, with what is called within it
    (found,) = _of(tmp_path / "loop", _tuned, loop)
    assert (found.what, found.place) == ("many small calls", "/train.py:50")
    assert "60 calls in cell at this line in each step, and 4860 within them" in found.evidence
    assert found.share > 0.2
    assert _of(tmp_path / "fused", _tuned, fused) == []


def test_an_optimizer_costs_no_more_than_it_takes(tmp_path: Path) -> None:
    # given Python in front of each call of the model, as anomaly detection puts there, and short calls of an update
    def slow(trace: MadeTrace) -> None:
        for line in range(60, 80):
            trace.call("aten::mm", 10, line=f"{line}:/train.py", python=300)

    def update(trace: MadeTrace) -> None:
        def inside(t: MadeTrace) -> None:
            for _ in range(40):
                t.call("aten::add_", 2, python=1)

        trace.call(
            "Optimizer.step#SGD.step", 0, line="81:/train.py", kind="user_annotation", inside=inside
        )

    # then the update is not told to cost what such a call of the model costs
    assert "/train.py:81" not in [one.place for one in _of(tmp_path, _tuned, slow, update)]


def test_a_machine_that_gives_no_core_is_told(tmp_path: Path) -> None:
    def words(waited_s: float, first: str) -> str:
        trace = MadeTrace(
            beside={
                "waits_s": {"3": waited_s, "4": waited_s},
                "walls_s": {"3": 0.016, "4": 0.016, "5": 0.016},
            }
        )
        for number in (3, 4):
            trace.step(number, _tuned)
        trace.marked_step(5, _tuned)
        folder = trace.write(tmp_path / f"{waited_s}" / "rank0")
        profile = read_profile(folder)
        assert headline(profile, bottlenecks(profile)).startswith(first)
        return starved_words(profile)

    # and that nothing stands out there is not told as nothing to gain
    assert "for 25% of this time" in words(0.004, "NOT TOLD: the machine was too busy")
    assert words(0.0004, "NOTHING TO GAIN") == ""


def _compile(number: int, function: str, line: int, because: str = "") -> dict[str, object]:
    return {
        "number": number, "function": function, "file": "/train.py", "line": line, "again_because": because,
        "breaks": ["Failed to trace print"] if "resume" in function else [], "took_s": 2.0,
    }  # fmt: skip


def test_a_function_that_is_compiled_again_is_named_with_its_guard(tmp_path: Path) -> None:
    # given one compilation in step 0 and two in later ones
    compiles = [
        _compile(0, "forward", 50),
        _compile(
            1, "forward", 50, "0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3"
        ),
        _compile(
            2, "forward", 50, "0/1: tensor 'x' size mismatch at index 0. expected 3, actual 4"
        ),
    ]
    compiled_before = {"0": 0, "1": 1, "2": 2, "3": 3}
    # when
    found = _of(tmp_path, _tuned, compiles=compiles, compiled_before=compiled_before)[0]
    # then
    assert (found.kind, found.place) == (Class.COMPILATION, "/train.py:50")
    assert "2 compilations" in found.evidence
    assert "size mismatch at index 0. expected 3, actual 4" in found.evidence


def test_a_function_that_is_compiled_once_is_not_named(tmp_path: Path) -> None:
    compiled_before = {"0": 0, "1": 1, "2": 1, "3": 1}
    compiles = [_compile(0, "forward", 50)]
    assert _of(tmp_path, _tuned, compiles=compiles, compiled_before=compiled_before) == []


def test_a_graph_break_is_named_with_its_line(tmp_path: Path) -> None:
    def regions(trace: MadeTrace) -> None:
        for _ in range(2):
            trace.call("Torch-Compiled Region: 0/0", 3000, line="1:/other.py")

    compiles = [_compile(0, "forward", 40), _compile(1, "torch_dynamo_resume_in_forward_at_50", 50)]
    found = _of(
        tmp_path, _tuned, regions, compiles=compiles, compiled_before={"0": 0, "1": 2, "2": 2}
    )[0]
    assert (found.kind, found.place) == (Class.COMPILATION, "/train.py:50")
    assert "Failed to trace print" in found.evidence
