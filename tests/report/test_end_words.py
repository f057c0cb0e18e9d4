"""Words about how two trainings went on after their recorded steps."""

from __future__ import annotations

import pytest

from lockstep.core.finding import Course, Ends
from lockstep.report.comparison.end_words import how_far


@pytest.mark.parametrize(
    ("rel_l2", "words"),
    [
        (0.0, "no parameter differs at the end"),
        (
            2e-6,
            "the trainings differ by 2e-4% at their end (relative L2), fc.weight the most (3e-4%)",
        ),
    ],
)
def test_trainings_that_end_alike_are_not_said_to_differ(rel_l2: float, words: str) -> None:
    ends = Ends(Course.NOISE, rel_l2=rel_l2, largest="fc.weight", largest_rel_l2=1.5 * rel_l2)
    assert how_far(ends) == words


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (("norm.running_mean",), "no parameter differs at the end, but norm.running_mean does"),
        (("a", "b"), "no parameter differs at the end, but a, b do"),
    ],
)
def test_equal_parameters_are_no_equal_end_beside_other_statistics(
    others: tuple[str, ...], words: str
) -> None:
    assert how_far(Ends(Course.APART, rel_l2=0.0, others_apart=others)) == words
