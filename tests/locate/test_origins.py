"""What all ranks have at one place is one origin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tiny_run import TinyRun, recording

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Origin
from lockstep.locate.flow.origins import once_over_ranks


def an_origin() -> Origin:
    wrong = TinyRun(alter={"fc1": lambda value: (value * np.float32(1.01)).astype(value.dtype)})
    return compare_recordings(recording(TinyRun()), recording(wrong)).origins[0]


def test_ranks_with_one_mistake_have_one_origin() -> None:
    # Given three ranks that are wrong at one place
    first = an_origin()
    # When they are told together
    found = once_over_ranks([first, replace(first, rank="rank1"), replace(first, rank="rank2")])
    # Then it is one origin, which names the others
    assert [origin.rank for origin in found] == ["rank0"]
    assert found[0].reason == f"{first.reason}; and so on rank1, rank2"


def test_other_places_and_steps_stay_apart_in_their_order() -> None:
    first = an_origin()
    apart = [first, replace(first, rank="rank1", module="fc2"), replace(first, step=1)]
    assert once_over_ranks(apart) == apart
