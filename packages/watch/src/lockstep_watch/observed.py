"""A step as rules see it: its calls with their numbers, and a memory of earlier steps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lockstep.recordings import (
    Call,
    CallKind,
    Phase,
    RankManifest,
    RankRecording,
    Role,
    Site,
    Statistics,
    StepSummary,
    TensorRecord,
    canonical_name,
    is_finite,
)
from lockstep_watch.hand_scale import hand_scale
from lockstep_watch.thrown_away import last_thrown_away

Key = tuple[str, str]
"""What a number is remembered under: of what kind it is, and of which tensor."""

ALL_RANKS = "all ranks"
"""The rank of a hit that is of all ranks together."""

_AT_START = 10
_LEARNED = 1e-3


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that fired.

    rule: Its name.
    step, rank: Where in the training.
    subject: What it fired on: a parameter's name, a printed site, or `loss`, `gradient norm` ... of the whole training.
    value, limit: What was found and what it was held against; NaN where there is no number.
    words: The whole sentence.
    site: The operator or module, where there is one.
    source: `file:line` of the user's code that it comes from, or "".
    history: What the tensor's numbers were in the latest watched steps, this one last, each with its step; empty where
        it is of no one tensor.
    is_note: Whether it may be meant: it is told once, and is no reason for an exit code.
    """

    rule: str
    step: int
    rank: str
    subject: str
    value: float
    limit: float
    words: str
    site: Site | None = None
    source: str = ""
    history: tuple[tuple[int, Statistics], ...] = ()
    is_note: bool = False


@dataclass(slots=True)
class Memory:
    """The numbers of one rank's earlier steps.

    numbers: The latest numbers under each key, the newest last, at most `length` of them.
    counts: In how many watched steps in a row something has held, by what it is.
    facts: What a rule keeps else, by its name.
    losses: The loss of each step, this one's the last.
    rates: The largest learning rate of each step, this one's the last.
    shared: What a rule keeps of all ranks, by its name.
    """

    length: int = 1024
    numbers: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[Key, int] = field(default_factory=lambda: defaultdict(int))
    facts: dict[Key, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    largest_rate: float = 0.0
    first_losses: list[float] = field(default_factory=list)
    shared: dict[Key, Any] = field(default_factory=dict)

    def before(self, kind: str, subject: str = "") -> list[float]:
        """Numbers of the steps before this one, the newest last."""
        return self.numbers[kind, subject]

    def remember(self, kind: str, value: float, subject: str = "") -> None:
        """Add a number; the oldest goes."""
        kept = self.numbers[kind, subject]
        kept.append(value)
        del kept[: -self.length]

    def note(self, loss: float | None, rate: float | None) -> None:
        """Keep the numbers of a step that several rules ask for; it is the newest from here on."""
        self.losses += [] if loss is None else [loss]
        if loss is not None and math.isfinite(loss) and len(self.first_losses) < _AT_START:
            self.first_losses.append(loss)
        self.rates += [] if rate is None else [rate]
        self.largest_rate = max(self.largest_rate, rate or 0.0)
        del self.losses[: -self.length], self.rates[: -self.length]

    @property
    def loss_at_start(self) -> float | None:
        """The largest of the first ten losses."""
        return max(self.first_losses, default=None)

    def in_a_row(self, kind: str, subject: str, holds: bool) -> int:
        """For how many watched steps in a row, with this one, something has held."""
        key = kind, subject
        self.counts[key] = self.counts[key] + 1 if holds else 0
        return self.counts[key]


@dataclass(frozen=True, slots=True)
class Update:
    """One parameter in one step, as its optimizer took it; numbers that are not known are None.

    name: Its full name.
    call: The optimizer's.
    before, gradient, after: The parameter, the gradient that the optimizer took (of a scaler, unscaled) and the
        parameter it left.
    """

    name: str
    call: Call
    before: TensorRecord | None
    gradient: TensorRecord | None
    after: TensorRecord | None

    @property
    def is_weight(self) -> bool:
        """Whether it has two axes or more: biases and scales are often zero, and their gradients often but noise."""
        return self.before is not None and len(self.before.shape) >= 2

    @property
    def has_gradient(self) -> bool:
        """Whether the optimizer took a gradient that is finite and not zero in all elements."""
        return self.gradient is not None and bool(norm_of(self.gradient))

    @property
    def is_unchanged(self) -> bool:
        """Whether the update left the parameter as it was, to the last bit."""
        before, after = self.before, self.after
        return bool(before and after and before.digest and before.digest == after.digest)

    @property
    def change(self) -> float | None:
        """Euclidean norm of the update: from sketches, which are linear, within some ten per cent; None without."""
        if self.is_unchanged:
            return 0.0
        if self.before is None or self.after is None:
            return None
        left, right = self.before.content.sketch, self.after.content.sketch
        if left is None or right is None:
            return None
        difference = float(np.linalg.norm(right - left))
        return difference if math.isfinite(difference) else None


class ObservedStep:
    """One step of one rank.

    rank: The rank's recording, which holds the step.
    name: `rank0`.
    number: Which step.
    memory: What is known of the steps before.

    thrown_away: The time up to which the script threw away what the step computed, -1 where it did not; see
        `thrown_away`.
    """

    def __init__(self, rank: RankRecording, name: str, number: int, memory: Memory) -> None:
        self.rank, self.number, self.memory = name, number, memory
        self.manifest: RankManifest = rank.manifest
        self.calls: list[Call] = rank.calls(number)
        self.thrown_away = last_thrown_away(self.calls)
        memory.note(self.loss, max(self.learning_rates, default=None))

    @property
    def summary(self) -> StepSummary | None:
        """The manifest's summary of the step."""
        return next((one for one in self.manifest.steps if one.index == self.number), None)

    @property
    def is_skipped(self) -> bool:
        """Whether a gradient scaler left the optimizer out."""
        return self.summary is not None and self.summary.skipped

    @property
    def loss_scale(self) -> float | None:
        """The factor of a gradient scaler in this step; None where there is none."""
        return None if self.summary is None else self.summary.loss_scale

    @cached_property
    def losses(self) -> list[TensorRecord]:
        """The losses of the step, in order; several if gradients are accumulated."""
        return [one for one in self._all_losses if one.sequence > self.thrown_away]

    @property
    def left_out_by_hand(self) -> int:
        """How many backwards the script has thrown away before the one that it updates from."""
        return len(self._all_losses) - len(self.losses)

    @cached_property
    def _all_losses(self) -> list[TensorRecord]:
        return [one for call in self.calls_of(CallKind.LOSS) for one in call.with_role(Role.LOSS)]

    @cached_property
    def hand_scale(self) -> float:
        """The factor that a script scales the loss by and takes out of the gradients itself; 1 where it does not."""
        if self.loss_scale is not None:
            return 1.0
        left = {
            record.name: norm_of(record)
            for call in self.calls_of(CallKind.GRADIENT)
            for record in call.with_role(Role.PARAM_GRAD)
        }
        taken = {
            one.name: norm_of(one.gradient) for one in self.updates if one.gradient is not None
        }
        ratios = [
            norm / taken_norm
            for name, norm in left.items()
            if norm and (taken_norm := taken.get(name))
        ]
        return hand_scale(self.calls, ratios, self.losses, knows=bool(self.operators))

    @cached_property
    def loss(self) -> float | None:
        """Mean of what backward began from, without a scaler's factor; NaN or inf where one of them was."""
        values = [value for one in self.losses if (value := number_of(one)) is not None]
        scale = self.loss_scale or self.hand_scale
        return sum(values) / len(values) / scale if values else None

    @cached_property
    def learning_rates(self) -> list[float]:
        """The learning rate of each group of each optimizer that stepped."""
        setups = [one for one in self.manifest.optimizers if one.step == self.number]
        rates = [group.get("lr") for one in setups for group in one.groups]
        return [float(rate) for rate in rates if isinstance(rate, int | float)]

    @property
    def is_at_full_rate(self) -> bool:
        """Whether the learning rate is what it was in the watched step before, and the largest so far.

        A warm-up raises it and a decay lowers it: what is small meanwhile is meant to be.
        """
        rates = self.memory.rates
        if not rates:
            return not self.learning_rates
        return rates[-1] > 0.0 and rates[-2:] == [self.memory.largest_rate] * 2

    @property
    def has_learned(self) -> bool:
        """Whether the loss is below a thousandth of what it began with: gradients are next to nothing by right then."""
        start = self.memory.loss_at_start
        return start is not None and self.loss is not None and 0 <= self.loss < _LEARNED * start

    @cached_property
    def held_parameters(self) -> set[str]:
        """Names of all parameters that the optimizers hold that stepped, where that is known."""
        setups = self.manifest.optimizers
        stepped = {one.index for one in setups if one.step == self.number}
        latest = {  # they stand where they are others than before
            one.index: one.parameters
            for one in sorted(setups, key=lambda setup: setup.step)
            if one.index in stepped and one.step <= self.number and any(one.parameters)
        }
        return {name for groups in latest.values() for group in groups for name in group}

    @cached_property
    def updates(self) -> list[Update]:
        """Each parameter that an optimizer updated."""
        return list(self._updates())

    @cached_property
    def gradients(self) -> dict[str, tuple[Call, TensorRecord]]:
        """The gradient that backward left in each parameter, before clipping; with a scaler's factor in it."""
        found: dict[str, tuple[Call, TensorRecord]] = {}
        for call in self.calls_of(CallKind.GRADIENT):
            for record in call.with_role(Role.PARAM_GRAD):
                found[record.name] = call, record
        if not found:  # as where an engine reduces them out of sight
            for one in self.updates:
                if one.gradient is not None:
                    found[one.name] = one.call, one.gradient
        return found

    @cached_property
    def gradient_scale(self) -> float:
        """The factor that is in the gradients that backward left."""
        scaled = any(call.kind is CallKind.GRADIENT for call, _ in self.gradients.values())
        return (self.loss_scale or self.hand_scale) if scaled else 1.0

    @cached_property
    def gradient_norm(self) -> float | None:
        """Euclidean norm of all gradients that backward left, without a scaler's factor; None where one is unknown."""
        squares = 0.0
        for _, record in self.gradients.values():
            norm = norm_of(record)
            if norm is None:
                return None
            squares += norm * norm
        return math.sqrt(squares) / self.gradient_scale if self.gradients else None

    @cached_property
    def operators(self) -> list[Call]:
        """Calls of operators in forward, which are seen at level `api`; what a custom function computes is its own."""
        return [
            call
            for call in self.calls_of(CallKind.OPERATOR)
            if call.site.phase is Phase.FORWARD and call.site.op.startswith("torch.")
        ]

    def outputs(self, *operators: str) -> Iterator[tuple[Call, TensorRecord]]:
        """Results of operators in forward, each where it was made: of the operators of these names, or of all."""
        inner = {call.parent for call in self.calls if call.kind is CallKind.OPERATOR}
        for call in self.calls:
            leaf = call.kind is CallKind.OPERATOR or (
                call.kind is CallKind.MODULE and call.id not in inner
            )
            if not leaf or call.site.phase is not Phase.FORWARD:
                continue
            if not operators or canonical_name(call.site.op) in operators:
                for record in call.with_role(Role.OUTPUT):
                    yield call, record

    @cached_property
    def batch(self) -> list[TensorRecord]:
        """The largest tensors that came from outside of the step: what is most likely data."""
        data = [one for call in self.calls_of(CallKind.DATA) for one in call.with_role(Role.OUTPUT)]
        largest = max((one.content.numel for one in data), default=0)
        return [one for one in data if one.content.numel == largest and largest > 1]

    def hit(
        self,
        subject: str,
        words: str,
        *,
        value: float = math.nan,
        limit: float = math.nan,
        call: Call | None = None,
        is_note: bool = False,
    ) -> Hit:
        """A rule fires; its name is put in by who runs it."""
        site, source = (None, "") if call is None else (call.site, call.source)
        return Hit(
            "", self.number, self.rank, subject, value, limit, words, site, source, is_note=is_note
        )

    def calls_of(self, kind: CallKind) -> list[Call]:
        """Its calls of one kind, in order of time."""
        return [call for call in self.calls if call.kind is kind]

    def _updates(self) -> Iterator[Update]:
        for call in self.calls_of(CallKind.OPTIMIZER):
            found = {record.role: record for record in call.records}
            held = found.get(Role.PARAM) or found.get(Role.PARAM_AFTER)
            if held is not None:
                yield Update(
                    held.name, call, found.get(Role.PARAM), found.get(Role.PARAM_GRAD),
                    found.get(Role.PARAM_AFTER),
                )  # fmt: skip


def number_of(record: TensorRecord) -> float | None:
    """The one number that a loss is, NaN or inf as it was; its sum's mean where it has several elements."""
    numbers = record.statistics
    if numbers is None:
        return None
    if numbers.nan_count:
        return math.nan
    return math.inf if numbers.inf_count else numbers.mean


def norm_of(record: TensorRecord) -> float | None:
    """Euclidean norm, None where it is not known or not finite."""
    numbers = record.statistics
    if numbers is None or not is_finite(record):
        return None
    return 0.0 if math.isnan(numbers.norm) else numbers.norm


def rms_of(record: TensorRecord) -> float | None:
    """Root of the mean square, which is never below the mean of the magnitudes; None as for `norm_of`."""
    norm = norm_of(record)
    return None if norm is None else norm / math.sqrt(max(1, record.content.numel))


def largest_magnitude(record: TensorRecord) -> float | None:
    """The largest magnitude of the finite elements; None where there is none or nothing is known."""
    numbers = record.statistics
    if numbers is None or math.isnan(numbers.minimum):
        return None
    return max(abs(numbers.minimum), abs(numbers.maximum))
