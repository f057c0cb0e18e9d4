"""Choosing calls of a recording, without a recording on disk."""

from __future__ import annotations

import pytest
from tiny_run import TinyRun, recording

from lockstep.core.errors import UsageError
from lockstep.reading import calls_matching, check_choice, site_names


def test_calls_are_chosen_by_path_operator_or_printed_site_in_every_rank_and_step() -> None:
    # given two ranks of two steps
    run = recording(TinyRun(steps=2), TinyRun(steps=2))
    # then a pattern finds its calls in all of them, or in those that are asked for
    every = calls_matching(run, "relu")
    assert [call.site.op for call in every] == ["torch.nn.functional.relu"] * 4
    assert len(calls_matching(run, "relu", step=1)) == 2
    assert len(calls_matching(run, "relu", step=1, rank="rank1")) == 1
    # and so does the site as it is printed, whole and without its end
    whole = str(every[0].site)
    for printed in (whole, whole.rpartition(", ")[0], whole.rpartition(" #")[0]):
        assert calls_matching(run, printed) == every
    # and so does that of its backward, which is recorded with the call; another phase does not
    backward = next(record.site for record in every[0].records if record.site != every[0].site)
    assert calls_matching(run, str(backward)) == every
    with pytest.raises(UsageError, match="matches no module"):
        calls_matching(run, whole.replace("forward", "optimizer"))


def test_what_a_recording_has_not_is_refused_with_what_it_has() -> None:
    run = recording(TinyRun())
    check_choice(run)
    check_choice(run, step=0, rank="rank0")
    for choice, known in (({"step": 3}, "it has 0"), ({"rank": "rank9"}, "it has rank0")):
        with pytest.raises(UsageError, match=known):
            check_choice(run, **choice)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"nearest: torch\.nn\.functional\.relu"):
        calls_matching(run, "rely")
    assert "fc1" in site_names(run)
    assert "" not in site_names(run)
