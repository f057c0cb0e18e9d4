"""Two recordings side by side: paired as `compare` pairs them, and not judged."""

from __future__ import annotations

import pytest
from tiny_run import TinyRun, recording

from lockstep.align.mapping import NameMapping
from lockstep.comparison import compare_recordings
from lockstep.core.errors import UsageError
from lockstep.measure.measured_pair import measure_pair
from lockstep.reading import paired_records, paired_steps


def test_records_are_paired_as_compare_pairs_them() -> None:
    # given two ranks of two steps, and a candidate that writes its relu by hand and spells its loss otherwise
    reference = recording(TinyRun(steps=2), TinyRun(steps=2))
    candidate = recording(TinyRun(steps=2, by_hand=True, alter={"fc2": lambda value: value * 2}),
                          TinyRun(steps=2))  # fmt: skip
    compared = compare_recordings(reference, candidate)
    judged = [
        (one.pair.reference.content.id, one.pair.candidate.content.id, one.pair.method)
        for one in compared.findings
        if one.pair.reference is not None and one.pair.candidate is not None
    ]
    # when their records are asked for
    pairs = list(paired_records(reference, candidate))
    # then they are those that compare held against each other
    assert len(judged) > 100
    found = [
        (pair.reference.content.id, pair.candidate.content.id, pair.method)
        for pair in pairs
        if pair.reference is not None and pair.candidate is not None
    ]
    assert sorted(found) == sorted(judged)
    # and how far they are apart can be asked of each
    apart = max(pairs, key=lambda pair: measure_pair(pair).difference)
    assert measure_pair(apart).difference >= 0.5


def test_steps_come_with_their_ranks_and_what_has_no_partner() -> None:
    reference = recording(TinyRun(steps=3), TinyRun(steps=3))
    candidate = recording(TinyRun(steps=2), TinyRun(steps=2, by_hand=True))

    found = list(paired_steps(reference, candidate))

    assert [(one.number, one.rank) for one in found] == [
        (0, "rank0"), (0, "rank1"), (1, "rank0"), (1, "rank1"),
    ]  # fmt: skip
    assert [len(one.calls.lone) > 0 for one in found] == [False, True, False, True]


def test_a_pattern_and_steps_choose_pairs_by_either_name() -> None:
    # given a candidate that spells an operator otherwise
    reference = recording(TinyRun(steps=2))
    candidate = recording(TinyRun(steps=2, spelling="vendor.fast_relu"))
    mapping = NameMapping(operators={"torch.nn.functional.relu": "vendor.fast_relu"})
    # then its pairs are found by the name of either side, in the steps that are asked for
    ours = list(paired_records(reference, candidate, pattern="relu", steps=[1], mapping=mapping))
    theirs = list(
        paired_records(reference, candidate, pattern="fast_relu", steps=[1], mapping=mapping)
    )
    assert ours == theirs
    assert {pair.present.step for pair in ours} == {1}
    with pytest.raises(UsageError, match="matches no module"):
        list(paired_records(reference, candidate, pattern="gelu"))


def test_what_cannot_be_paired_is_refused_in_compare_s_words() -> None:
    reference, candidate = recording(TinyRun()), recording(TinyRun())
    with pytest.raises(UsageError, match="have step 0, and not --steps 7; ask for steps"):
        list(paired_steps(reference, candidate, steps=[7]))
    with pytest.raises(UsageError, match="give numbers of steps"):
        list(paired_steps(reference, candidate, steps="7"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="candidate is of type int"):
        list(paired_steps(reference, 7))  # type: ignore[arg-type]
