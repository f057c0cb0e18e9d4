"""A pattern is told of only once every rank that is recorded has ended a step without it."""

from __future__ import annotations

from lockstep.core.unmatched import UnmatchedNote, unmatched_by_all


def told(*notes: UnmatchedNote) -> list[str]:
    read = [UnmatchedNote.from_text(note.as_text()) for note in notes]
    return [sentence for _, sentence in dict(unmatched_by_all(read)).items()]


def test_what_no_rank_matches_is_told_with_the_nearest_names() -> None:
    alone = UnmatchedNote(3, 1, {"linaer": ["torch.nn.Linear"], "nothing": []})
    assert told(alone) == [
        "pattern 'linaer' matches no module and no operator of step 3; nearest: torch.nn.Linear",
        "pattern 'nothing' matches no module and no operator of step 3",
    ]


def test_what_another_rank_matches_or_may_match_yet_is_not_told() -> None:
    # given two ranks of which each holds one half of the model, and a pattern that neither has
    first = UnmatchedNote(0, 2, {"upper": [], "typo": []})
    second = UnmatchedNote(0, 2, {"lower": [], "typo": []})
    assert told(first) == []
    assert told(first, second) == ["pattern 'typo' matches no module and no operator of step 0"]
