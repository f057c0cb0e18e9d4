"""Reasons in words with numbers; single whole numbers, whose values say everything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lockstep.align.settings import Setting
from lockstep.core.content_notes import DIFFER_BETWEEN_RANKS, NoteKind
from lockstep.core.dtypes import is_floating, least_relative_rounding
from lockstep.core.finding import Evidence, Kind, Outcome, Pair
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Content, is_other_checksum_alone
from lockstep.core.site import Role
from lockstep.core.text import times
from lockstep.judge.protocol import Judgement, word_for_evidence
from lockstep.judge.tolerances import UNBOUNDED
from lockstep.measure.measured_pair import Measured, dims_that_do_not_fit, is_placed_otherwise
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
        left, right = output.pair.both
        for side, one in (("reference", left), ("candidate", right)):
            told = one.content.told
            if told.kind in DIFFER_BETWEEN_RANKS:
                which = f": {told.fields[0]}" if told.kind is NoteKind.RANKS_DIFFER else ""
                return f"{name} is held by several ranks of the {side}, whose copies differ{which}"
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
    if judgement.floor > 0 and not judgement.floor < max(
        least_relative_rounding(dtype, output.numel) for dtype in dtypes
    ):
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


def settled_reason(measured: Measured, judgement: Judgement, outcome: Outcome) -> Reason:
    """Why a pair that is no origin is none."""
    if outcome is Outcome.DIFFER:
        clause = Clause(About.INHERITED, "inherited from an earlier site")
    elif outcome is Outcome.INCOMPARABLE and measured.known:
        if measured.shape_differs and judgement.words:
            return Reason(open_clause(judgement.words))
        far = f"{word_for_evidence(measured)}rel {measured.difference:.2g}"
        clause = open_clause(_why_open(judgement), f"{far}: ")
    elif outcome is Outcome.INCOMPARABLE and measured.metrics.max_abs == 0.0:
        words = "its smallest and largest values are equal, and its elements are not known"
        clause = Clause(About.UNKNOWN, words)
    elif not (measured.floating or measured.equal or measured.shape_differs):
        clause = Clause(About.CHOICE, "chosen differently, from inputs that differ")
    else:
        clause = agreement_clause(measured)
    more = [_ILL_CONDITIONED] if judgement.kind is Kind.AMPLIFIED else []
    if judgement.words:
        more.append(Clause(About.EVIDENCE, judgement.words))
    return _AS_CLAUSE[clause] if not more and clause in _AS_CLAUSE else Reason(clause, *more)


def _why_open(judgement: Judgement) -> str:
    """Why nothing bounds a tensor that is known in both runs."""
    if judgement.open or not UNBOUNDED <= judgement.tolerance < math.inf:
        return "its inputs differ too much for any bound, or were not judged themselves"
    return f"its tolerance, {judgement.tolerance:.2g} times its norm, decides nothing"


def open_clause(why: str, far: str = "") -> Clause:
    """Why a pair could not be judged."""
    return Clause(About.OPEN, f"{far}could not be judged: {why}")


def agreement_clause(measured: Measured) -> Clause:
    """Why a pair counts as agreeing."""
    if measured.equal:
        return _BITWISE if measured.metrics.evidence is Evidence.DIGEST else _EQUAL
    left, right = measured.pair.contents
    if is_other_checksum_alone(left, right):
        return _OTHER_CHECKSUM
    if math.isnan(measured.difference):
        return Clause(About.UNKNOWN, _unknown_words(left, right))
    if measured.shape_differs:
        return Clause(About.LATER, "its shape differs: judged by the results computed from it")
    words = f"{word_for_evidence(measured)}rel {measured.difference:.2g}, within its tolerance"
    if measured.pair.layout is not None and measured.metrics.evidence is Evidence.STATISTICS:
        words += "; its layout differs, so only statistics were compared"
    return Clause(About.WITHIN, words, difference=measured.difference)


def _unknown_words(left: Content, right: Content) -> str:
    """Why the numbers of a pair are not known."""
    if not is_placed_otherwise(left, right):
        return left.note or "nothing is known of one side"
    if words := dims_that_do_not_fit(left, right):
        return words
    here, there = (one.note or "whole" for one in (left, right))
    return f"spread over ranks differently: {here} in the reference, {there} in the candidate"


_BITWISE, _EQUAL = Clause(About.EQUAL, "bitwise equal"), Clause(About.EQUAL, "equal")
_AS_CLAUSE = {_BITWISE: Reason(_BITWISE), _EQUAL: Reason(_EQUAL)}
_ILL_CONDITIONED = Clause(
    About.EVIDENCE, "ill-conditioned here: small differences of the inputs grow far"
)
_OTHER_CHECKSUM = Clause(
    About.OPEN,
    "not judged: equal numbers, a different checksum; an operator that works in place can change a tensor before its"
    " checksum is taken",
)
"""Why nothing is said of a pair of which only checksums of another tool differ."""

OWN_CONSTANT = Clause(
    About.LATER,
    "a constant that each run makes by its own calls: judged by the results computed from it",
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


def beside_reason(output: Measured, judgement: Judgement) -> Reason:
    """How far a tensor is off that nothing trained depends on."""
    return Reason(replace(left_clause(output, judgement), about=About.BESIDE), About.BESIDE.value)


def setting_clause(setting: Setting) -> Clause:
    """Return a clause about the settings that differ."""
    return Clause(About.SETTING, str(setting), setting.plain_name, *setting.shown)


_COUNTED = {"step": "update", "num_batches_tracked": "batch"}
"""What torch counts under these names: updates of an optimizer, batches of a batch normalisation in training mode."""


def both_counts(pair: Pair) -> tuple[int, int] | None:
    """Return both values of a pair of single whole numbers, whatever their dtype; None for anything else.

    A truth value is no count.
    """
    values: list[int] = []
    for record in (pair.reference, pair.candidate):
        if record is None or record.statistics is None or record.content.numel != 1:
            return None
        value = record.statistics.maximum
        if record.dtype == "bool" or not (math.isfinite(value) and value == int(value)):
            return None
        if record.statistics.minimum != value:  # written by another tool, which left it out
            return None
        values.append(int(value))
    return values[0], values[1]


def count_words(pair: Pair) -> str:
    """Return both counts in words, "" if they are not two counts that differ.

    Of floating numbers only those count that torch counts in.

    `is 3 in the reference and 4 in the candidate: the candidate counted one more update`
    """
    counts = both_counts(pair)
    if counts is None or counts[0] == counts[1]:
        return ""
    said = f"is {counts[0]} in the reference and {counts[1]} in the candidate"
    what = _COUNTED.get(pair.present.name.rpartition("|")[2].rpartition(".")[2])
    if what is None:
        return "" if is_floating(pair.present.dtype) else said
    more = abs(counts[1] - counts[0])
    side = "candidate" if counts[1] > counts[0] else "reference"
    plural = "" if more == 1 else "es" if what.endswith("ch") else "s"
    return f"{said}: the {side} counted {'one' if more == 1 else more} more {what}{plural}"
