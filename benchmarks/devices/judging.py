"""Compares two recordings of the campaign and prints the answer as JSON; a process of its own, which may be killed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import lockstep
from lockstep.core.finding import Comparison
from lockstep.report.comparison.verdict_words import answer_of
from lockstep.store.reader import open_recording

sys.path.append(str(Path(__file__).parents[1] / "faults"))

from cases import Case
from score import said_of, score_fault
from trainings import planted_of


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reference", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--training", default="")
    parser.add_argument("--planted", type=Path, help="the fault that has to be named")
    given = parser.parse_args()
    found = lockstep.compare_recordings(
        open_recording(given.reference), open_recording(given.candidate)
    )
    answer = answer_of(found)
    said = {
        "word": answer.word, "exit_code": int(answer.exit_code), "headline": answer.headline, **said_of(found),
    }  # fmt: skip
    if given.planted:
        said |= _scored(given.training, json.loads(given.planted.read_text()), found)
    print(json.dumps(said))


def _scored(training: str, values: dict[str, Any], found: Comparison) -> dict[str, Any]:
    case = Case(training, values["kind"], planted_of(values))
    place = case.planted.target
    operator = place.place.op.rpartition(".")[2]
    where = place.parameter or f"{place.place.module} {operator}".strip() or "the set-up"
    return {"score": score_fault(case, found).score.value, "planted": where}


if __name__ == "__main__":
    main()
