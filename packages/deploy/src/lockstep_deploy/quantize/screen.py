"""Print the cost of quantising, as text and as values for JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lockstep.terminal import (
    Column,
    Page,
    add_paragraph,
    add_table,
    counted,
    listed,
    terminal_width,
)
from lockstep_deploy.quantize.build import FLOAT_BITS
from lockstep_deploy.quantize.errors import FLUSHED_SHARE, LayerError, Standing
from lockstep_deploy.quantize.mixed import Trial
from lockstep_deploy.quantize.task import Outcome
from lockstep_deploy.quantize.widths import cost_of

_COLUMNS = (
    Column("layer"), Column("op"), Column("bits", right=True), Column("by"), Column("width allows", right=True),
    Column("own", right=True), Column("own here", right=True), Column("carried", right=True),
    Column("clipped", right=True), Column("error is"),
)  # fmt: skip

_TRIED = (
    Column("layers"), Column("bytes", right=True), Column("ms", right=True), Column("dB", right=True),
    Column("accuracy", right=True), Column("reaches"),
)  # fmt: skip


LEAST_DB = 20.0
"""The least SQNR that results may have without `--least-sqnr`: an error of a tenth of their size. Chosen: quantisers of
8 bits give 25 to 40 dB on sound networks, and 10 dB where a step for a whole tensor does not fit its channels."""

ACCEPTED_POINTS = 1.0
"""Points of accuracy that may be lost without `--accept`: the one per cent that MLPerf Inference allows a
quantised model (Reddi et al., "MLPerf Inference Benchmark", ISCA 2020)."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least quality of a quantised model: accuracy if labels are known, else the results' SQNR in dB."""

    least_db: float = LEAST_DB
    lost_points: float = ACCEPTED_POINTS

    @classmethod
    def of(cls, least_db: float | None, accepted: float | None) -> Floor:
        """The floor of options; whoever accepts any loss accepts any SQNR too."""
        if accepted == math.inf:
            return cls(-math.inf, math.inf)
        return cls(
            LEAST_DB if least_db is None else least_db,
            ACCEPTED_POINTS if accepted is None else accepted,
        )


@dataclass(frozen=True)
class Answer:
    """The answer about a quantised model.

    layers: Each layer's error, in the order of the graph.
    outcome: The whole model.
    measured_on: What the errors were measured on.
    budget_db: The least SQNR that a layer may have; None where none was asked for.
    reduced: Whether weights of 8 bits took 7.
    target_db: The least SQNR of the results; None where none was asked for.
    trials: Plans that were tried for that.
    left: Weights that stay in float32, in bytes by name.
    floor: What the whole model must still be.
    per_channel: Whether weights have a step for each output channel.
    draws: Values that the model draws at random; the same numbers were drawn before and after.
    is_half: Whether the model was of float16.
    in_8_bits: The size of the file with 8 bits for each layer that has fewer; None where that is surely larger.
    """

    layers: Sequence[LayerError]
    outcome: Outcome
    measured_on: str
    budget_db: float | None = None
    reduced: bool = False
    target_db: float | None = None
    trials: Sequence[Trial] = ()
    left: Mapping[str, int] = field(default_factory=dict)
    floor: Floor = Floor()
    per_channel: bool = True
    draws: Sequence[str] = ()
    is_half: bool = False
    in_8_bits: int | None = None

    @property
    def beyond(self) -> list[LayerError]:
        """Layers beyond the budget, in the order of the graph."""
        budget = -math.inf if self.budget_db is None else self.budget_db
        return [one for one in self.layers if not one.carried >= budget]

    @property
    def misses(self) -> bool:
        """Whether no plan that was tried reaches the target."""
        return self.target_db is not None and not any(one.reaches for one in self.trials)

    @property
    def is_below(self) -> bool:
        """Whether the whole model is below its floor; where labels are known, an SQNR counts that was asked for."""
        if self.outcome.accuracy is not None and not _lost(self) <= self.floor.lost_points:
            return True
        is_asked = self.outcome.accuracy is None or self.budget_db is not None
        return is_asked and self.is_noisy

    @property
    def is_noisy(self) -> bool:
        """Whether a result has a lower SQNR than the floor."""
        least = self.floor.least_db
        return least > -math.inf and not self.outcome.sqnr_db >= least

    @property
    def faults(self) -> list[LayerError]:
        """Layers whose error their width does not explain."""
        return [one for one in self.layers if one.standing in (Standing.FAULT, Standing.KERNELS)]


def headline(answer: Answer) -> str:
    """The answer in one sentence, and what was not compared."""
    left = answer.outcome.uncompared
    beside = (
        f"; not compared, as its shape depends on the values: {listed(list(left))}" if left else ""
    )
    return _answered(answer) + _no_gain(answer) + beside


_SLOWER = 1.2
"""How many times as long a batch takes that is told as slower: less is within what times of one model differ by."""


def _no_gain(answer: Answer) -> str:
    """That the model is not smaller, or slower: what it was quantised for."""
    out, said = answer.outcome, []
    if out.size_bytes >= out.size_before_bytes > 0:
        said.append(f"NOT SMALLER ({out.size_before_bytes:,} -> {out.size_bytes:,} bytes)")
    elif answer.in_8_bits is not None and out.size_bytes >= answer.in_8_bits:
        said.append(f"NOT SMALLER than with --bits 8, which takes {answer.in_8_bits:,} bytes")
    if out.time_s > _SLOWER * out.time_before_s > 0:
        said.append(
            f"SLOWER here (a batch takes {out.time_s / out.time_before_s:.1f} times as long)"
        )
    return f"; {', '.join(said)}" if said else ""


def _answered(answer: Answer) -> str:
    broken = [one for one in answer.layers if one.standing is Standing.FAULT]
    kernels = [one for one in answer.layers if one.standing is Standing.KERNELS]
    if broken:
        return (
            f"FAULT at {broken[0]}: its error is more than any rounding to {broken[0].bits} bits can make"
            f" ({broken[0].own:.1f} dB where its width allows {broken[0].expected:.1f})"
        )
    if kernels:
        one = kernels[0]
        said = (
            f"FAULT at {one}: the file is sound ({one.own:.1f} dB), and this machine's integer kernels do not compute"
            f" what it says ({one.fused:.1f} dB)"
        )
        return said + ("" if answer.reduced else "; --reduce-range keeps their sums within 16 bits")
    if answer.misses:
        tried = f"{answer.target_db:g} dB; the best has {answer.outcome.sqnr_db:.1f}"
        return f"MISSED: no plan of {len(answer.trials)} reaches {tried}"
    if answer.beyond:
        one = answer.beyond[0]
        return (
            f"BEYOND THE BUDGET of {answer.budget_db:g} dB first at {one} ({one.carried:.1f} dB),"
            f" {_of(answer.beyond, answer)}"
        )
    if answer.is_below:
        return _below(answer)
    if answer.trials and not answer.layers:
        return f"NOTHING QUANTISED: of the plans that were tried, float32 alone reaches {answer.target_db:g} dB"
    judged = [one for one in answer.layers if one.standing is not Standing.MEASURED]
    odd = [one for one in judged if one.standing is not Standing.NOISE]
    if odd:
        return (
            f"QUANTISED: {_of(odd, answer)} with an error that rounding alone does not explain:"
            f" {'; '.join(_odd(odd))}{_cost(answer)}"
        )
    if not judged:
        return (
            f"QUANTISED: {counted(len(answer.layers), 'layer')} measured, not judged{_cost(answer)}"
        )
    rest = len(answer.layers) - len(judged)
    return (
        f"QUANTISED: the error of {counted(len(judged), 'judged layer')} is what rounding to its width makes"
        + (f"; {counted(rest, 'operator')} without a weight: measured, not judged" if rest else "")
        + _cost(answer)
    )


def _below(answer: Answer) -> str:
    """That the whole model is below its floor, and which layers are the worst."""
    out, least = answer.outcome, f"need {answer.floor.least_db:g} dB (--least-sqnr)"
    name = f"result {out.worst_result}" if out.worst_result else "results"
    if out.accuracy is not None and _lost(answer) > answer.floor.lost_points:
        said = f"accuracy falls by {_lost(answer):.2f} points, and {answer.floor.lost_points:g} may be lost (--accept)"
    elif math.isnan(out.sqnr_db):
        said = f"{name} cannot be compared: of another shape, or not finite where the model's are"
    else:
        said = f"{name} at {out.sqnr_db:.1f} dB; results {least}"
    worst = _hurting(answer)
    odd = _odd([one for one in answer.layers if one.standing in _CURED])
    return "; ".join(
        [
            f"BELOW THE FLOOR: {said}",
            *([f"worst layers: {', '.join(worst)}"] if worst else []),
            *odd,
        ]
    )


_CURED = (Standing.CLIPPED, Standing.FLUSHED, Standing.COARSE)
"""What has another cause than the width of a layer, and so another cure."""


def _odd(layers: Sequence[LayerError]) -> list[str]:
    """The worst layer of each kind of error, how many more of its kind there are, and what cures it."""
    kinds = {
        one.standing: [other for other in layers if other.standing is one.standing]
        for one in layers
    }
    found = []
    for standing, some in kinds.items():
        worst = max(some, key=lambda one: (one.clipped, one.flushed))
        more = f" and {counted(len(some) - 1, 'more layer')}" if len(some) > 1 else ""
        found.append(f"{worst}{more}: {_kind(standing, worst)}")
    return found


def _kind(standing: Standing, one: LayerError) -> str:
    """What happened to a layer, and what cures it."""
    if standing is Standing.CLIPPED:
        return (
            f"clipped, {one.clipped:.2%} of its values lie beyond the calibrated range (give --ranges-from samples like"
            " those it meets, and --method minmax)"
        )
    if standing is Standing.FLUSHED:
        cure = (
            "--activations 16 keeps them"
            if one.flushed_wide <= FLUSHED_SHARE
            else (
                "a few values take the whole range, as a mask of -1e38 does; one of -inf is left out, and --weight-only"
                " keeps activations in float32"
            )
        )
        return f"flushed to zero, {one.flushed:.0%} of its values lie below half a step ({cure})"
    if standing is Standing.COARSE:
        return "coarse step, over twice what these samples need (give --ranges-from samples like these)"
    return str(standing.value)


def _lost(answer: Answer) -> float:
    """Points of accuracy that the quantised model has less than the model."""
    out = answer.outcome
    if out.accuracy is None or out.accuracy_before is None:
        return 0.0
    return max(0.0, (out.accuracy_before - out.accuracy) * 100)


def _cost(answer: Answer) -> str:
    lost = _lost(answer)
    return f"; accuracy falls by {lost:.2f} points" if lost else ""


def _cures(answer: Answer) -> list[str]:
    """What may bring back lost accuracy."""
    is_cured = answer.is_below and any(one.standing in _CURED for one in answer.layers)
    if is_cured or not (_lost(answer) or answer.is_below):
        return []  # the headline has a cure of their own
    target = 40 if answer.outcome.accuracy is not None else max(40, answer.floor.least_db)
    cures = [f"--mixed {target:g}dB gives the layers that hurt most more bits"]
    if not answer.per_channel:
        cures.insert(0, "--per-channel gives each output channel of a weight a step of its own")
    if answer.reduced:
        cures.insert(
            0,
            "--reduce-range takes a bit from each weight; leave it out if all processors that run the model have VNNI",
        )
    return cures


def _of(some: Sequence[LayerError], answer: Answer) -> str:
    return f"{len(some)} of {counted(len(answer.layers), 'layer')}"


def render(answer: Answer, *, limit: int) -> Page:
    """The headline, the whole model, and a row a layer."""
    text = Page()
    out = answer.outcome
    add_paragraph(text, headline(answer), indent="  ", first="")
    add_paragraph(
        text,
        f"size {out.size_before_bytes:,} -> {out.size_bytes:,} bytes"
        f" ({out.size_bytes / out.size_before_bytes:.0%}), time of a batch {out.time_before_s * 1e3:.3g} ->"
        f" {out.time_s * 1e3:.3g} ms, results {out.sqnr_db:.1f} dB"
        + (f" (the least, {out.worst_result})" if out.worst_result else ""),
    )
    if out.accuracy is not None and out.accuracy_before is not None:
        add_paragraph(
            text,
            f"accuracy {out.accuracy_before:.2%} -> {out.accuracy:.2%}"
            f" ({(out.accuracy - out.accuracy_before) * 100:+.2f} points)",
        )
    for cure in _cures(answer):
        add_paragraph(text, cure)
    add_paragraph(text, f"measured on {answer.measured_on}")
    if answer.left:
        total = f"{sum(answer.left.values()):,} bytes"
        add_paragraph(
            text, f"not quantised: {total} of weights in float32, {listed(list(answer.left))}"
        )
    if answer.is_half:
        words = "of float16; what is not quantised is kept and computed in float32, inputs and outputs as they were"
        add_paragraph(text, words)
    if answer.draws:
        add_paragraph(
            text,
            f"the model draws random numbers ({listed(list(answer.draws))}): the same ones in both, here alone",
        )
    for cost in sorted({cost_of(one.bits) for one in answer.layers if one.bits} - {""}):
        add_paragraph(text, cost)
    if answer.trials:
        words = f"{counted(len(answer.trials), 'plan')} tried for {answer.target_db:g} dB, layers by their own error:"
        add_paragraph(text, words)
        add_table(
            text,
            _TRIED,
            [_trial_row(one) for one in answer.trials],
            indent="    ",
            width=terminal_width(),
        )
    add_table(
        text,
        _COLUMNS,
        [_row(one) for one in answer.layers],
        limit=limit,
        indent="  ",
        width=terminal_width(),
    )
    hurting = _hurting(answer)
    if hurting:
        alone = any(math.isfinite(one.fused) for one in answer.layers)
        by = (
            "what they add themselves"
            if alone
            else "what they carry, with what earlier layers passed on"
        )
        add_paragraph(text, f"hurt most, by {by}: {', '.join(hurting)}")
    return text


def _hurting(answer: Answer) -> list[str]:
    alone = [(one.fused, one) for one in answer.layers if math.isfinite(one.fused)]
    known = alone or [(one.carried, one) for one in answer.layers if math.isfinite(one.carried)]
    worst = sorted(known, key=lambda pair: pair[0])[:3]
    return [f"{one} ({decibels:.1f} dB)" for decibels, one in worst]


def _row(one: LayerError) -> list[object]:
    return [
        str(one), one.op, "-" if one.bits is None else one.bits, one.engine,
        *(_decibels(value) for value in (one.expected, one.own, one.fused, one.carried)),
        f"{one.clipped:.2%}" if one.clipped else "-", one.standing.value or "-",
    ]  # fmt: skip


def _trial_row(one: Trial) -> list[object]:
    widths = Counter(one.bits.values())
    return [
        ", ".join(f"{count} at {_width(bits)}" for bits, count in sorted(widths.items())), one.outcome.size_bytes,
        one.outcome.time_s * 1e3, _decibels(one.outcome.sqnr_db),
        "-" if one.outcome.accuracy is None else f"{one.outcome.accuracy:.2%}", "yes" if one.reaches else "no",
    ]  # fmt: skip


def _width(bits: int) -> str:
    return "float32" if bits == FLOAT_BITS else f"{bits} bit{'' if bits == 1 else 's'}"


def _decibels(value: float) -> str:
    return "-" if math.isnan(value) else "exact" if value == math.inf else f"{value:.1f}"


def as_values(answer: Answer) -> dict[str, Any]:
    """The answer as values of its JSON."""
    return {
        "headline": headline(answer),
        "budget_db": answer.budget_db,
        "first_beyond": answer.beyond[0].name if answer.beyond else None,
        "measured_on": answer.measured_on,
        "outcome": asdict(answer.outcome),
        "not_quantised": dict(answer.left),
        "target_db": answer.target_db,
        "below_floor": answer.is_below,
        "of_float16": answer.is_half,
        "trials": [
            {"bits": dict(one.bits), "outcome": asdict(one.outcome), "reaches": one.reaches}
            for one in answer.trials
        ],
        "layers": [asdict(one) | {"standing": one.standing.value} for one in answer.layers],
    }
