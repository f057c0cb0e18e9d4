"""Give each row of a batch the random numbers that it had in the batch as given, as dropout draws them.

Without this, a row that stands at another place gets other numbers, and would seem to depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_DROPOUT = torch.ops.aten.native_dropout.default


@dataclass(slots=True)
class KnownDraws:
    """What was drawn for the batch as given.

    rows: Of that batch.
    values: Each draw, in order.
    axes: Which axis of a draw has rows, by its number; absent where none has. Told by a batch that is twice as long.
    is_interleaved: Whether an axis that has all places of all rows begins with the first place of each row.
    """

    rows: int
    values: list[torch.Tensor]
    axes: dict[int, int] = field(default_factory=dict)
    is_interleaved: bool = False

    @property
    def is_ambiguous(self) -> bool:
        """Whether an axis has several places of each row, in an order that no shape tells."""
        return any(
            self.values[number].shape[axis] > self.rows for number, axis in self.axes.items()
        )

    def learn_axes(self, twice: Sequence[torch.Size]) -> None:
        """Tell the axes of rows from the shapes that the same draws have in a batch that is twice as long."""
        for number, (one, other) in enumerate(zip(self.values, twice, strict=False)):
            if len(one.shape) == len(other):
                longer = [
                    axis for axis, size in enumerate(one.shape) if other[axis] == 2 * size != 0
                ]
                if len(longer) == 1 and one.shape[longer[0]] % self.rows == 0:
                    self.axes[number] = longer[0]

    def of(self, number: int, rows: Sequence[int], shape: torch.Size) -> torch.Tensor | None:
        """Return a draw with these rows; None where it has another shape."""
        if number >= len(self.values):
            return None
        known, axis = self.values[number], self.axes.get(number)
        if axis is not None:
            each = known.shape[axis] // self.rows
            at, sizes = (axis + 1, (each, -1)) if self.is_interleaved else (axis, (-1, each))
            index = torch.tensor(rows, device=known.device)
            known = known.unflatten(axis, sizes).index_select(at, index).flatten(axis, axis + 1)
        return known if known.shape == shape else None


class RowDraws(TorchDispatchMode):
    """Keeps what operators draw, or has them give what is known.

    values: Each draw, in order.
    hidden: Operators that draw inside and give no draw that could be replaced.
    """

    def __init__(self, known: KnownDraws | None = None, rows: Sequence[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[torch.Tensor] = []
        self.hidden: list[str] = []
        self._known, self._rows = known, rows

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = _states()
        result = func(*args, **(kwargs or {}))
        if all(map(torch.equal, before, _states())):
            return result  # such as an attention without dropout
        if isinstance(result, torch.Tensor):
            self._settle(result)
        elif func is _DROPOUT:
            output, mask = result
            if self._settle(mask):
                output.copy_(args[0] * mask / (1 - args[1]))
        else:
            self.hidden.append(str(func))
        return result

    def _settle(self, drawn: torch.Tensor) -> bool:
        """Put what is known in place of a draw, and keep it."""
        number = len(self.values)
        known = None if self._known is None else self._known.of(number, self._rows, drawn.shape)
        if known is not None:
            drawn.copy_(known)
        self.values.append(drawn.clone())
        return known is not None


def _states() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return states


__all__ = ["KnownDraws", "RowDraws"]
