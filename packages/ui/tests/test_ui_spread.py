"""How the values of a parameter lie over steps, and what a recording lacks to tell it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from served_pages import Served

from lockstep.reading.recorded_series import PARAMETER, tensors_of
from lockstep.store.reader import open_recording
from lockstep_ui.runs import Runs
from lockstep_ui.spread_routes import _spread


def test_whole_tensors_are_counted_and_every_value_is_in_a_column(served: Served) -> None:
    key = served.keys()["reference"]
    names = served.json(f"spread/names?runs={key}")["names"]
    what, name = names[0]

    found = served.json(f"spread/data?runs={key}&what={what}&name={name}")

    (rank,) = found["runs"][0]["ranks"]
    counted = rank["counts"]
    assert what == PARAMETER
    assert len(counted["edges"]) == len(counted["counts"][0]) + 1
    size = int(np.prod(rank["shape"]))
    total = sum(map(sum, counted["counts"])) + counted["outside"]
    assert total == size * len(counted["steps"])
    assert rank["without"] == ""


def test_of_sketches_the_statistics_are_shown_and_what_is_lacking_is_said(
    lockstep_recording: Path,
) -> None:
    (run,) = Runs([lockstep_recording]).all()
    series = tensors_of(open_recording(lockstep_recording))[0][0]

    (rank,) = _spread(run, series.what, series.name)["ranks"]

    assert rank["counts"] is None
    assert "--save tensors" in rank["without"]
    assert rank["steps"] == series.steps.tolist()
    assert rank["maximum"] == series.maximum.tolist()


@pytest.mark.parametrize(
    ("question", "status"), [("data?name=x", 400), ("names?runs=none", 404), ("other", 404)]
)
def test_strange_questions_of_values_are_refused(
    served: Served, question: str, status: int
) -> None:
    assert served.get(f"spread/{question}").status == status


def test_a_parameter_that_is_not_there_is_no_error(served: Served) -> None:
    key = served.keys()["reference"]
    found = served.json(f"spread/data?runs={key}&what=parameter&name=../../no")

    assert found["runs"][0]["ranks"] == []
