"""What Lockstep says of two dumps, beside the table of the tool that they are of."""

from __future__ import annotations

from pathlib import Path

from lockstep.comparison import compare_recordings
from lockstep.core.errors import LockstepError
from lockstep.report.comparison.screen import headline, render_comparison


def verdict_text(reference: Path, candidate: Path) -> tuple[str, str]:
    """The verdict in one sentence, with the source line of the first origin; and all that `lockstep compare` says.

    Where they cannot be compared, why is the sentence: the table stands without it.
    """
    try:
        comparison = compare_recordings(reference, candidate)
    except LockstepError as error:
        sentence = f"Lockstep cannot say which operator is at fault: {error}"
        return sentence, sentence
    return headline(comparison), render_comparison(comparison).plain
