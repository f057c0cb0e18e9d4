"""Print Lockstep's verdict on two dumps, beside the other tool's table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockstep.compare import Comparison, answer_of, compare_recordings, render_comparison
from lockstep.errors import ExitCode, LockstepError


@dataclass(frozen=True, slots=True)
class Said:
    """The verdict in one sentence, all that `lockstep compare` prints, its exit code, and the comparison."""

    sentence: str
    whole: str
    code: ExitCode
    comparison: Comparison | None = None


def said_of(reference: Path, candidate: Path) -> Said:
    """Return what `lockstep compare` says; where it cannot, why is the sentence: the table stands without it."""
    try:
        comparison = compare_recordings(reference, candidate)
    except LockstepError as error:
        sentence = f"Lockstep cannot say which operator is at fault: {error}"
        return Said(sentence, sentence, ExitCode.FAILED)
    answer, whole = answer_of(comparison), render_comparison(comparison).plain
    return Said(answer.headline, whole, answer.exit_code, comparison)
