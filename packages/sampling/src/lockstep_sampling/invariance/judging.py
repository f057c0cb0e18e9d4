"""Which operator is the first whose rows depend on their neighbours: by rounding, or beyond.

Beyond rounding is told by a second computation in double precision. What is rounding there shrinks by the ratio of the
unit roundoffs, and what is not stays. The border between the two is the geometric mean of 1 and the unit roundoff
of the coarsest result so far, halfway between them in digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

import torch

from lockstep.errors import ExitCode, UsageError, code_of
from lockstep_sampling.invariance.module_arguments import ModuleCall
from lockstep_sampling.invariance.padded_rows import Padding, padding_of
from lockstep_sampling.invariance.row_draws import KnownDraws
from lockstep_sampling.invariance.running import (
    Operator,
    Run,
    Variant,
    beginning,
    borders_of,
    in_double,
    relative_difference,
    rows_of,
    run_of,
    taken,
    variants_of,
)


@dataclass(frozen=True, slots=True)
class Dependence:
    """An operator whose rows are not the same in a variant.

    operator: The operator, as it ran in the batch as given.
    variant: Name of the variant.
    relative: Largest difference of an element by the largest element of the compared rows.
    place: Its number among the operators.
    mixer: The last operator before it that gives one result for all rows, which is not the same; None for none.
    """

    operator: Operator
    variant: str
    relative: float
    place: int
    mixer: Operator | None = None


@dataclass(frozen=True, slots=True)
class Invariance:
    """What was found.

    rows: Of the batch.
    operators, compared: How many there are, and how many give a result with an axis of rows.
    is_result_compared: Whether the model's result has such an axis.
    fault: The first operator that depends on its neighbours beyond rounding.
    rounding: The first operator whose bits depend on them.
    border: The largest relative dependence that double precision could not tell from rounding.
    ran: Names of the variants that ran.
    not_run: Why others did not, by name.
    parted: Variants in which the model calls other operators; they were compared up to there, and in their result.
    hidden_draws: Operators that draw random numbers which could not be given to the same rows again.
    padding: Whether rows depend on their padding.
    gives_one_number: Whether the model's result is numbers without axes, such as a loss.
    """

    rows: int
    operators: int
    compared: int
    is_result_compared: bool
    fault: Dependence | None
    rounding: Dependence | None
    border: float
    ran: tuple[str, ...]
    not_run: Mapping[str, str]
    parted: tuple[str, ...]
    hidden_draws: tuple[str, ...] = ()
    padding: Padding = field(default_factory=Padding)
    gives_one_number: bool = False

    @property
    def exit_code(self) -> ExitCode:
        """1 for a fault, 2 where a variant could not be compared."""
        looked = self.is_result_compared and not (self.not_run or self.is_by_hidden_draws)
        is_fault = self.fault is not None and not self.is_by_hidden_draws
        return code_of(differs=is_fault or self.padding.fault is not None, looked=looked)

    def exit_code_of_a_script(self) -> ExitCode:
        """The same, where the result may be a loss of all rows, whose rows were compared before they are summed."""
        is_loss = self.gives_one_number and self.compared > 0 and not self.parted
        if self.fault is None and self.padding.fault is None and is_loss and not self.not_run:
            return ExitCode.AGREES
        return self.exit_code

    @property
    def is_by_hidden_draws(self) -> bool:
        """Whether rows may depend on each other only because they drew other numbers."""
        return self.fault is not None and bool(self.hidden_draws)


def judge(call: ModuleCall, *, seed: int = 0, axis: int = 0) -> Invariance:
    """Make a call of a module on all variants of its batch, in its own dtype and in double precision.

    `axis` is that of the rows. Where places of rows lie in an order that no shape tells, both orders of their random
    numbers are tried.

    Raises UsageError if it does not run on the batch as given.
    """
    found, is_ambiguous = _judged(call, seed, axis, is_interleaved=False)
    if found.fault is not None and is_ambiguous:
        other, _ = _judged(call, seed, axis, is_interleaved=True)
        found = found if other.fault is not None else other
    if axis:
        return replace(found, padding=Padding(not_tried="rows are not the first axis"))
    if call.goes_on:
        return replace(
            found, padding=Padding(not_tried="the call goes on with what earlier ones left")
        )
    return replace(found, padding=padding_of(call, seed=seed))


def _judged(
    call: ModuleCall, seed: int, axis: int, *, is_interleaved: bool
) -> tuple[Invariance, bool]:
    try:
        plain = _Runs.of(call, seed, axis, is_interleaved)
    except Exception as error:  # the model's own
        raise UsageError(f"the model does not run on its inputs: {_first_line(error)}") from error
    wide = _in_double(call, seed, axis, is_interleaved)
    have_rows = plain.have_rows()
    needed = {} if plain.rounding is None else wide.not_run  # equal bits need no second computation
    found = Invariance(
        rows=plain.rows,
        operators=len(have_rows),
        compared=sum(have_rows),
        is_result_compared=plain.has_rows(plain.base.result, None),
        fault=wide.fault,
        rounding=plain.rounding,
        border=wide.border,
        ran=tuple(plain.ran),
        not_run={**needed, **plain.not_run},
        parted=tuple({*plain.parted, *wide.parted}),
        gives_one_number=bool(plain.base.result.outputs)
        and not any(one.ndim for one in plain.base.result.outputs),
        hidden_draws=tuple({*plain.base.hidden_draws, *wide.base.hidden_draws}),
    )
    return found, plain.draws.is_ambiguous or wide.draws.is_ambiguous


def _in_double(call: ModuleCall, seed: int, axis: int, is_interleaved: bool) -> _Runs:
    """The runs that tell rounding from a fault; none where the model has a dtype written into it."""
    try:
        with ExitStack() as without:
            for device in {one.device.type for one in call.inputs.values()} | {"cpu"}:
                without.enter_context(torch.autocast(device, enabled=False))
            return _Runs.of(in_double(call), seed, axis, is_interleaved)
    except Exception as error:  # the model's own
        nothing = Run([], Operator("", "", "", 0, ()), [], [])
        none = _Runs(rows_of(call.inputs, axis), nothing, KnownDraws(0, []))
        none.not_run["double precision"] = _first_line(error)
        return none


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@dataclass(slots=True)
class _Runs:
    """The batch as given, and what was found in each variant."""

    rows: int
    base: Run
    draws: KnownDraws
    twice: Run | None = None
    ran: list[str] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    parted: list[str] = field(default_factory=list)
    fault: Dependence | None = None
    rounding: Dependence | None = None

    @classmethod
    def of(cls, call: ModuleCall, seed: int, axis: int, is_interleaved: bool) -> _Runs:
        """Run all variants; what fails is left out with its reason."""
        base = run_of(call, call.inputs, seed=seed)
        rows = rows_of(call.inputs, axis)
        found = cls(rows, base, KnownDraws(rows, base.draws, is_interleaved=is_interleaved))
        variants = variants_of(rows)
        doubled = next(one for one in variants if len(one.rows) == 2 * rows)
        with suppress(Exception):  # the variant of this batch says why
            inputs = taken(call.inputs, doubled.rows, axis)
            found.twice = run_of(call, inputs, seed=seed)
            found.draws.learn_axes([one.shape for one in found.twice.draws])
        for variant in variants:
            inputs = taken(call.inputs, variant.rows, axis)
            try:
                run = run_of(call, inputs, seed=seed, known=found.draws, rows=variant.rows)
            except Exception as error:  # the model's own, of a batch that it does not take
                found.not_run[variant.name] = _first_line(error)
                continue
            found.add(variant, run)
        return found

    def add(self, variant: Variant, run: Run) -> None:
        """Compare a variant with the batch as given."""
        ours, theirs = self.base.operators, run.operators
        count = beginning(ours, theirs)
        if count < max(len(ours), len(theirs)):
            self.parted.append(variant.name)
        self.ran.append(variant.name)
        borders = borders_of([*ours, self.base.result])
        found = self._first(variant, run, count, [0.0] * len(borders))
        self.rounding = _earlier(self.rounding, found)
        self.fault = _earlier(self.fault, self._first(variant, run, count, borders))

    @property
    def border(self) -> float:
        """The largest border of an operator."""
        return max(borders_of(self.base.operators), default=0.0)

    def have_rows(self) -> list[bool]:
        """Whether a result of each operator has an axis of rows."""
        return [self.has_rows(one, place) for place, one in enumerate(self.base.operators)]

    def has_rows(self, one: Operator, place: int | None) -> bool:
        """Whether a result of an operator has such an axis; the place is None for the model's result."""
        return any(self._axis(one, place, number) is not None for number in range(len(one.outputs)))

    def _first(
        self, variant: Variant, run: Run, count: int, borders: Sequence[float]
    ) -> Dependence | None:
        """The first operator of a variant that both runs call and that depends; else the model's result."""
        mixer: Operator | None = None
        ours, theirs = self.base.operators[:count], run.operators[:count]
        pairs = [(*pair, place) for place, pair in enumerate(zip(ours, theirs, strict=True))]
        for one, other, place in [*pairs, (self.base.result, run.result, None)]:
            at = len(borders) - 1 if place is None else place
            for number, (left, right) in enumerate(zip(one.outputs, other.outputs, strict=False)):
                if not left.numel():
                    continue
                axis = self._axis(one, place, number)
                relative = _apart(left, right, axis, self.rows, variant)
                if axis is None and relative > borders[at] and len(variant.rows) == self.rows:
                    mixer = one
                elif axis is not None and relative > borders[at]:
                    return Dependence(one, variant.name, relative, at, mixer)
        return None

    def _axis(self, one: Operator, place: int | None, number: int) -> int | None:
        """The axis of rows: the one that is twice as long in a batch that is."""
        if self.twice is None:
            return None
        twice = [*self.twice.operators, self.twice.result]
        at = len(twice) - 1 if place is None else place
        if at >= len(twice) or number >= len(twice[at].outputs):
            return None
        shape, other = one.outputs[number].shape, twice[at].outputs[number].shape
        if len(shape) != len(other):
            return None
        longer = [axis for axis, size in enumerate(shape) if size != other[axis]]
        if len(longer) != 1 or other[longer[0]] != 2 * shape[longer[0]]:
            return None
        return longer[0] if shape[longer[0]] % self.rows == 0 else None


def _earlier(one: Dependence | None, other: Dependence | None) -> Dependence | None:
    return min(filter(None, (one, other)), key=lambda it: it.place, default=None)


def _apart(
    base: torch.Tensor, other: torch.Tensor, axis: int | None, rows: int, variant: Variant
) -> float:
    """The relative difference of the compared rows; of the whole where no axis has rows; 0 if not comparable."""
    if axis is None:
        return relative_difference(base, other) if base.shape == other.shape else 0.0
    extents = base.shape[axis], other.shape[axis]
    if extents[1] * rows != extents[0] * len(variant.rows):
        return 0.0
    each = extents[0] // rows
    differences = []
    # rows may stand one behind the other with all that is theirs, or each place of all rows together
    for split in ((-1, each), (each, -1)) if each > 1 else ((-1, each),):
        at = 0 if split[0] == -1 else 1
        left = base.unflatten(axis, split).movedim(axis + at, 0)
        right = other.unflatten(axis, split).movedim(axis + at, 0)
        wanted = torch.tensor(variant.compared)
        source = torch.tensor([variant.rows[row] for row in variant.compared])
        differences.append(
            relative_difference(left[source.to(left.device)], right[wanted.to(right.device)])
        )
    return min(differences)


__all__ = ["Dependence", "Invariance", "judge"]
