"""What was said of a case, and how good an answer it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from cases import Case
from twins import Twin

from lockstep.core.finding import Comparison, Kind, Origin


class Score(str, Enum):
    """How good an answer is."""

    EXACT = "exact"
    MODULE = "module"
    WRONG = "wrong place"
    MISSED = "missed"
    CRASHED = "crashed"
    SILENT = "silent"
    FALSE_ALARM = "false alarm"
    UNIFORM = "uniform"


@dataclass(frozen=True)
class Answer:
    """The first origin that a comparison names, and how many others."""

    score: Score
    said: dict[str, Any]


_ACCUSING = frozenset({Kind.FAULT, Kind.SETUP, Kind.RANDOM})
"""Kinds of origin that blame somebody; the others describe."""


def score_fault(case: Case, found: Comparison) -> Answer:
    """Hold the first origin against what was planted.

    Exact: right phase, right module, and the planted operator where the recording shows it under its own name (or,
    for a parameter, its name; for a random stream, that it is one). Module: the planted module, its direct parent or
    one of its direct children.
    """
    said = said_of(found)
    if case.fault.explained_as:
        said["explained"] = explained_as(case, found)
        said["family"] = family_of(found)
    if not found.origins:
        return Answer(Score.MISSED, said)
    origin, kind = found.origins[0], case.fault
    near = kind.any_module or is_near(origin.module, case.planted.target.place.module)
    if not near or (kind.any_module and origin.phase.value not in kind.phases):
        return Answer(Score.WRONG, said)
    return Answer(Score.EXACT if _is_exact(case, origin) else Score.MODULE, said)


def family_of(found: Comparison) -> str:
    """The kind of explanation that the first origin has, "" for none."""
    explanation = found.origins[0].explanation if found.origins else None
    return "" if explanation is None else explanation.kind.value


def explained_as(case: Case, found: Comparison) -> str:
    """Whether the first origin's explanation is of a right kind: right, wrong or none."""
    explanation = found.origins[0].explanation if found.origins else None
    if explanation is None:
        return "none"
    return "right" if explanation.kind.value in case.fault.explained_as else "wrong"


def _is_exact(case: Case, origin: Origin) -> bool:
    target, kind = case.planted.target, case.fault
    if origin.phase.value not in kind.phases:
        return False
    if kind.random and origin.kind is not Kind.RANDOM:
        return False
    if kind.any_module:
        return True
    if origin.module != target.place.module:
        return False
    if target.parameter:
        return target.parameter in (origin.tensor, origin.finding.pair.present.name)
    if not target.operators:
        return True
    if origin.op not in target.operators:
        return False
    return origin.op != target.place.op or origin.call == target.place.call


def is_near(named: str, planted: str) -> bool:
    """Whether a module path is the planted one, its direct parent or a direct child."""
    return named == planted or _parent(named) == planted or named == _parent(planted)


def _parent(module: str) -> str | None:
    return module.rpartition(".")[0] if module else None


def score_twin(twin: Twin, found: Comparison) -> Answer:
    """A twin must not be accused; an emulated device must be seen as one."""
    said = said_of(found)
    if any(origin.kind in _ACCUSING for origin in found.origins):
        return Answer(Score.FALSE_ALARM, said)
    if twin.uniform:
        return Answer(Score.UNIFORM if found.uniform else Score.MISSED, said)
    return Answer(Score.SILENT, said)


def said_of(found: Comparison) -> dict[str, Any]:
    """What a comparison says, as JSON values."""
    origins = [_origin(origin) for origin in found.origins[:3]]
    return {
        "verdict": found.verdict.value,
        "judged_by": found.judged_by,
        "origins": origins,
        "count": len(found.origins),
        "elsewhere": len({origin.module for origin in found.origins[1:]} - {_first(found)}),
        "uniform": [f"{change.name} ({len(change.members)})" for change in found.uniform],
        "not_compared": list(found.not_compared),
        "overruled": sum(one.overrules for one in found.findings),
    }


def _first(found: Comparison) -> str:
    return found.origins[0].module if found.origins else ""


def _origin(origin: Origin) -> dict[str, Any]:
    finding = origin.finding
    margin = finding.margin
    return {
        "kind": origin.kind.value,
        "step": origin.step,
        "phase": origin.phase.value,
        "module": origin.module,
        "op": origin.op,
        "call": origin.call,
        "role": origin.role.value,
        "tensor": origin.tensor,
        "difference": finding.difference if math.isfinite(finding.difference) else None,
        "margin": margin if math.isfinite(margin) else None,
        "reason": origin.reason,
        "explanation": None
        if origin.explanation is None
        else [
            origin.explanation.kind.value,
            origin.explanation.words,
            origin.explanation.share,
        ],
    }
