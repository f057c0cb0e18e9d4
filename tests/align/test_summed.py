"""Two parameters of the reference that are one in the candidate: gradients and updates are those of their sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep
from lockstep.align.mapping import NameMapping
from lockstep.align.summed import with_sums
from lockstep.capture.sink import Sink
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.manifest import Options
from lockstep.core.site import CallKind, Phase, Role
from lockstep.report.comparison.verdict_words import headline

Array = np.ndarray[Any, Any]

RANDOM = np.random.default_rng(0)
X, WEIGHT = (RANDOM.normal(size=shape).astype("f4") for shape in ((5, 3), (3, 4)))
FIRST, SECOND = (RANDOM.normal(size=4).astype("f4") for _ in range(2))
MAPPING = NameMapping(parameters={"cell.one + cell.other": "cell.bias"})


def recorded(
    path: Path,
    given: dict[str, Array],
    *,
    learn: int = 2,
    steps: int = 1,
    save: str = "tensors",
    error: float = 0.0,
) -> Path:
    """Steps of a layer that adds biases, of which the first few learn; `error` is added to each update."""
    biases = dict(given)
    with Sink(path, {"numpy": "1"}, options=Options(steps="0:", save=save)) as sink:
        for _ in range(steps):
            sink.step()
            sink.parameters({"cell.weight": WEIGHT, **biases}, {"cell": "Cell"})
            trained(sink, biases, list(biases)[:learn], error)
    return path


def trained(sink: Sink, biases: dict[str, Array], learning: list[str], error: float) -> None:
    """One step, after which the biases are what it left of them."""
    y = X @ WEIGHT + sum(biases.values())
    gradient = (2.0 * y).sum(axis=0)
    call = sink.open_call("cell", "Cell", kind=CallKind.MODULE, module_class="Cell")
    call.record(Role.INPUT, "args.0", X)
    for number, (name, value) in enumerate(biases.items(), start=1):
        call.record(Role.INPUT, name, value, index=number, argument=f"args.{number}")
    call.record(Role.OUTPUT, "result", y)
    call.record(Role.GRAD_OUTPUT, "result", 2.0 * y, phase=Phase.BACKWARD)
    sink.loss(np.float32(np.square(y).sum()))
    for name in learning:
        made = sink.open_call(
            "cell", "accumulate_grad", kind=CallKind.GRADIENT, phase=Phase.BACKWARD
        )
        made.record(Role.PARAM_GRAD, name, gradient)
    for name in learning:
        update = sink.open_call("cell", "SGD", kind=CallKind.OPTIMIZER, phase=Phase.OPTIMIZER)
        update.record(Role.PARAM, name, biases[name])
        update.record(Role.PARAM_GRAD, name, gradient)
        biases[name] = biases[name] - np.float32(0.01) * gradient + np.float32(error)
        update.record(Role.PARAM_AFTER, name, biases[name])


def compared(
    folder: Path, *, learn: int = 2, steps: int = 1, save: str = "tensors", error: float = 0.0
) -> Comparison:
    two = {"cell.one": FIRST, "cell.other": SECOND}
    one = {"cell.bias": FIRST + SECOND}
    sides = (
        recorded(folder / "two", two, learn=learn, steps=steps, save=save),
        recorded(folder / "one", one, steps=steps, save=save, error=error),
    )
    return lockstep.compare_recordings(*sides, mapping=MAPPING)


def test_a_sum_of_two_agrees_and_the_headline_says_how_its_update_was_compared(
    tmp_path: Path,
) -> None:
    found = compared(tmp_path)
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ()), headline(found)
    names = {one.pair.present.name for one in found.findings}
    assert "cell.one + cell.other" in names
    assert all(
        one.pair.present.role is Role.INPUT
        for one in found.findings
        if one.pair.present.name == "cell.one"
    )
    assert "update of cell.one + cell.other: compared by that of cell.one" in headline(found)


def test_an_update_of_the_sum_that_is_wrong_is_named(tmp_path: Path) -> None:
    (origin,) = compared(tmp_path, error=0.01).origins
    assert (origin.op, origin.tensor) == ("SGD", "cell.one + cell.other")


def test_later_steps_are_compared_where_one_part_alone_learns(tmp_path: Path) -> None:
    found = compared(tmp_path, learn=1, steps=3)
    assert (found.verdict, found.steps) == (Verdict.AGREE, (0, 1, 2)), headline(found)
    # where both do, the two trainings part by definition
    both = compared(tmp_path / "both", steps=3)
    assert (both.verdict, both.steps, both.origins) == (Verdict.INCOMPARABLE, (0,), ())
    assert both.not_compared[0].startswith("steps 1, 2 cannot be compared: all of cell.one")
    assert both.not_compared[0].endswith("compare --steps 0")


def test_an_error_in_a_later_step_is_named_where_one_part_alone_learns(tmp_path: Path) -> None:
    assert compared(tmp_path, learn=1, steps=3, error=0.01).origins[0].op == "SGD"


@pytest.mark.parametrize("save", ["sketch", "stats"])
def test_a_sum_is_not_held_to_agree_where_its_parts_were_not_saved_whole(
    tmp_path: Path, save: str
) -> None:
    found = compared(tmp_path, save=save)
    assert found.verdict is Verdict.INCOMPARABLE
    assert any("cell.bias" in one for one in found.not_compared)


def test_what_an_update_leaves_is_the_first_part_after_it_beside_the_others_before(
    tmp_path: Path,
) -> None:
    two = recorded(tmp_path, {"cell.one": FIRST, "cell.other": SECOND})
    calls = lockstep.open(two).ranks["rank0"].calls(0)
    # when the calls of both are put together
    together = with_sums(calls, ["cell.one + cell.other"])
    (update,) = (call for call in together if call.kind is CallKind.OPTIMIZER)
    (before,), (after,) = update.with_role(Role.PARAM), update.with_role(Role.PARAM_AFTER)
    gradient = (2.0 * (X @ WEIGHT + FIRST + SECOND)).sum(axis=0)
    np.testing.assert_array_equal(before.content.load(), FIRST + SECOND)
    np.testing.assert_array_equal(
        after.content.load(), (FIRST - np.float32(0.01) * gradient) + SECOND
    )


def test_parts_whose_gradients_are_two_tensors_stay_apart(tmp_path: Path) -> None:
    """Then one of them is used elsewhere too, and neither has the gradient of the sum."""
    calls = (
        lockstep.open(recorded(tmp_path, {"cell.one": FIRST, "cell.other": SECOND}))
        .ranks["rank0"]
        .calls(0)
    )
    changed = [
        replace(
            call,
            records=tuple(
                replace(one, content=replace(one.content, id=99)) for one in call.records
            ),
        )
        if call.kind is CallKind.GRADIENT and call.records[0].name == "cell.other"
        else call
        for call in calls
    ]
    names = [
        record.name
        for call in with_sums(changed, ["cell.one + cell.other"])
        if call.kind is CallKind.GRADIENT
        for record in call.records
    ]
    assert names == ["cell.one", "cell.other"]
