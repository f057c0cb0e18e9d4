"""Results that are no numbers: indices, masks, and what dropout keeps."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.core.operators import Trait, canonical_name, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.tolerances import DROPOUT_DEVIATIONS, DROPOUT_ROUNDINGS
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision, Rerun, outputs_of


@dataclass(frozen=True, slots=True)
class Choice:
    """A whole-number result of one side.

    valid: It is what the operator makes of this side's own inputs, or a tie away from it.
    """

    valid: bool


def decided(rerun: Rerun, record: TensorRecord) -> Choice:
    """Whether indices, masks or counts follow from the call's own inputs.

    Raises CannotReplay if the call cannot be run again in its own dtypes.
    """
    expected = outputs_of(rerun.run(Precision.OWN, backward=False, cast=False), record)[0]
    actual = rerun.load(record)
    if torch.equal(actual.to(expected.dtype), expected):
        return Choice(valid=True)
    left, right = chosen_values(rerun, record, actual), chosen_values(rerun, record, expected)
    tied = left is not None and right is not None and torch.equal(left, right)
    return Choice(valid=tied)


def chosen_values(rerun: Rerun, record: TensorRecord, indices: torch.Tensor) -> torch.Tensor | None:
    """The elements of the first input that a result chooses, or None where it is no choice."""
    name = rerun.call.site.op
    source = next(iter(rerun.call.with_role(Role.INPUT)), None)
    if (
        source is None
        or indices.dtype != torch.int64
        or Trait.CHOOSES not in operator_of(name).traits
    ):
        return None
    if record.index != len(rerun.call.with_role(Role.OUTPUT)) - 1:
        return None  # the values, which may be whole numbers too
    values = rerun.load(source)
    planes = _PLANES.search(canonical_name(name))
    dimension = _dimension(rerun.call)
    if planes is not None:
        values, indices, dimension = (
            *(_flat(one, int(planes[1])) for one in (values, indices)),
            -1,
        )
    elif dimension is None or values.dim() == 0:
        values, dimension = values.reshape(-1), 0
        indices = indices.reshape(-1)
    elif indices.dim() == values.dim() - 1 and -values.dim() <= dimension < values.dim():
        indices = indices.unsqueeze(dimension)
    try:
        return values.gather(dimension, indices)
    except (RuntimeError, IndexError):
        return None


_PLANES = re.compile("pool([123])d")
"""Pooling numbers the places of each channel from 0 on."""


def _flat(tensor: torch.Tensor, axes: int) -> torch.Tensor:
    return tensor.flatten(-axes) if tensor.dim() >= axes else tensor


def _dimension(call: Call) -> int | None:
    value = operator_of(call.site.op).axis.of(call.arguments)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def decision_words(rerun: Rerun, other: Rerun, record: TensorRecord, others: TensorRecord) -> str:
    """How many decisions flip and how near to a tie they were, judged on one side's values."""
    left, right = rerun.load(record), other.load(others)
    if left.shape != right.shape:
        return "decisions differ in number"
    flipped = left != right
    count = f"{int(flipped.sum())} of {flipped.numel()} decisions flip"
    first, second = chosen_values(rerun, record, left), chosen_values(rerun, record, right)
    if first is None or second is None or not first.dtype.is_floating_point:
        return count
    gap = float((first.double() - second.double()).abs().nan_to_num(0.0).max())
    inputs = [one.call.with_role(Role.INPUT)[0] for one in (rerun, other)]
    far = math.nan
    if inputs[0].shape == inputs[1].shape:
        apart = rerun.load(inputs[0]).double() - other.load(inputs[1]).double()
        far = float(apart.abs().nan_to_num(0.0).max())
    return f"{count}, at most {gap:.1g} from a tie, where inputs are up to {far:.1g} apart"


# --- dropout --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dropped:
    """The elements that dropout dropped on one side.

    kept: Where it let elements through; True where the input is zero and it cannot be told.
    telling: Where it can be told.
    factor: What kept elements are multiplied by.
    sound: Whether kept elements are exact and the number of dropped ones is likely.
    words: What is wrong, else "".
    """

    kept: torch.Tensor
    telling: torch.Tensor
    factor: float
    sound: bool
    words: str = ""


def probability_of(call: Call) -> float:
    """Share that a dropout call drops; 0 outside of training. Raises CannotReplay if it is no plain dropout."""
    name = call.site.op
    if name not in ("torch.nn.functional.dropout", "torch.dropout", "torch.dropout_"):
        raise CannotReplay(f"{name} drops in another way")
    share = _setting(call, "p", 1, 0.5)
    training = _setting(call, "training" if "functional" in name else "train", 2, True)
    if not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise CannotReplay("its probability was not recorded")
    return float(share) if training else 0.0


def drops(call: Call) -> bool:
    """Whether a dropout call may drop anything: not with a probability of 0, and not outside of training."""
    try:
        return probability_of(call) > 0
    except CannotReplay:
        return True


def _setting(call: Call, name: str, position: int, default: Any) -> Any:
    return call.arguments.get(f"kwargs.{name}", call.arguments.get(f"args.{position}", default))


def dropped(rerun: Rerun, unit: float) -> Dropped:
    """Read from a dropout call what it kept, and whether that is sound.

    Raises CannotReplay if its input or output is not there.
    """
    share = probability_of(rerun.call)
    source, result = rerun.call.with_role(Role.INPUT), rerun.call.with_role(Role.OUTPUT)
    if len(source) != 1 or not result or source[0].shape != result[0].shape:
        raise CannotReplay("its input or output was not recorded")
    before, after = rerun.load(source[0]).double(), rerun.load(result[0]).double()
    factor = 1.0 / (1.0 - share)
    overflows = ~(before * factor).to(rerun.load(result[0]).dtype).isfinite()
    telling = (before * factor).abs() > torch.finfo(rerun.load(result[0]).dtype).tiny
    kept = (after != 0) | ~telling
    off = (after - before * factor).abs()
    exact = (off <= DROPOUT_ROUNDINGS * unit * (before * factor).abs()) | ~kept | overflows
    wrong = int((~exact).sum())
    if wrong:
        return Dropped(kept, telling, factor, False, f"{wrong} kept elements are not x / (1 - p)")
    count = int(telling.sum())
    lost = int((telling & ~kept).sum())
    deviation = math.sqrt(max(count * share * (1 - share), 0.0))
    likely = (
        abs(lost - count * share) <= DROPOUT_DEVIATIONS * deviation + 1.0
        if share > 0
        else lost == 0
    )
    words = "" if likely else f"{lost} of {count} elements are dropped, where p is {share:g}"
    return Dropped(kept, telling, factor, likely, words)
