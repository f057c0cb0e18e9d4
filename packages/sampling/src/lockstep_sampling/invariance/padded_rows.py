"""Whether rows depend on their padding: a batch beside the same batch with more padding, which the mask leaves out.

The padding is what the arguments tell: a mask, or, without one, tokens that the model itself has as padding. Both are
computed in double precision and in evaluation mode. Only places that are no padding are compared. A first operator is
a fault only where the model's result depends too: scores of an attention may have padding in their maximum, say,
which is taken out again.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import nn

from lockstep_sampling.invariance.module_arguments import Inputs, ModuleCall
from lockstep_sampling.invariance.running import (
    Operator,
    Run,
    beginning,
    borders_of,
    in_double,
    relative_difference,
    rows_of,
    run_of,
    taken,
)

_NAMES = ("attention_mask", "attn_mask")
_NO_MASK = "the call has no attention_mask"
_UNTOLD = "mask"
"""An argument of this name may also choose the tokens of a loss; at the end of a row both say the same."""


@dataclass(frozen=True, slots=True)
class PaddingFault:
    """The first operator whose rows depend on their padding.

    operator: The operator; the model's result where both runs make other calls before that.
    relative: Largest difference of an element by the largest element of the compared ones.
    """

    operator: Operator
    relative: float


@dataclass(frozen=True, slots=True)
class Padding:
    """What was found.

    told_by: The argument that tells the padding, or the padding token.
    fault: The first operator that depends on it.
    not_tried: Why it was not tried, or "".
    """

    told_by: str = ""
    fault: PaddingFault | None = None
    not_tried: str = ""


@dataclass(frozen=True, slots=True)
class _Form:
    """A batch, and the same with more padding: `kept` are places of the first that are none, `offset` its first place
    in the second."""

    told_by: str
    short: Inputs
    long: Inputs
    kept: torch.Tensor
    offset: int


def padding_of(call: ModuleCall, *, seed: int) -> Padding:
    """Tell whether the rows of a call depend on their padding: on what its mask leaves out, and on what that keeps."""
    forms = _forms_of(call)
    found = [_padding(call, one, seed) for one in forms if isinstance(one, _Form)]
    faults = [one for one in found if one.fault is not None]
    reasons = [one for one in forms if isinstance(one, str)]
    return next(iter([*faults, *found]), Padding(not_tried="".join(reasons[:1])))


def _padding(call: ModuleCall, form: _Form, seed: int) -> Padding:
    try:
        return Padding(form.told_by, _fault_of(call, form, seed))
    except Exception as error:  # the model's own, of a batch that it does not take
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return Padding(form.told_by, not_tried=f"it does not run with other padding ({reason})")


# -- the batch with less padding, and with more


def _forms_of(call: ModuleCall) -> list[_Form | str]:
    """Pairs of batches, or why there is none."""
    values = {name: _kept_value(name, one, call.inputs) for name, one in call.inputs.items()}
    told = [(name, value) for name, value in values.items() if value is not None]
    padding = _padding_token(call.module)
    found: list[_Form | str] = [
        _masked(call.inputs, name, value, padding) for name, value in told[:1]
    ]
    if padding is None:
        return found or [_NO_MASK]
    return [*found, _unmasked(call.inputs, padding, *told[:1])]


def _kept_value(name: str, one: torch.Tensor, inputs: Inputs) -> int | None:
    """The value that a mask has for tokens that are no padding; None where the argument is no such mask.

    Mostly its name tells. Else a row tells that has one value alone: the longest of a batch has no padding.
    """
    shaped = one.ndim == 2 and one.shape[0] == rows_of(inputs) and one.shape[1] > 1
    if not shaped or not bool(((one == 0) | (one == 1)).all()):
        return None
    if name.endswith(_NAMES):
        return 1
    is_padding = "pad" in name and "mask" in name
    if not is_padding and name != _UNTOLD:
        return None
    values = {int(row[0]) for row in one if bool((row == row[0]).all())}
    if len(values) == 1:
        return values.pop()
    return 0 if is_padding and not values else None


def _padding_token(module: nn.Module) -> int | None:
    """The token that the model has as padding: in its configuration, or in an embedding."""
    told = getattr(getattr(module, "config", None), "pad_token_id", None)
    if isinstance(told, int):
        return told
    indices = {one.padding_idx for one in module.modules() if isinstance(one, nn.Embedding)}
    return next((one for one in indices if one is not None), None)


def _masked(inputs: Inputs, name: str, value: int, padding: int | None) -> _Form | str:
    """The batch without its last places, or its first ones where rows are padded there; and with them left out."""
    kept = inputs[name] == value
    length = kept.shape[1]
    more = max(1, length // 4)
    is_first = bool(kept[:, -1].all()) and not bool(kept[:, 0].all())
    if is_first and name == _UNTOLD:
        return "the argument mask begins with what may be padding, or tokens without a loss"
    places = slice(more, None) if is_first else slice(0, length - more)
    rest = slice(0, more) if is_first else slice(length - more, None)
    if not bool(kept[:, places].any(1).all()):
        return "a row has no token but padding"
    short = {key: _cut(one, places, length) for key, one in inputs.items()}
    long = {key: one.clone() for key, one in inputs.items()}
    long[name][:, rest] = 1 - value
    tokens = "" if name == _UNTOLD else _tokens(inputs, name, length)
    if tokens and padding is not None:
        long[tokens][:, rest] = padding
    return _Form(name, short, long, kept[:, places], more if is_first else 0)


def _unmasked(inputs: Inputs, padding: int, told: tuple[str, int] = ("", 1)) -> _Form | str:
    """The row with most padding that no mask leaves out, alone, without what others have less of, and with it."""
    mask, value = told
    tokens = _tokens(inputs, mask, None)
    if not tokens:
        return _NO_MASK
    is_padding = inputs[tokens] == padding
    length = is_padding.shape[1]
    if mask and inputs[mask].shape == is_padding.shape:
        is_padding &= inputs[mask] == value
    first, last = (_run_length(one) for one in (is_padding, is_padding.flip(1)))
    spread = [int(one.max() - one.min()) for one in (first, last)]
    is_first = spread[0] > spread[1]
    count, more = (first, spread[0]) if is_first else (last, spread[1])
    if not more or int(count.max()) == length:  # a row of nothing else says nothing
        return f"{_NO_MASK}, and its rows no padding"
    long = taken(inputs, [int(count.argmax())])
    places = slice(more, None) if is_first else slice(0, length - more)
    short = {key: _cut(one, places, length) for key, one in long.items()}
    kept = torch.ones(1, length - more, dtype=torch.bool)
    what = f"{mask} keeps it" if mask else "no mask"
    said = f"{what}; token {padding} is the model's padding"
    return _Form(said, short, long, kept, more if is_first else 0)


def _run_length(is_padding: torch.Tensor) -> torch.Tensor:
    """How many places each row begins with."""
    return is_padding.long().cumprod(1).sum(1)


def _tokens(inputs: Inputs, mask: str, length: int | None) -> str:
    """The first argument of whole numbers, one a place."""
    rows = rows_of(inputs)
    for name, one in inputs.items():
        whole = not one.is_floating_point() and one.dtype is not torch.bool
        if name != mask and whole and one.ndim == 2 and one.shape[0] == rows:
            return name if length in (None, one.shape[1]) else ""
    return ""


def _cut(one: torch.Tensor, places: slice, length: int) -> torch.Tensor:
    if one.ndim >= 2 and one.shape[1] == length:
        return one[:, places].clone()
    return one.clone()


# -- both computed


def _fault_of(call: ModuleCall, form: _Form, seed: int) -> PaddingFault | None:
    still = dataclasses.replace(call, module=copy.deepcopy(call.module).eval(), inputs=form.long)
    with ExitStack() as without:
        for device in {one.device.type for one in form.long.values()} | {"cpu"}:
            without.enter_context(torch.autocast(device, enabled=False))
        wide, narrow = in_double(still), in_double(dataclasses.replace(still, inputs=form.short))
        long = run_of(wide, wide.inputs, seed=seed)
        short = run_of(narrow, narrow.inputs, seed=seed)
        rows = range(len(form.kept))
        twice = run_of(narrow, taken(narrow.inputs, [*rows, *rows]), seed=seed)
    pair = _Pair(short, long, twice, form)
    result = pair.apart(len(short.operators))
    border = borders_of([*short.operators, short.result])[-1]
    if result is not None and result <= border:
        return None
    return pair.first() or (None if result is None else PaddingFault(short.result, result))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The runs with less padding and with more, and that with all rows twice, which tells the axes of rows."""

    short: Run
    long: Run
    twice: Run
    form: _Form

    def first(self) -> PaddingFault | None:
        """The first operator that all runs call and that leads to the result through others that depend."""
        count = min(
            beginning(self.short.operators, one.operators) for one in (self.long, self.twice)
        )
        borders = borders_of(self.short.operators)
        found = [self.apart(place) for place in range(count)]
        dependent = {
            place: one
            for place, one in enumerate(found)
            if one is not None and one > borders[place]
        }
        ways = self._on_the_way(lambda at: at >= count or found[at] is None or at in dependent)
        place = min(ways & dependent.keys() or dependent, default=None)
        if place is None:
            return None
        return PaddingFault(self.short.operators[place], dependent[place])

    def _on_the_way(self, passes: Callable[[int], bool]) -> set[int]:
        """Places of operators from which the result comes, through such as pass."""
        reached, waiting = set[int](), set(self.short.result.sources)
        while waiting:
            place = waiting.pop()
            if place not in reached and passes(place):
                reached.add(place)
                waiting |= self.short.operators[place].sources
        return reached

    def apart(self, place: int) -> float | None:
        """How far the results of an operator are apart; None where no axis is one of rows."""
        is_result = place == len(self.short.operators)
        runs = (self.short, self.long, self.twice)
        each = [one.result if is_result else one.operators[place] for one in runs]
        found = [
            self._apart(*outputs) for outputs in zip(*(one.outputs for one in each), strict=False)
        ]
        return max((one for one in found if one is not None), default=None)

    def _apart(self, short: torch.Tensor, long: torch.Tensor, twice: torch.Tensor) -> float | None:
        axes = [axis for axis, size in enumerate(short.shape) if twice.shape[axis] == 2 * size != 0]
        if not short.ndim == long.ndim == twice.ndim or len(axes) != 1:
            return None
        axis, rows = axes[0], len(self.form.kept)
        if (
            short.shape[axis] == rows * self._lengths[0]
            and long.shape[axis] == rows * self._lengths[1]
        ):
            flat = [
                (short.unflatten(axis, (rows, -1)), long.unflatten(axis, (rows, -1)), axis),
                (short.unflatten(axis, (-1, rows)), long.unflatten(axis, (-1, rows)), axis + 1),
            ]
            found = [self._of_places(*one) for one in flat]
            return min((one for one in found if one is not None), default=None)
        return self._of_places(short, long, axis)

    @property
    def _lengths(self) -> tuple[int, int]:
        more = next(
            long.shape[1] - short.shape[1]
            for short, long in zip(self.form.short.values(), self.form.long.values(), strict=True)
            if short.shape != long.shape
        )
        length = self.form.kept.shape[1]
        return length, length + more

    def _of_places(self, short: torch.Tensor, long: torch.Tensor, axis: int) -> float | None:
        """The difference in places that are no padding; None where other axes differ than those of places."""
        lengths = self._lengths
        kept = self.form.kept.to(short.device)
        each = short.shape[axis] // len(kept)
        kept = kept.repeat_interleave(each, 0)
        chosen = torch.ones_like(short, dtype=torch.bool)
        for other, sizes in enumerate(zip(short.shape, long.shape, strict=True)):
            if sizes[0] == sizes[1]:
                continue
            if sizes != lengths or other == axis:
                return None
            long = long.narrow(other, self.form.offset, lengths[0])
            chosen &= _broadcast(kept, axis, other, short.ndim)
        return relative_difference(short[chosen], long[chosen])


def _broadcast(kept: torch.Tensor, rows: int, places: int, axes: int) -> torch.Tensor:
    """What is kept, with its axes at these places among so many."""
    shape: Sequence[int] = [
        kept.shape[0] if one == rows else kept.shape[1] if one == places else 1
        for one in range(axes)
    ]
    return (kept if rows < places else kept.T).reshape(math.prod(shape)).reshape(list(shape))


__all__ = ["Padding", "PaddingFault", "padding_of"]
