"""Several runs on one axis: what is shown, and where two curves part."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_pages import Served

from lockstep.reading.losses import losses_of
from lockstep.store.reader import open_recording
from lockstep_ui.curves import Curve, parting

numbers = st.floats(width=32)
curves = st.dictionaries(st.integers(0, 12), numbers, max_size=10)


def curve(held: dict[int, float]) -> Curve:
    steps = sorted(held)
    return Curve(
        "loss", "rank0", np.array(steps, np.int32), np.array([held[one] for one in steps], float)
    )


@given(curves, curves)
def test_curves_part_at_the_first_shared_step_at_which_bits_differ(
    one: dict[int, float], other: dict[int, float]
) -> None:
    found = parting(curve(one), curve(other))
    shared = sorted(one.keys() & other.keys())
    same = [
        step
        for step in shared
        if one[step] == other[step] or (math.isnan(one[step]) and math.isnan(other[step]))
    ]

    assert found.shared == len(shared)
    assert found.first == next((step for step in shared if step not in same), None)
    assert parting(curve(one), curve(one)).first is None
    assert parting(curve(other), curve(one)).first == found.first
    for step, value in zip(found.steps.tolist(), found.difference.tolist(), strict=True):
        finite = math.isfinite(one[step]) and math.isfinite(other[step])
        assert value == other[step] - one[step] if finite else math.isnan(value)


def test_losses_of_two_runs_stand_on_one_axis_with_the_step_at_which_they_part(
    served: Served,
) -> None:
    keys = served.keys()
    runs = f"{keys['reference']},{keys['below/candidate']}"

    found = served.json(f"curves/data?runs={runs}&name=loss")

    recording = open_recording(served.folder / "below" / "candidate")
    expected = [one.value for one in losses_of(recording.ranks["rank0"])]
    assert [line["run"] for line in found["lines"]] == runs.split(",")
    assert found["lines"][1]["values"] == expected
    (parted,) = found["partings"]
    assert parted["first"] == 0
    assert parted["values"][0] == expected[0] - found["lines"][0]["values"][0]
    names = served.json(f"curves/names?runs={runs}")["names"]
    assert names[0] == "loss"
    assert any(name.startswith("lr of") for name in names)


def test_what_is_noise_in_a_loss_is_told_by_comparing_not_by_its_bits(served: Served) -> None:
    keys = served.keys()
    answer = served.answer(f"compare/{keys['reference']}/{keys['below/candidate']}/graph")

    assert answer["loss"]["judged"] >= 1
    assert answer["loss"]["step"] in (None, 0, 1)


@pytest.mark.parametrize(
    ("question", "status"),
    [
        ("data?name=loss", 400), ("data?runs=,,,", 400), ("data?runs=none&name=loss", 404),
        ("names?runs=../../etc", 404), ("names?runs=" + ",".join("abcdefghi"), 400), ("nothing", 404),
    ],
)  # fmt: skip
def test_strange_questions_are_refused(served: Served, question: str, status: int) -> None:
    assert served.get(f"curves/{question}").status == status


def test_a_damaged_run_is_named_with_the_reason(served: Served) -> None:
    key = served.keys()["<b>damaged"]
    refused = served.get(f"curves/names?runs={key}")

    assert refused.status == 500
    assert "manifest.json" in refused.text
