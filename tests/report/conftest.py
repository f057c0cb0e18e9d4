"""Hand-made comparisons: a report never needs a recording to be tested."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from lockstep.core.finding import (
    Comparison,
    Evidence,
    Finding,
    Metrics,
    Origin,
    Outcome,
    Pair,
    Verdict,
)
from lockstep.core.manifest import Event
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Content, Statistics, TensorRecord
from lockstep.core.site import Phase, Role, Site

LSTM_BACKWARD = Site("encoder.lstm", "torch.nn.LSTM", 0, Phase.BACKWARD)


def record(
    site: Site = LSTM_BACKWARD, role: Role = Role.GRAD_INPUT, **changes: Any
) -> TensorRecord:
    """One record with plain statistics."""
    statistics = Statistics(-1.5, 2.5, 0.25, 8.0, 0, 0, 3)
    content = Content(7, "float32", (4, 128), "cpu", "d1", statistics)
    values: dict[str, Any] = {"rank": "rank0", "step": 0, "index": 0, "name": "args.0"}
    values |= {"sequence": 1, "occurrence": 0, "content": content} | changes
    return TensorRecord(site=site, role=role, **values)


def finding(
    outcome: Outcome = Outcome.AGREE,
    metrics: Metrics | None = None,
    reference: TensorRecord | None = None,
    candidate: TensorRecord | None = None,
    **changes: Any,
) -> Finding:
    """One finding of equal records, unless told otherwise."""
    reference = reference or (None if candidate else record())
    if outcome is not Outcome.MISSING:
        candidate = candidate or reference
    metrics = metrics or Metrics(Evidence.DIGEST, cosine=1.0, max_abs=0.0, rel_l2=0.0)
    values = {"difference": 0.0, "tolerance": 1e-6, "reason": "equal bit by bit"} | changes
    return Finding(Pair(reference, candidate), outcome, metrics, **values)  # type: ignore[arg-type]


def origin_of(found: Finding, **changes: Any) -> Origin:
    """The origin that a finding is."""
    at = found.pair.present
    values: dict[str, Any] = {
        "module_class": "torch.nn.LSTM",
        "tensor": "",
        "source": "examples/net.py:88",
        "reason": Reason(
            Clause(About.ENTERED, "inputs agree (rel 2e-07)", difference=2e-7),
            Clause(
                About.LEFT,
                "grad_input does not: cosine 0.43, max abs 12.3, which is 400000 x what this operator may be off in"
                " float32",
            ),
        ),
    }
    values |= {"rank": at.rank, "step": at.step, "phase": at.site.phase, "module": at.site.module}
    values |= {"op": at.site.op, "call": at.site.call, "role": at.role, "index": at.index} | changes
    return Origin(finding=found, **values)


def comparison(*findings: Finding, **changes: Any) -> Comparison:
    """A comparison of these findings; counts follow from them unless given."""
    values: dict[str, Any] = {
        "verdict": Verdict.AGREE,
        "judged_by": "error-model",
        "origins": (),
        "inherited": sum(found.inherited for found in findings),
        "compared": sum(found.outcome is not Outcome.MISSING for found in findings),
        "missing": sum(found.outcome is Outcome.MISSING for found in findings),
        "unaligned_reference": 0,
        "unaligned_candidate": 0,
        "not_compared": (),
        "notes": (),
    }
    return Comparison(reference="ref", candidate="npu", findings=findings, **values | changes)


@pytest.fixture
def agreed() -> Comparison:
    """Two pairs equal bit by bit and one inside its tolerance."""
    near = Metrics(Evidence.TENSORS, cosine=1.0, max_abs=1e-7, rel_l2=5e-8)
    inside = finding(metrics=near, difference=5e-7, reason="inside", reference=record(index=1))
    return comparison(finding(), finding(reference=record(index=2)), inside)


@pytest.fixture
def diverged() -> Comparison:
    """An LSTM backward at fault, one site that inherits it, one record without partner."""
    fault = Metrics(Evidence.SKETCH, cosine=0.4312, max_abs=12.3, rel_l2=0.91, rmse=0.5)
    wrong = finding(Outcome.DIFFER, fault, difference=0.9, tolerance=2e-6, reason="beyond it")
    embedding = Site("encoder.embedding", "torch.nn.Embedding", 0, Phase.BACKWARD)
    grown = Metrics(Evidence.STATISTICS, max_abs=0.25, rel_l2=0.5)
    later = finding(
        Outcome.DIFFER,
        grown,
        record(embedding, Role.GRAD_OUTPUT, sequence=2),
        difference=0.5,
        reason="its inputs explain it",
        inherited=True,
    )
    lonely = finding(
        Outcome.MISSING,
        Metrics(Evidence.NONE),
        candidate=record(Site("head", "torch.nn.functional.gelu", 1, Phase.FORWARD), Role.OUTPUT),
        difference=math.nan,
        tolerance=math.nan,
        reason="only in the candidate",
    )
    return comparison(
        finding(reference=record(role=Role.GRAD_OUTPUT)),
        wrong,
        later,
        dataclasses.replace(lonely, pair=Pair(None, lonely.pair.candidate)),
        verdict=Verdict.DIVERGED,
        origins=(origin_of(wrong),),
        unaligned_candidate=1,
        not_compared=(NotCompared(WhyNot.RANK_ALONE, rank="rank1", side="reference"),),
        notes=("step 1 of the candidate is incomplete",),
        events=(Event("loss-scale skip", 1, "the gradient scaler left the optimizer out"),),
    )


@pytest.fixture
def incomparable() -> Comparison:
    """Two recordings that share nothing."""
    return comparison(
        verdict=Verdict.INCOMPARABLE,
        not_compared=("the recordings have no step in common: 0, 1 against 10, 11",),
    )


@pytest.fixture
def many_origins(diverged: Comparison) -> Comparison:
    """Nine origins, one in each of nine steps."""
    first = diverged.origins[0]
    phases = (Phase.BACKWARD, Phase.DATA, Phase.INIT, Phase.OPTIMIZER, Phase.FORWARD)
    origins = tuple(
        dataclasses.replace(
            first,
            step=step,
            phase=phases[step % 5],
            tensor="encoder.weight" * (step > 0),
            call=step,
        )
        for step in range(9)
    )
    return dataclasses.replace(diverged, origins=origins)


@pytest.fixture
def hostile() -> Comparison:
    """Names that try to be formulas, addresses, terminal codes and broken Unicode."""
    names = ("=1+1", "https://example.org/", "\x1b[31mred\x1b[0m\n", "\ud800", "-2", "@SUM(A1)")
    numbers = Metrics(Evidence.TENSORS, cosine=-1.0, max_abs=math.inf, rel_l2=math.inf)
    empty = Statistics(math.nan, math.nan, math.nan, math.nan, 4, 0, 0)
    content = Content(1, "float32", (4,), "cpu", None, empty)
    return comparison(
        *(
            finding(
                Outcome.DIFFER,
                numbers,
                record(Site(name, name, 0, Phase.FORWARD), name=name, content=content),
                difference=math.inf,
                reason=name,
            )
            for name in names
        )
    )
