"""Settings in which two runs differ, and which changed no number of the steps that agree."""

from __future__ import annotations

from lockstep.core.finding import Comparison, Verdict
from lockstep.core.remarks import On
from lockstep.core.told_facts import Told
from lockstep.report.paragraphs import counted

_IDLE = frozenset({On.CALLS_IDLE, On.SETTING_IDLE, On.TRAINABLE_IDLE})


def idle_settings(comparison: Comparison) -> list[Told]:
    """What stands under an agreement: such settings; empty where the runs do not agree."""
    if comparison.verdict is not Verdict.AGREE:
        return []
    ends = () if comparison.ends is None else comparison.ends.notes
    return [one for one in map(Told.of, (*comparison.notes, *ends)) if one.facts.why in _IDLE]


def in_headline(comparison: Comparison) -> list[str]:
    """An agreement's words about them."""
    count = len(idle_settings(comparison))
    return (
        [f"{counted(count, 'setting')} changed no number of these steps (below)"] if count else []
    )
