"""A comparison as JSON: the stable contract that other tools read."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from lockstep.core.finding import (
    Comparison,
    Ends,
    Explanation,
    JudgedWindow,
    Origin,
    UnalignedCalls,
)
from lockstep.core.laws import LawsVerdict
from lockstep.core.reason import Clause
from lockstep.core.step_rows import StepLogsCompared
from lockstep.core.told_facts import Told
from lockstep.report.comparison.verdict_words import answer_of, tally_of
from lockstep.report.json_text import finite, json_text

JSON_SCHEMA_VERSION = 1


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Everything but the single findings, as JSON values.

    Numbers that are unknown or infinite are null. `origin` is the first of `origins`, or null.

    Examples
    --------
    >>> comparison_json(comparison)["verdict"]                                  # doctest: +SKIP
    'diverged'
    """
    origins = [_origin(origin, comparison) for origin in comparison.origins]
    tally = tally_of(comparison.findings)
    answer = answer_of(comparison, tally)
    return {
        "schema": JSON_SCHEMA_VERSION,
        "verdict": comparison.verdict.value,
        "outcome": comparison.outcome,
        "headline": answer.headline,
        "exit_code": int(answer.exit_code),
        "origin": origins[0] if origins else None,
        "origins": origins,
        "steps": list(comparison.steps),
        "trained": dict(zip(("reference", "candidate"), comparison.trained, strict=True)),
        "ends": _ends(comparison.ends),
        "windows": [_window(one, comparison) for one in comparison.windows],
        "step_logs": _step_logs(comparison.step_logs),
        "inherited": comparison.inherited,
        "compared": comparison.compared,
        "equal": tally.equal,
        "equal_numbers": tally.alike,
        "inside_tolerance": tally.inside,
        "beyond_tolerance": tally.beyond,
        "unjudged": tally.unjudged,
        "missing": comparison.missing,
        "unaligned": {
            "reference": comparison.unaligned_reference,
            "candidate": comparison.unaligned_candidate,
        },
        "unaligned_calls": [_calls(calls) for calls in comparison.unaligned_calls],
        "other_classes": [dataclasses.asdict(one) for one in comparison.other_classes],
        "setup": [dataclasses.asdict(one) for one in comparison.setup],
        "not_compared": list(comparison.not_compared),
        "gaps": [_told(one) for one in comparison.not_compared],
        "unrecorded": list(comparison.unrecorded),
        "compiled": list(comparison.compiled),
        "ranks": {
            "compared": list(comparison.ranks.numbers),
            "trained": comparison.ranks.world_size,
        },
        "endings": list(comparison.endings),
        "crashes": list(comparison.crashes),
        "notes": list(comparison.notes),
        "remarks": [_told(one) for one in comparison.notes],
        "what_next": None
        if comparison.what_next is None
        else dataclasses.asdict(comparison.what_next),
        "judged_by": comparison.judged_by,
        "laws": _laws(comparison.laws),
        "uniform": [
            {"class": change.name, "sites": len(change.members)} for change in comparison.uniform
        ],
        "events": [
            {"kind": event.kind, "step": event.step, "detail": event.detail}
            for event in comparison.events
        ],
    }


def _window(window: JudgedWindow, comparison: Comparison) -> dict[str, Any]:
    """One window that began with one state."""
    return {
        "steps": list(window.steps),
        "verdict": window.verdict.value,
        "origin": None if window.origin is None else _origin(window.origin, comparison),
        "differed_before": [dataclasses.asdict(one) for one in window.differed],
        "left_after_update": [dataclasses.asdict(one) for one in window.left],
        "precision": window.precision,
        "not_set": list(window.not_set),
        "distance_before": window.distance,
    }


def _step_logs(logs: StepLogsCompared | None) -> dict[str, Any] | None:
    """What the rows of all steps say."""
    if logs is None:
        return None
    return {
        "steps": logs.steps,
        "facts": [one.value for one in logs.facts],
        "differences": [
            {**dataclasses.asdict(one), "fact": one.fact.value, "words": str(one)}
            for one in logs.differences
        ],
        "equal_losses": logs.equal_losses,
        "growths": [
            {
                **dataclasses.asdict(one),
                "began": _number(one.began),
                "ended": _number(one.ended),
                "left_with": _number(one.left_with),
                "expected": _number(one.expected),
            }
            for one in logs.growths
        ],
    }


def render_json(comparison: Comparison) -> str:
    """A comparison as strict JSON text (RFC 8259: no NaN, no infinities), ASCII only."""
    return json_text(comparison_json(comparison))


def write_json(comparison: Comparison, path: Path) -> None:
    """Write the text of `render_json`; an existing file is replaced. Raises OSError if the file cannot be written."""
    path.write_text(render_json(comparison))


def _laws(laws: LawsVerdict | None) -> dict[str, Any] | None:
    """What the laws say by themselves, and the verdict without them."""
    if laws is None:
        return None
    return {
        "verdict": laws.verdict,
        "without": laws.without,
        "steps": laws.steps,
        "not_judged": list(laws.not_judged),
        "breaches": [
            {
                "law": one.breach.law.value,
                **_rank(one.rank),
                "step": one.step,
                "quantity": one.breach.quantity.value,
                "name": one.breach.name,
                "run": one.breach.run,
                "distance": _number(one.breach.distance),
                "allowed": _number(one.breach.allowed),
            }
            for one in laws.breaches
        ],
    }


def _origin(origin: Origin, comparison: Comparison) -> dict[str, Any]:
    metrics = origin.finding.metrics
    return {
        "step": origin.step,
        **_rank(origin.rank),
        "phase": origin.phase.value,
        "module": origin.module,
        "op": origin.op,
        "call": origin.call,
        "role": origin.role.value,
        "index": origin.index,
        "tensor": origin.tensor,
        "source": origin.source,
        "library": origin.library,
        "metrics": {
            "cosine": _number(metrics.cosine),
            "max_abs": _number(metrics.max_abs),
            "rel_l2": _number(metrics.rel_l2),
        },
        "evidence": metrics.evidence.value,
        "kind": origin.kind.value,
        "judged_by": origin.finding.judged_by or comparison.judged_by,
        "tolerance": _number(origin.finding.tolerance),
        "rounds": origin.finding.rounds,
        "margin": _number(origin.finding.margin),
        "floor": _number(origin.finding.floor),
        "reason": str(origin.reason),
        "reasons": [_clause(one) for one in origin.reason.clauses],
        "explanation": _explanation(origin.explanation),
    }


def _told(sentence: str) -> dict[str, Any]:
    """One sentence: its words, and what they are made of."""
    facts = Told.of(sentence).facts
    return {
        "words": str(sentence),
        **dataclasses.asdict(facts),
        "names": list(facts.names),
        "numbers": {name: _number(value) for name, value in facts.numbers.items()},
    }


def _clause(clause: Clause) -> dict[str, Any]:
    """One thing that a reason says."""
    return {
        "about": clause.about.value,
        "words": clause.words,
        "name": clause.name,
        "reference": clause.reference,
        "candidate": clause.candidate,
        "difference": None if clause.difference is None else _number(clause.difference),
    }


def _ends(ends: Ends | None) -> dict[str, Any] | None:
    """How the trainings went on behind their recorded steps; null where that was not to be compared."""
    if ends is None:
        return None
    return {
        "course": ends.course.value,
        "words": ends.words,
        "reasons": [_told(one) for one in ends.reasons],
        "rank": ends.rank,
        "parted_at": ends.parted_at,
        "final_losses": {
            name: None if loss is None else _number(loss)
            for name, loss in zip(("reference", "candidate"), ends.final_losses, strict=True)
        },
        "rel_l2": _number(ends.rel_l2),
        "largest": ends.largest,
        "largest_rel_l2": _number(ends.largest_rel_l2),
        "others_apart": list(ends.others_apart),
        "steps_to_record": None if ends.steps_to_record is None else list(ends.steps_to_record),
        "notes": list(ends.notes),
        "remarks": [_told(one) for one in ends.notes],
    }


def _explanation(explanation: Explanation | None) -> dict[str, Any] | None:
    """What the candidate computes instead; null where it was not asked or not found."""
    if explanation is None:
        return None
    return {
        "kind": explanation.kind.value,
        "words": explanation.words,
        "share": _number(explanation.share),
    }


def _calls(calls: UnalignedCalls) -> dict[str, Any]:
    return {
        "side": calls.side,
        "step": calls.step,
        **_rank(calls.rank),
        "phase": calls.phase.value,
        "module": calls.module,
        "op": calls.op,
        "source": calls.source,
        "library": calls.library,
        "count": calls.count,
        "inside_unaligned": calls.inside,
        "recomputed": calls.recomputed,
        "returns_as": calls.returns_as,
        "idiom": calls.idiom,
        "beside_the_training": calls.beside,
        "around_judged_calls": calls.around,
    }


def _rank(name: str) -> dict[str, int | str]:
    """`rank2` is 2; a second process of a rank, `rank2-1`, says so."""
    found = re.fullmatch(r"rank(\d+)(-\d+)?", name)
    if found is None:
        return {"rank": 0, "process": name}
    return {"rank": int(found[1]), **({"process": name} if found[2] else {})}


def _number(value: float) -> float | None:
    number: float | None = finite(value)
    return number
