"""Reasons in words with numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from lockstep.align.settings import Setting
from lockstep.core.content_notes import NoteKind
from lockstep.core.finding import Evidence
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import Role
from lockstep.core.text import times
from lockstep.judge.protocol import Judgement, word_for_evidence
from lockstep.locate.flow.counts import count_words
from lockstep.measure.measured_pair import Measured
from lockstep.measure.metrics import are_placed_apart

SETTING_UNTESTED = Clause(About.UNTRIED, "this setting was not tried alone")
"""Said of a result that differs where the settings do, as long as the call was not run again with the other ones."""


def what_enters(entering: Sequence[Measured], *, leads_to_input: bool = False) -> str:
    """How well the inputs agree; of an input itself, the recorded tensors that lead to it."""
    if not entering:
        return "no recorded call explains it"
    which = "the tensors that lead to it" if leads_to_input else "inputs"
    if all(item.equal for item in entering):
        return f"{which} are bitwise equal"
    worst = max(entering, key=lambda item: item.relative if item.known else -1.0)
    if not math.isfinite(worst.difference):
        return f"{which} agree as far as can be compared"
    return f"{which} agree ({word_for_evidence(worst)}rel {worst.difference:.1g})"


def what_leaves(output: Measured, judgement: Judgement, name: str = "") -> str:
    """How far a tensor is off, in numbers."""
    name = name or output.pair.present.role.value
    metrics = output.metrics
    if output.shape_differs:
        left, right = output.pair.reference, output.pair.candidate
        assert left is not None
        assert right is not None
        for side, one in (("reference", left), ("candidate", right)):
            if one.content.told.kind is NoteKind.COPIES_DIFFER:
                return f"{name} is held by several ranks of the {side}, whose copies differ"
        return f"{name} has shape {left.shape} in the reference and {right.shape} in the candidate"
    dtypes = [
        one.dtype for one in (output.pair.reference, output.pair.candidate) if one is not None
    ]
    if not output.difference > 0 and len(set(dtypes)) > 1:
        return f"{name} is {dtypes[0]} in the reference and {dtypes[1]} in the candidate"
    if _is_placed_apart(output):
        return f"{name} does not agree: NaN or infinite values at different places or of a different sign"
    if metrics.nan_mismatch or metrics.inf_mismatch:
        counts = f"{metrics.nan_mismatch} NaN and {metrics.inf_mismatch} Inf"
        return f"{name} does not agree: {counts} on one side only"
    if counts := count_words(output.pair):
        return f"{name} {counts}"
    if not output.floating:
        return f"{name} does not agree: whole numbers differ"
    numbers = [f"{word_for_evidence(output)}rel {output.difference:.2g}"]
    if not math.isnan(metrics.cosine):
        numbers.append(f"cosine {metrics.cosine:.{4 if metrics.cosine < 0.9999 else 7}f}")
    if metrics.evidence is Evidence.TENSORS:
        numbers.append(f"max abs {metrics.max_abs:.3g}")
    elif metrics.max_abs >= metrics.rmse:
        numbers.append(f"max abs at least {metrics.max_abs:.3g}")
    if judgement.floor > 0:
        numbers.append(f"{times(output.difference / judgement.floor)} its noise floor")
    return f"{name} does not agree: {', '.join(numbers)}"


def _is_placed_apart(output: Measured) -> bool:
    """Whether as many elements are NaN and infinite, and no more than that they stand elsewhere is known."""
    left, right = output.pair.reference, output.pair.candidate
    if left is None or right is None or left.statistics is None or right.statistics is None:
        return False
    one, two = left.statistics, right.statistics
    alike = (one.nan_count, one.inf_count) == (two.nan_count, two.inf_count)
    counted = output.metrics.evidence is not Evidence.TENSORS and output.pair.layout is None
    return alike and counted and are_placed_apart(one, two)


OWN_CONSTANT = (
    "a constant that each run makes by its own calls: judged by the results computed from it"
)
FIRST_BY_NAME = "the first by name: neither recording says which call came first"
"""Why what is named need not be where a difference began."""


def origin_reason(
    entering: Sequence[Measured],
    output: Measured,
    judgement: Judgement,
    *,
    settings: Iterable[Setting] = (),
    untried: bool = False,
    name: str = "",
) -> Reason:
    """Why a site is an origin; `untried` tells that the settings were not tried alone."""
    is_input = output.pair.present.role is Role.INPUT and not name
    known = [one.relative for one in entering if one.known]
    clauses = [
        Clause(
            About.ENTERED,
            what_enters(entering, leads_to_input=is_input),
            difference=max(known, default=None),
        ),
        left_clause(output, judgement, "this input" if is_input else name),
    ]
    if judgement.words:
        clauses.append(Clause(About.EVIDENCE, judgement.words))
    return Reason(*clauses, *[SETTING_UNTESTED] * untried, *map(setting_clause, settings))


def left_clause(output: Measured, judgement: Judgement, name: str = "") -> Clause:
    """How far a tensor is off."""
    words, record = what_leaves(output, judgement, name), output.pair.present
    return Clause(About.LEFT, words, name or record.name, difference=output.difference)


def setting_clause(setting: Setting) -> Clause:
    """Return a clause about the settings that differ."""
    return Clause(About.SETTING, str(setting), setting.plain_name, *setting.shown)
