"""How two frameworks keep one tensor, in words: `OIHW -> HWIO`, or `OI -> IO, gates ifgo -> icfo`.

A letter names an axis: N the batch, C channels, H and W an image, O what goes out of a layer, I what goes into it.
Gates of an LSTM lie one after the other along O: input, forget, cell (g or c) and output. After them `forget -1` is
what is added to the forget gate's bias: the other framework adds 1 while it runs, and keeps that out of the weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.errors import UsageError
from lockstep.core.finding import Axes

_WORDS = re.compile(
    r"(?P<left>[A-Z]+) *-> *(?P<right>[A-Z]+)"
    r"(?: *, *gates +(?P<gates>[a-z]+) *-> *(?P<others>[a-z]+))?"
    r"(?: *, *forget +(?P<forget>[+-]\d+(?:\.\d+)?))?"
)
_GATED = "O"
_FORGET = "f"


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the reference and that of the candidate.

    Parameters
    ----------
    left, right
        Axes of the reference and of the candidate, a letter each.
    gates, others
        Gates along O in the order of either, "" where there is none.
    forget
        What is added to the forget gate of a weight that goes to the candidate.
    """

    left: str
    right: str
    gates: str = ""
    others: str = ""
    forget: float = 0.0

    @classmethod
    def parse(cls, text: object, where: str = "layout") -> Layout:
        """Read a layout in words.

        Raises
        ------
        UsageError
            If it is none.

        Examples
        --------
        >>> Layout.parse("OIHW -> HWIO").axes
        (2, 3, 1, 0)
        """
        match = _WORDS.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise UsageError(f"{where}: {text!r} is not a layout; write for example 'OIHW -> HWIO'")
        gates, others = ((match[name] or "").replace("g", "c") for name in ("gates", "others"))
        for one, other in ((match["left"], match["right"]), (gates, others)):
            if sorted(one) != sorted(other) or len(set(one)) != len(one):
                raise UsageError(
                    f"{where}: {text!r}: both sides of -> need the same letters, each once"
                )
        forget = float(match["forget"] or 0)
        if (gates and _GATED not in match["left"]) or (forget and _FORGET not in gates):
            raise UsageError(
                f"{where}: {text!r}: gates lie along an axis O, and forget is one of them"
            )
        return cls(match["left"], match["right"], gates, others, forget)

    def __str__(self) -> str:
        gates = f", gates {self.gates} -> {self.others}" if self.gates else ""
        return f"{self.left} -> {self.right}{gates}" + (
            f", forget {self.forget:+g}" if self.forget else ""
        )

    @property
    def axes(self) -> Axes:
        """Axis of the reference at each place of the candidate."""
        return tuple(map(self.left.index, self.right))

    @property
    def is_order_alone(self) -> bool:
        """Whether it tells an order of axes and nothing else."""
        return self.gates == self.others and not self.forget

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the candidate's shape for a shape of the reference; None if it has other axes."""
        return tuple(shape[axis] for axis in self.axes) if len(shape) == len(self.left) else None

    def without_ones(self, shape: tuple[int, ...]) -> Axes:
        """The same order with the axes of extent 1 of the reference's shape left out."""
        kept = [axis for axis, extent in enumerate(shape) if extent != 1]
        return tuple(kept.index(axis) for axis in self.axes if axis in kept)

    def applied(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A tensor of the reference as the candidate keeps it."""
        return np.ascontiguousarray(
            self._moved(array, self.gates, self.others, self.forget).transpose(self.axes)
        )

    def undone(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A tensor of the candidate as the reference keeps it."""
        back = array.transpose(tuple(map(self.right.index, self.left)))
        return np.ascontiguousarray(self._moved(back, self.others, self.gates, -self.forget))

    def _moved(
        self, array: npt.NDArray[Any], gates: str, others: str, forget: float
    ) -> npt.NDArray[Any]:
        if not gates:
            return array
        axis = self.left.index(_GATED)
        if array.shape[axis] % len(gates):
            raise UsageError(
                f"an axis of {array.shape[axis]} is not made of {len(gates)} gates of one size"
            )
        parts = dict(zip(gates, np.split(array, len(gates), axis), strict=True))
        if forget:
            parts[_FORGET] = parts[_FORGET] + array.dtype.type(forget)
        return np.concatenate([parts[gate] for gate in others], axis)
