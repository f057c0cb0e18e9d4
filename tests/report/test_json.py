"""JSON: the contract that other tools read, key by key."""

from __future__ import annotations

import dataclasses
import json
import math
from unittest.mock import ANY

import pytest

from lockstep.core.finding import Comparison, UniformChange, Verdict
from lockstep.core.site import Phase, Site
from lockstep.report.comparison.json import comparison_json, render_json
from lockstep.report.comparison.verdict_words import headline


def told(words: str, why: str, **facts: object) -> dict[str, object]:
    """A sentence as data."""
    empty = dict.fromkeys(("side", "rank", "at", "reference", "candidate", "reason"), "")
    none = dict.fromkeys(("step", "count", "of"))
    return {"words": words, "why": why, **empty, **none, "names": [], "numbers": {}, **facts}


def test_the_contract_is_kept_key_by_key(diverged: Comparison) -> None:
    found = comparison_json(diverged)
    nothing = {"name": "", "reference": "", "candidate": ""}
    origin = {
        "step": 0,
        "rank": 0,
        "phase": "backward",
        "module": "encoder.lstm",
        "op": "torch.nn.LSTM",
        "call": 0,
        "role": "grad_input",
        "index": 0,
        "tensor": "",
        "source": "examples/net.py:88",
        "library": "",
        "metrics": {"cosine": 0.4312, "max_abs": 12.3, "rel_l2": 0.91},
        "evidence": "sketch",
        "kind": "fault",
        "judged_by": "error-model",
        "tolerance": 2e-6,
        "rounds": True,
        "margin": pytest.approx(450_000),
        "floor": None,
        "reason": diverged.origins[0].reason,
        "reasons": [
            {
                "about": "entered",
                "words": "inputs agree (rel 2e-07)",
                "difference": 2e-7,
                **nothing,
            },
            {"about": "left", "words": ANY, "difference": None, **nothing},
        ],
        "explanation": None,
    }
    assert found == {
        "schema": 1,
        "verdict": "diverged",
        "outcome": "diverged",
        "headline": headline(diverged),
        "exit_code": 1,
        "origin": origin,
        "origins": [origin],
        "steps": list(diverged.steps),
        "trained": {"reference": None, "candidate": None},
        "ends": None,
        "windows": [],
        "step_logs": None,
        "inherited": 1,
        "compared": 3,
        "equal": 1,
        "equal_numbers": 0,
        "inside_tolerance": 0,
        "beyond_tolerance": 2,
        "unjudged": 0,
        "missing": 1,
        "unaligned": {"reference": 0, "candidate": 1},
        "unaligned_calls": [],
        "other_classes": [],
        "setup": [],
        "not_compared": ["rank1 occurs only in the reference"],
        "gaps": [
            told(
                "rank1 occurs only in the reference",
                "rank of one run alone",
                side="reference",
                rank="rank1",
            )
        ],
        "unrecorded": [],
        "compiled": [],
        "ranks": {"compared": [], "trained": 0},
        "endings": [],
        "crashes": [],
        "notes": list(diverged.notes),
        "remarks": [told(diverged.notes[0], "told", reason=diverged.notes[0])],
        "what_next": None,
        "judged_by": "error-model",
        "laws": None,
        "uniform": [],
        "events": [
            {
                "kind": "loss-scale skip",
                "step": 1,
                "detail": "the gradient scaler left the optimizer out",
            }
        ],
    }


def test_a_uniform_change_is_named_with_the_number_of_its_sites(agreed: Comparison) -> None:
    # Given a comparison that found a class of operators to round in another way, and no origin
    sites = tuple(Site(name, "torch.nn.functional.linear", 0, Phase.FORWARD) for name in "abc")
    change = UniformChange("matmul inputs round to fp16", sites)
    found = dataclasses.replace(agreed, verdict=Verdict.DIVERGED, uniform=(change,))

    # Then it says so, and names no culprit
    shown = comparison_json(found)
    assert shown["uniform"] == [{"class": "matmul inputs round to fp16", "sites": 3}]
    assert (shown["verdict"], shown["origin"]) == ("diverged", None)


def test_without_an_origin_it_is_null(agreed: Comparison, incomparable: Comparison) -> None:
    assert comparison_json(agreed)["verdict"] == "agree"
    assert comparison_json(agreed)["origin"] is None
    assert comparison_json(agreed)["origins"] == []
    assert comparison_json(incomparable)["verdict"] == "incomparable"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rank0", {"rank": 0}),
        ("rank12", {"rank": 12}),
        ("rank0-1", {"rank": 0, "process": "rank0-1"}),
    ],
)
def test_ranks_are_numbers(diverged: Comparison, name: str, expected: dict[str, object]) -> None:
    moved = dataclasses.replace(diverged.origins[0], rank=name)
    origin = comparison_json(dataclasses.replace(diverged, origins=(moved,)))["origin"]
    assert {key: origin[key] for key in ("rank", "process") if key in origin} == expected


def test_numbers_that_json_does_not_know_are_null(diverged: Comparison) -> None:
    first = diverged.origins[0]
    metrics = dataclasses.replace(first.finding.metrics, cosine=math.nan, max_abs=math.inf)
    found = dataclasses.replace(first.finding, metrics=metrics, tolerance=0.0)
    moved = dataclasses.replace(first, finding=found)
    text = render_json(dataclasses.replace(diverged, origins=(moved,)))
    origin = json.loads(text)["origin"]
    assert origin["metrics"] == {"cosine": None, "max_abs": None, "rel_l2": 0.91}
    assert (origin["tolerance"], origin["margin"]) == (0.0, None)


def test_any_name_makes_valid_text(hostile: Comparison) -> None:
    assert json.loads(render_json(hostile))["verdict"] == "agree"


def test_another_precision_throughout_has_a_word_of_its_own_which_goes_with_the_exit_code(
    diverged: Comparison,
) -> None:
    # given a comparison in which each operator computes in another precision, and none is at fault
    change = UniformChange(
        "torch.nn.Linear computes in bfloat16", (Site("fc", "torch.nn.Linear", 0, Phase.FORWARD),)
    )
    found = dataclasses.replace(diverged, origins=(), uniform=(change,), not_compared=(), ends=None)
    # then the verdict is what it always was, and the outcome says which of the two it is
    told = comparison_json(found)
    assert (told["verdict"], told["outcome"], found.exit_code()) == (
        "diverged",
        "other-precision",
        0,
    )
    assert found.exit_code(strict=True) == 1
    # and a difference with an origin keeps the word of its verdict
    assert (comparison_json(diverged)["outcome"], diverged.exit_code()) == ("diverged", 1)
