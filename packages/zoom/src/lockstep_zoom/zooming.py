"""Search two recorded trainings for their first bad step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lockstep.compare import Comparison
from lockstep.launch import Event
from lockstep.recordings import open_recording
from lockstep_zoom.bracket import bracket_of, most_rounds, search
from lockstep_zoom.journal import Journal
from lockstep_zoom.judging import judged_steps
from lockstep_zoom.rounds import Rounds, RunsAgain
from lockstep_zoom.words import Zoomed, cost


def zoomed_in(
    given: tuple[Path, Path],
    trainings: Callable[[], tuple[RunsAgain, RunsAgain]],
    folder: Path,
    probes: int,
    *,
    compare: Callable[[Path, Path], Comparison],
    hear: Callable[[Event], None],
    say: Callable[[str], None],
) -> Zoomed:
    """Return the first bad step of two recorded trainings, and the comparison of the pair that shows it.

    given: The recordings of reference and candidate.
    trainings: Gives both trainings, if anything is to be run.
    folder: Where recordings and the journal go.
    probes: Steps that are looked at in each run.
    compare: Compares two recordings.
    hear, say: Are given events of the runs, and sentences for the user.

    Raises LockstepError if a recording cannot be read, a training not be run again, or the folder not be written.
    """
    first = compare(*given)
    judged = judged_steps(first)
    counts = [one for one in first.trained if one is not None]
    bracket = bracket_of(judged, min(counts) if len(counts) == len(first.trained) else None)
    if bracket is None or not most_rounds(bracket, probes):
        return Zoomed(bracket, first, *given)
    both = trainings()
    subject = [*(str(one.absolute()) for one in given), *(one.name for one in both), str(probes)]
    journal, anchors = Journal(folder, subject), frozenset(judged.sound)
    rounds = Rounds(*both, anchors, folder, journal, compare, hear, say)
    for sentence in cost(bracket, probes, [open_recording(one) for one in given]):
        say(sentence)
    found = search(bracket, rounds.look, probes)
    if rounds.answering is None:
        return Zoomed(found, first, *given, rounds.count)
    return Zoomed(found, rounds.compared(rounds.answering), *rounds.answering, rounds.count)
