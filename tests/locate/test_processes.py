"""Which ranks were compared, of how many, and how the commands ended, stand in the headline."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from small_training import Loop, recorded

from lockstep.comparison import compare_recordings
from lockstep.core.errors import ExitCode
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
def test_a_command_that_did_not_end_well_is_no_agreement(side: str, code: int, words: str) -> None:
    # Given a pair of which one command ended with an error after its recorded steps
    runs = {"reference": opened(), "candidate": opened()}
    runs[side].manifest.exit_code = code
    # When it is compared
    found = compare_recordings(**runs)
    # Then it is no agreement, and the headline says which one, how, and after how many steps
    told = f"the {side}'s command ended with {words} after 2 trained steps"
    assert (found.verdict, found.exit_code()) == (Verdict.INCOMPARABLE, ExitCode.FAILED)
    assert headline(found).startswith(f"INCOMPARABLE: {told}; steps 0-1, ")
    assert headline(found).count("exit code") == 1
    assert found.endings == found.crashes == tuple(comparison_json(found)["crashes"]) == (told,)
    # And whoever allows it gets the agreement, which tells it too
    found = compare_recordings(**runs, allow_crash=True)
    assert (found.verdict, found.exit_code()) == (Verdict.AGREE, ExitCode.AGREES)
    assert f"; {told}" in headline(found)
    # And a difference is one as before, with that beside it
    runs = {"reference": opened(), "candidate": opened(Loop("no residual"))}
    runs[side].manifest.exit_code = code
    found = compare_recordings(**runs)
    assert found.exit_code() == ExitCode.DIFFERS
    assert render_comparison(found).plain.count(told) == 1


def test_trainings_that_crash_alike_are_no_agreement() -> None:
    # Given two trainings that ended with the same exit code after the same step
    runs = opened(), opened()
    for one in runs:
        one.manifest.exit_code = 1
    # Then both are named
    found = compare_recordings(*runs)
    assert found.exit_code() == ExitCode.FAILED
    assert [one.split("'")[0] for one in found.crashes] == ["the reference", "the candidate"]


@pytest.mark.parametrize(
    "by", ["the exception RuntimeError", "sys.exit(3)", "os._exit(4)", "os.abort", "SIGTERM, which it sent itself"]
)  # fmt: skip
def test_a_process_that_ended_itself_in_a_failure_is_no_agreement(by: str) -> None:
    # Given a process that crashed, of a command that tells no exit code, or hides it
    for code in (None, 0):
        candidate = opened()
        candidate.manifest.exit_code = code
        candidate.ranks["rank0"].manifest.ended_by = by
        # Then it is no agreement
        found = compare_recordings(opened(), candidate)
        assert found.verdict is Verdict.INCOMPARABLE
        assert f"the candidate was ended by {by} after 2 trained steps" in headline(found)


@pytest.mark.parametrize(
    ("by", "code"),
    [("--max-steps 2", 0), ("--max-steps 2", 1), ("--exit-after", 1), ("who follows it", 0), ("os._exit(0)", 0)],
)  # fmt: skip
def test_a_training_that_was_asked_to_end_is_no_crash(by: str, code: int) -> None:
    # Given a training that Lockstep or the script itself ended as intended; its peers may have lost it then
    candidate = opened()
    candidate.manifest.exit_code = code
    candidate.ranks["rank0"].manifest.ended_by = by
    # Then it agrees
    found = compare_recordings(opened(), candidate)
    assert (found.exit_code(), found.crashes) == (ExitCode.AGREES, ())
    assert f"the candidate was ended by {by}" in headline(found)


def test_a_training_that_ended_itself_early_is_no_shorter_one_in_silence() -> None:
    # Given a candidate that ends by os._exit(0) and has trained a step less
    candidate = opened()
    candidate.ranks["rank0"].manifest.ended_by = "os._exit(0)"
    candidate.ranks["rank0"].manifest.trained = 1
    # Then the lengths are compared
    found = compare_recordings(opened(), candidate)
    assert found.exit_code() == ExitCode.FAILED
    assert "the reference trained 2 steps and the candidate 1" in headline(found)


def test_a_recording_without_an_end_is_no_agreement() -> None:
    # Given a candidate whose process was killed, in a script that returns 0 all the same
    candidate = opened()
    candidate.manifest.exit_code = 0
    rank = candidate.ranks["rank0"]
    rank.is_closed, rank.manifest.trained = False, None
    # Then it is no agreement
    found = compare_recordings(opened(), candidate)
    assert found.verdict is Verdict.INCOMPARABLE
    assert (
        "the candidate was cut off before its recording was closed after step 1, the last that was recorded"
        in headline(found)
    )
    # And neither is one whose recorder was killed: how the command ended is not known
    candidate = opened()
    candidate.manifest.state, candidate.manifest.exit_code = "recording", None
    found = compare_recordings(opened(), candidate)
    assert headline(found).startswith("INCOMPARABLE: the candidate has no end: ")


def test_one_crashed_rank_is_named() -> None:
    # Given a training of two ranks, of which the second raised
    runs = opened(), opened()
    for one in runs:
        other = copy.copy(one.ranks["rank0"])
        other.manifest = dataclasses.replace(other.manifest, rank="rank1")
        one.ranks["rank1"] = other
    runs[1].ranks["rank1"].manifest.ended_by = "the exception ValueError"
    # Then that one is named
    found = compare_recordings(*runs)
    told = "rank1 of the candidate was ended by the exception ValueError after 2 trained steps"
    assert found.crashes == (told,)
    assert headline(found).startswith(f"INCOMPARABLE: {told}; ")


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
