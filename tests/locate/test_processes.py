"""Which ranks were compared, of how many, and how the commands ended, stand in the headline."""

from __future__ import annotations

import pytest
from small_training import Loop, recorded

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.screen import headline, render_comparison
from lockstep.store.reader import Recording, open_recording


def opened(loop: Loop | None = None) -> Recording:
    """A recording of a small training, whose manifest may be changed."""
    return open_recording(recorded(loop or Loop()))


def one_of_two(recording: Recording) -> Recording:
    """As `record --ranks 0` leaves it in a world of two."""
    recording.manifest.options.ranks = "0"
    recording.ranks["rank0"].manifest.world_size = 2
    return recording


def notes_of(found: Comparison) -> str:
    return " ".join(render_comparison(found).plain.split("Notes")[-1].split())


def test_ranks_that_were_not_asked_for_are_told() -> None:
    # Given recordings of one rank of two
    found = compare_recordings(one_of_two(opened()), one_of_two(opened()))
    # Then the headline says which, of how many
    assert headline(found).startswith("AGREE: rank 0 of 2, steps 0-1, ")
    assert comparison_json(found)["ranks"] == {"compared": [0], "trained": 2}
    # And where they differ, a note does
    found = compare_recordings(one_of_two(opened()), one_of_two(opened(Loop("no residual"))))
    assert "compared: rank 0 of 2" in notes_of(found)


@pytest.mark.parametrize(("code", "words"), [(3, "exit code 3"), (137, "exit code 137 (SIGKILL)")])
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_a_command_that_did_not_end_well_is_told(side: str, code: int, words: str) -> None:
    # Given a pair of which one command ended with an error behind its recorded steps
    runs = {"reference": opened(), "candidate": opened()}
    runs[side].manifest.exit_code = code
    # When it is compared
    found = compare_recordings(**runs)
    # Then the headline of the agreement has it
    assert f"; the {side}'s command ended with {words}" in headline(found)
    assert found.endings == (f"the {side}'s command ended with {words}",)
    # And a difference keeps it in a note
    runs = {"reference": opened(), "candidate": opened(Loop("no residual"))}
    runs[side].manifest.exit_code = code
    assert f"the {side}'s command ended with {words}" in notes_of(compare_recordings(**runs))


def test_a_script_that_was_ended_while_it_was_recorded_is_told() -> None:
    candidate = opened()
    candidate.ranks["rank0"].manifest.ended_by = "the exception RuntimeError"
    assert "the candidate was ended by the exception RuntimeError" in headline(
        compare_recordings(opened(), candidate)
    )


def test_nothing_is_told_of_all_ranks_and_commands_that_ended_well() -> None:
    # Given two recordings of all there was, the commands of which ended with 0
    runs = opened(), opened()
    for one in runs:
        one.manifest.exit_code = 0
    found = compare_recordings(*runs)
    # Then the headline has neither
    assert found.verdict is Verdict.AGREE
    assert not any(word in headline(found) for word in ("rank", "exit code", "ended"))
    assert found.endings == ()
