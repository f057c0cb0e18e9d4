"""Which operator is the first whose rows depend on their neighbours: by rounding, or beyond.

Beyond rounding is told by a second computation in double precision. What is rounding there shrinks by the ratio of the
unit roundoffs, and what is not stays. The border between the two is the geometric mean of 1 and the unit roundoff
of the coarsest result so far, halfway between them in digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.errors import UsageError
from lockstep.core.exit_codes import ExitCode, code_of
from lockstep.wings.sampling.invariance.running import (
    Inputs,
    Operator,
    Variant,
    in_double,
    operators_of,
    rows_of,
    taken,
    variants_of,
)


@dataclass(frozen=True, slots=True)
class Dependence:
    """An operator whose rows are not the same in a variant.

    Parameters
    ----------
    operator
        The operator, as it ran in the batch as given.
    variant
        Name of the variant.
    relative
        Largest difference of an element by the largest element of the compared rows.
    place
        Its number among the operators.
    mixer
        The last operator before it that gives one result for all rows, which is not the same; None for none.
    """

    operator: Operator
    variant: str
    relative: float
    place: int
    mixer: Operator | None = None


@dataclass(frozen=True, slots=True)
class Invariance:
    """What was found.

    Parameters
    ----------
    rows
        Of the batch.
    operators, compared
        How many there are, and how many give a result with an axis of rows.
    is_result_compared
        Whether the last one does, which is the model's result.
    fault
        The first operator that depends on its neighbours beyond rounding.
    rounding
        The first operator whose bits depend on them.
    border
        The largest relative dependence that double precision could not tell from rounding.
    ran
        Names of the variants that ran.
    not_run
        Why others did not, by name.
    parted
        Variants in which the model calls other operators; they were compared up to there.
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

    @property
    def exit_code(self) -> ExitCode:
        """1 for a fault, 2 where a variant could not be compared."""
        looked = self.is_result_compared and not (self.not_run or self.parted)
        return code_of(differs=self.fault is not None, looked=looked)


def judge(module: torch.nn.Module, inputs: Inputs, *, seed: int = 0) -> Invariance:
    """Run a module on all variants of its batch, in its own dtype and in double precision.

    Raises
    ------
    UsageError
        If it does not run on the batch as given.
    """
    variants = variants_of(rows_of(inputs))
    try:
        plain = _Runs.of(module, inputs, variants, seed)
    except Exception as error:  # the model's own
        raise UsageError(f"the model does not run on its inputs: {_first_line(error)}") from error
    wide = _in_double(module, inputs, variants, seed)
    have_rows = plain.have_rows()
    rounding = plain.first()
    needed = {} if rounding is None else wide.not_run  # equal bits need no second computation
    return Invariance(
        rows=rows_of(inputs),
        operators=len(have_rows),
        compared=sum(have_rows),
        is_result_compared=bool(have_rows and have_rows[-1]),
        fault=wide.beyond(),
        rounding=rounding,
        border=wide.border,
        ran=tuple(plain.ran),
        not_run={**needed, **plain.not_run},
        parted=tuple({*plain.parted, *wide.parted}),
    )


def _in_double(
    module: torch.nn.Module, inputs: Inputs, variants: Sequence[Variant], seed: int
) -> _Runs:
    """The runs that tell rounding from a fault; none where the model has a dtype written into it."""
    try:
        return _Runs.of(*in_double(module, inputs), variants, seed)
    except Exception as error:  # the model's own
        return _Runs(
            rows_of(inputs), [], None, [], {"double precision": _first_line(error)}, [], []
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True, slots=True)
class _Runs:
    """The operators of the batch as given, and of each variant."""

    rows: int
    base: list[Operator]
    twice: list[Operator] | None
    variants: list[tuple[Variant, list[Operator]]]
    not_run: dict[str, str]
    parted: list[str]
    borders: list[float]

    @classmethod
    def of(
        cls, module: torch.nn.Module, inputs: Inputs, variants: Sequence[Variant], seed: int
    ) -> _Runs:
        """Run all of them; what fails is left out with its reason."""
        base = operators_of(module, inputs, seed=seed)
        found, not_run, parted = list[tuple[Variant, list[Operator]]](), dict[str, str](), []
        for variant in variants:
            try:
                run = operators_of(module, taken(inputs, variant.rows), seed=seed)
            except Exception as error:  # the model's own, of a batch that it does not take
                not_run[variant.name] = _first_line(error)
                continue
            count = _common(base, run)
            if count < max(len(base), len(run)):
                parted.append(variant.name)
            found.append((variant, run[:count]))
        rows = rows_of(inputs)
        twice = next((run for one, run in found if len(one.rows) == 2 * rows), None)
        return cls(rows, base, twice, found, not_run, parted, _borders(base))

    @property
    def ran(self) -> list[str]:
        """Names of what ran."""
        return [variant.name for variant, _ in self.variants]

    @property
    def border(self) -> float:
        """The largest border of an operator."""
        return max(self.borders, default=0.0)

    def have_rows(self) -> list[bool]:
        """Whether a result of each operator has an axis of rows."""
        return [
            any(self._axis(place, number) is not None for number in range(len(one.outputs)))
            for place, one in enumerate(self.base)
        ]

    def first(self) -> Dependence | None:
        """The first operator whose bits depend on its neighbours."""
        return self._first([0.0] * len(self.base))

    def beyond(self) -> Dependence | None:
        """The first operator that depends on them beyond rounding."""
        return self._first(self.borders)

    def _first(self, borders: Sequence[float]) -> Dependence | None:
        found = [one for variant, run in self.variants for one in self._of(variant, run, borders)]
        return min(found, key=lambda one: one.place, default=None)

    def _of(
        self, variant: Variant, run: Sequence[Operator], borders: Sequence[float]
    ) -> Iterator[Dependence]:
        """The first one of a variant."""
        mixer: Operator | None = None
        for place, (one, other) in enumerate(zip(self.base, run, strict=False)):
            for number, output in enumerate(one.outputs):
                if number >= len(other.outputs) or not output.numel():
                    continue
                axis = self._axis(place, number)
                relative = _apart(output, other.outputs[number], axis, self.rows, variant)
                if axis is None and relative > borders[place] and len(variant.rows) == self.rows:
                    mixer = one
                elif axis is not None and relative > borders[place]:
                    yield Dependence(one, variant.name, relative, place, mixer)
                    return

    def _axis(self, place: int, number: int) -> int | None:
        """The axis of rows: the one that is twice as long in a batch that is."""
        if self.twice is None or place >= len(self.twice):
            return None
        one, other = self.base[place].outputs[number].shape, self.twice[place].outputs[number].shape
        if len(one) != len(other):
            return None
        longer = [axis for axis, (left, right) in enumerate(zip(one, other, strict=True)) if left != right]  # fmt: skip
        if len(longer) != 1 or other[longer[0]] != 2 * one[longer[0]]:
            return None
        return longer[0] if one[longer[0]] % self.rows == 0 else None


def _common(one: Sequence[Operator], other: Sequence[Operator]) -> int:
    """How many calls both runs begin with."""
    for count, (left, right) in enumerate(zip(one, other, strict=False)):
        if not left.is_as(right):
            return count
    return min(len(one), len(other))


def _borders(operators: Sequence[Operator]) -> list[float]:
    """For each operator the border of the coarsest result so far."""
    worst, found = 0.0, []
    for one in operators:
        dtypes = (str(output.dtype).removeprefix("torch.") for output in one.outputs)
        worst = max(worst, *map(unit_roundoff, dtypes))
        found.append(math.sqrt(worst))
    return found


def _apart(
    base: torch.Tensor, other: torch.Tensor, axis: int | None, rows: int, variant: Variant
) -> float:
    """The relative difference of the compared rows; of the whole where no axis has rows; 0 if not comparable."""
    if axis is None:
        return _relative(base, other) if base.shape == other.shape else 0.0
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
        differences.append(_relative(left[source.to(left.device)], right[wanted.to(right.device)]))
    return min(differences)


def _relative(one: torch.Tensor, other: torch.Tensor) -> float:
    wide, narrow = one.double(), other.double()
    same = (wide == narrow) | (wide.isnan() & narrow.isnan())
    if bool(same.all()):
        return 0.0
    apart = (wide - narrow)[~same].abs()
    largest = float(wide[wide.isfinite()].abs().max()) if bool(wide.isfinite().any()) else 0.0
    most = float(apart.max())
    return most / largest if largest and math.isfinite(most) else math.inf


__all__ = ["Dependence", "Invariance", "judge"]
