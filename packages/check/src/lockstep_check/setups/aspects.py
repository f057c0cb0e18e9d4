"""The aspects of a set-up, as rows of a YAML file, each with the meaning of a difference and its cure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lockstep_check.data_files import rows_of

_FILE = Path(__file__).with_name("aspects.yaml")

QUESTIONS = {
    1: "is the reference repeatable?",
    2: "is mixed precision on, and the same?",
    3: "is the loss scale the same?",
    4: "is the data set the same?",
    5: "is preprocessing the same?",
    6: "is data divided among ranks in the same way?",
    7: "is the training flow the same?",
    8: "are hyper-parameters the same?",
}
"""The eight questions that come before any dump."""


@dataclass(frozen=True, slots=True)
class Aspect:
    """One thing that two trainings may have alike or not.

    name: The row's `id`.
    question: The one of the eight that it belongs to; 0 for none.
    harm: The larger, the earlier it is told.
    counts: Whether a difference in it makes the set-ups differ.
    """

    name: str
    title: str
    question: int
    harm: int
    counts: bool
    meaning: str
    cure: str
    source: str


@cache
def aspects() -> Mapping[str, Aspect]:
    """Every aspect by its name, the most harmful first."""
    found = sorted(map(_aspect, rows_of(_FILE)), key=lambda one: -one.harm)
    return {one.name: one for one in found}


def _aspect(row: Mapping[str, Any]) -> Aspect:
    return Aspect(
        name=row["id"],
        question=row.get("question", 0),
        harm=row["harm"],
        counts=row.get("counts", True),
        **{key: row[key] for key in ("title", "meaning", "cure", "source")},
    )
