"""Operators made of others that round what one of these gives to the 16-bit dtype of their inputs.

A cross entropy is a log-softmax and a mean of its picked elements. Its result may be in single precision and its
log-softmax rounded to bfloat16 all the same: under autocast a CUDA device does so, a CPU does not. What such a kernel
should give is known exactly: double precision, with that part rounded where the kernel rounds it, and with the gradient
that enters the part rounded too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import canonical_name
from lockstep.core.site import Role
from lockstep.judge.protocol import Rounding
from lockstep.judge.tolerances import SINGLE
from lockstep.replay.calls.alone import Alone
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.recorded_tensors import rounds
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Results
from lockstep.replay.calls.side import Side
from lockstep.replay.error_bounds.distance import rounded

_ATEN = torch.ops.aten
_PARTS = {_ATEN._log_softmax.default: "log_softmax", _ATEN._softmax.default: "softmax"}
_BACKWARDS = (
    _ATEN._log_softmax_backward_data.default,
    _ATEN._softmax_backward_data.default,
)


class _RoundedParts(TorchDispatchMode):
    """Rounds what the parts of an operator give, and the gradients that enter them; `seen` names these parts."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _BACKWARDS:
            args = (rounded(args[0], self._dtype), *args[1:])
        made = func(*args, **(kwargs or {}))
        if func not in _PARTS or not rounds(made):
            return made
        self.seen.add(_PARTS[func])
        return rounded(made, self._dtype)


class _RoundingSide(Side):
    """A call whose parts round to a dtype, in all else in double precision."""

    def __init__(self, side: Side, dtype: torch.dtype) -> None:
        super().__init__(side.rerun, backward=side.backward)
        self._rounding = _RoundedParts(dtype)

    @property
    def parts(self) -> set[str]:
        """Which parts rounded, once it was run."""
        return self._rounding.seen

    def _double(self, cast: bool) -> Results:
        with self._rounding:
            return super()._double(cast)

    def _shaken_by(self, unit: float, seed: int) -> Results:
        with self._rounding:
            return super()._shaken_by(unit, seed)

    @property
    def _own(self) -> Results | None:
        """No kernel of this machine rounds so."""
        return None

    @property
    def _plain(self) -> Results | None:
        return None


def rounded_inside(held: Alone) -> Rounding | None:
    """The rounding inside of an operator that explains a result; None where it does not, to the result's own noise."""
    call = held.side.call
    entering = [record.dtype for record in call.with_role(Role.INPUT)]
    coarsest = max(entering, key=unit_roundoff, default="")
    own = canonical_name(call.site.op) in {canonical_name(part) for part in _PARTS.values()}
    if own or not coarsest or unit_roundoff(coarsest) <= SINGLE or held.made is not None:
        return None
    side = _RoundingSide(held.side, torch_dtype(coarsest))
    try:
        side.truth(held.record, held.reading)
        if len(side.parts) != 1 or not Alone(side, held.record, held.reading).local().sound:
            return None
    except CannotReplay:
        return None
    return Rounding("inside", (coarsest,), next(iter(side.parts)))
