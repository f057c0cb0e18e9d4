"""Calls that a reader of a different tool's files gives: which tensors went in and came out, here or in its files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.records import Array, Frame, Statistics
from lockstep.core.site import CallKind, Phase, Role

Bytes = npt.NDArray[np.uint8]
"""The bytes of a tensor, row after row, shape (nbytes,)."""


@dataclass(frozen=True, slots=True)
class LaterTensor:
    """A tensor that nobody has read yet, with the facts that are known.

    Parameters
    ----------
    dtype, shape
        As the framework names them: "bfloat16", (4, 128).
    statistics
        As the other tool took them, NaN for a number that it left out; None where there are none.
    digest
        Equal ones mean equal bytes, dtype and shape; `KIND:...`, so that two kinds are never held against each other.
    load
        Reads its bytes, in the order of this machine, row after row, shape (nbytes,); None where they were not kept.
    note
        Why numbers are missing, or "".
    place
        The file, for messages.
    """

    dtype: str
    shape: tuple[int, ...]
    statistics: Statistics | None = None
    digest: str | None = None
    load: Callable[[], Bytes] | None = None
    note: str = ""
    place: str = ""

    @property
    def known_by(self) -> str | None:
        """Return the key by which two tensors of one run are equal: the digest, else all four numbers; None without.

        A digest that merely stands in a dump may be one of a later moment, so it counts with the numbers beside it.
        """
        numbers = self.statistics
        if numbers is None or (self.digest is not None and self.load is not None):
            return self.digest
        four = (numbers.minimum, numbers.maximum, numbers.mean, numbers.norm)
        if self.digest is not None:
            return f"{self.digest} with {four}"
        return None if self.note or any(map(math.isnan, four)) else f"numbers:{four}"


@dataclass(frozen=True, slots=True)
class ReadTensor:
    """One tensor of a call that a different tool recorded.

    Parameters
    ----------
    role
        Its part in the call.
    name
        Its name in the code ("args.0", "result"), or the full name of a parameter.
    value
        Its elements, of a dtype that NumPy has, in the framework's own shape; or the known numbers of a tensor that is
        read where it lies when somebody asks for it.
    argument
        Which argument a parameter was ("args.1"), where `name` does not say it: such a call can be run again.
    phase
        Part of the step that it belongs to; None for that of its call. A gradient of a forward call is of the backward.
    moment
        The moment it was seen; None for right after the one before it.
    index
        Which of the tensors of its role it is; None for the next.
    dims
        The meaning of its axes where ranks hold parts of it, see `core.dims`; "" where the tool does not tell.
    """

    role: Role
    name: str
    value: Array | LaterTensor
    argument: str = ""
    phase: Phase | None = None
    moment: int | None = None
    index: int | None = None
    dims: str = ""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """One call that a different tool recorded; calls of a rank come in the order in which they began.

    Parameters
    ----------
    step, rank
        Numbers from 0.
    module, op
        Path of the module, and the operator as torch's API spells it, or the class of a module.
    tensors
        Its inputs and outputs.
    kind, phase
        The operator or module, and its place in time.
    arguments
        Plain arguments, `args.1` or `kwargs.dim`.
    module_class
        Class of the module that it is called in.
    parent
        How many calls of its rank were given before that of the module around it; -1 where that is not known.
    stack
        Where it was called from, innermost frame first.
    moment
        When it began, from 1; moments grow with time within a rank. None for right after the call before, for
        a reader that gives no moments at all.
    mesh
        How the ranks stand, as in `core.dims.Mesh`, where the tool tells it.
    """

    step: int
    module: str
    op: str
    tensors: Sequence[ReadTensor]
    rank: int = 0
    kind: CallKind = CallKind.OPERATOR
    phase: Phase = Phase.FORWARD
    arguments: Mapping[str, Any] = field(default_factory=dict)
    module_class: str = ""
    parent: int = -1
    stack: tuple[Frame, ...] = ()
    moment: int | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)


__all__ = ["Bytes", "LaterTensor", "ReadCall", "ReadTensor"]
