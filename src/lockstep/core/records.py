"""Records: one tensor seen at one site, and the call it was seen at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lockstep.core.content_notes import Note, note_of
from lockstep.core.site import CallKind, Role, Site

Array = npt.NDArray[Any]
"""A NumPy array of any dtype and shape."""
Sketch = npt.NDArray[np.float64]
"""Numbers of shape (256,) that stand for a tensor: their distance is about that of the tensors."""


class Pieces(Protocol):
    """Elements of a tensor in row-major order, read part by part, by several threads if need be."""

    @property
    def size(self) -> int:
        """How many."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of every part."""

    @property
    def is_made(self) -> bool:
        """Return whether a part is computed when it is read, rather than a view of memory or of a mapped file."""

    def part(self, start: int, stop: int, out: Array | None = None) -> Array:
        """Elements from start to stop, contiguous, not to be written to; `start` is a multiple of `PIECE`.

        What is made is put into `out` where there is some: of this dtype, and of as many elements or more.
        """

    def release(self, start: int, stop: int) -> None:
        """Give pages of a mapped file back that the part was read from."""


PIECE = 1 << 15
"""Parts of a tensor begin at multiples of this."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """How one field of `Statistics` is kept in recordings and shown in tables, which all follow from this.

    name: Of the field, and of its column.
    kind: Type of its values: float, int or str.
    heading: The word over its column.
    unwritten: What stands for one that a recording does not hold.
    least: The smallest value that may stand in a recording.
    added: Whether earlier builds wrote recordings without its column.
    """

    name: str
    kind: type
    heading: str = ""
    unwritten: float | None = math.nan
    least: int | None = None
    added: bool = False


def _statistic(**declared: Any) -> Any:
    default = {"default": declared["unwritten"]} if declared.get("added") else {}
    return field(**default, metadata=declared)


@dataclass(slots=True)
class Statistics:
    """Numbers about one tensor, each taken over all its elements in double precision.

    `minimum`, `maximum`, `mean` and `norm` (Euclidean) are over the finite elements only; NaN where there is none.
    Boolean tensors count as 0 and 1, complex ones by magnitude. NaN also stands for a number, or a norm, that another
    tool left out.
    `not_finite` is a digest of the places of NaN, inf and -inf in row-major order (`lockstep.kernels.not_finite`): None
    where there is none of them, and in recordings without it. `subnormal_count` counts elements that are not 0
    and smaller than the smallest normal number of the tensor's own dtype (IEEE 754-2019, 2.1): they have lost digits,
    and the next factor makes zeros of them. None in recordings without it.

    To add a number: declare it here, and take it in `lockstep.kernels` (arrays) and `lockstep.devices.tensor_numbers`
    (dtypes that no loop is compiled for). Columns, their bounds, and the tables that show all numbers follow.
    """

    minimum: float = _statistic(heading="min")
    maximum: float = _statistic(heading="max")
    mean: float = _statistic(heading="mean")
    norm: float = _statistic(heading="norm", least=0)
    nan_count: int = _statistic(heading="NaN", unwritten=0, least=0)
    inf_count: int = _statistic(heading="inf", unwritten=0, least=0)
    zero_count: int = _statistic(heading="zeros", unwritten=0, least=0)
    not_finite: str | None = _statistic(unwritten=None, added=True)
    subnormal_count: int | None = _statistic(
        heading="subnormal", unwritten=None, least=0, added=True
    )


STATISTICS = tuple(
    Statistic(
        one.name,
        {"float": float, "int": int}.get(str(one.type).partition(" ")[0], str),
        **one.metadata,
    )
    for one in fields(Statistics)
)
"""The declarations of `Statistics`, in its order."""

HEADINGS = {one.name: one.heading for one in STATISTICS if one.heading}
"""The numbers that people look at, and the words over their columns."""

GIVES_GRADIENTS = "gives gradients"
"""Argument of a loss of which a script asks for the gradients, rather than have them added to `.grad`."""

GIVEN = "given"
"""Argument of a gradient that a script has put in its place, rather than a backward pass added up."""

BEGAN_ANEW = "began anew"
"""Argument of a gradient's call whose parameter had had one in this step that the script has dropped."""

HOOK_OF = "hook of"
"""Argument of an operator that is a hook on a parameter: which parameter's gradient it takes."""

OF_LAST_FUNCTION = "grad_fn."
"""How the gradients of a call are called that the last function of its graph sends on: that of the log-softmax rather
than of the logits for a cross entropy. Other tools tell those; they follow from the call, and may be no argument's."""

COMPUTED_OUT_OF_SIGHT = "computed_out_of_sight"
"""Argument of what arrives in a step: a model has computed it where no step was open; false where Python has read
what a model computed there, so that it may follow from that."""

ARRIVED_IN = "arrived_in"
"""Argument of what arrives within a call of a module: the path of that module."""


def would_differ(left: str | None, right: str | None) -> bool:
    """Whether digests of other tensors than these would be others: both are there, and of one kind.

    >>> would_differ("crc32:1f", "62ed"), would_differ("crc32:1f", "crc32:20")
    (False, True)
    """
    if left is None or right is None:
        return False
    return left.rpartition(":")[0].partition(":")[0] == right.rpartition(":")[0].partition(":")[0]


@dataclass(slots=True)
class Content:
    """One distinct tensor content; any number of records may point at it.

    Parameters
    ----------
    id
        Number within one rank of one recording.
    dtype, shape, device
        As the framework names them, e.g. "float32", (4, 128), "cpu".
    digest
        Hash over dtype, shape and bytes; equal digests mean bitwise equal tensors. None where it could not be read. One
        that another tool took is `KIND:...`, and tells nothing beside one of another kind, see `would_differ`.
    sketch_loader
        Reads the linear sketch, see `lockstep.core.sketch`; None below `--save sketch` or for dtypes that do not round.
    note
        The text of a `lockstep.core.content_notes.Note`, or "".
    loader
        Reads the whole tensor (bfloat16 and float8 widened to float32, exactly); None where it was not saved.
    """

    id: int
    dtype: str
    shape: tuple[int, ...]
    device: str
    digest: str | None
    statistics: Statistics | None
    sketch_loader: Callable[[], Sketch] | None = field(repr=False, default=None, compare=False)
    note: str = ""
    loader: Callable[[], Array] | None = field(repr=False, default=None, compare=False)

    @property
    def told(self) -> Note:
        """Its note as data."""
        return note_of(self.note)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def sketch(self) -> Sketch | None:
        """The linear sketch, float64 of shape (SKETCH_SIZE,), where one was taken; read anew each time."""
        return None if self.sketch_loader is None else self.sketch_loader()

    def load(self) -> Array:
        """Read the whole tensor.

        Raises
        ------
        LookupError
            If the tensor was not saved whole (`--save tensors`).
        """
        if self.loader is None:
            raise LookupError(f"tensor {self.id} was not saved whole; record with --save tensors")
        return self.loader()

    def opened(self) -> Array | Pieces:
        """The whole tensor, in pieces where it can be read so.

        Raises
        ------
        LookupError
            If the tensor was not saved whole (`--save tensors`).
        """
        pieces = getattr(self.loader, "pieces", None)  # quicker than asking for the protocol
        return self.load() if pieces is None else pieces()


def is_other_checksum_alone(left: Content | None, right: Content | None) -> bool:
    """Return whether two contents have the same numbers, but different checksums of a different tool.

    The numbers do not tell in which order elements stand, and the checksum may be one of a later moment: an operator
    that works in place may change the tensor before a thread of its own has come to it.
    """
    if left is None or right is None or left.statistics is None or right.statistics is None:
        return False
    if left.digest == right.digest or not would_differ(left.digest, right.digest):
        return False
    one, two = left.statistics, right.statistics
    both = (
        (one.minimum, two.minimum),
        (one.maximum, two.maximum),
        (one.mean, two.mean),
        (one.norm, two.norm),
    )
    return (
        (left.digest or "").count(":") > 0
        and None in (left.loader, right.loader)
        and (left.dtype, left.shape, left.note, right.note) == (right.dtype, right.shape, "", "")
        and all(
            first == second or (math.isnan(first) and math.isnan(second)) for first, second in both
        )
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lay in memory, where that was not row after row in memory of its own.

    strides: Elements from one index to the next, per axis.
    offset: Elements from the first of the memory that it shares to its own first; 0 where it shares none.
    shares: Number of that memory among those that inputs of one call share; -1 for its own.
    """

    strides: tuple[int, ...]
    offset: int = 0
    shares: int = -1


@dataclass(frozen=True, slots=True)
class Conditions:
    """The settings around a call: autocast, autograd's mode and others.

    gradients: Whether autograd kept what backward needs.
    autocast: Device types with the dtype that autocast computed in there, e.g. `(("cuda", "bfloat16"),)`.
    """

    gradients: bool = True
    autocast: tuple[tuple[str, str], ...] = ()


NO_GRADIENT, LEAF = 0, 1
"""Edges of a tensor that takes no gradient, and of a leaf that adds up its own."""


@dataclass(slots=True)
class TensorRecord:
    """One tensor seen at a site.

    `role` and `index` say which of the site's tensors it is, `name` how the code calls it ("args.0", "kwargs.mask",
    "weight"); `sequence` orders everything within one rank by time; `occurrence` counts repeats of the same role and
    index at one site (a backward that runs twice). For parameters, `name` is the full parameter name, and `argument`
    says which argument of the call it was; it is "" where `name` says so itself. `source` is that of the call. `layout`
    is None where the tensor lay row after row in memory of its own, or where that was not recorded.
    `edge` is where the tensor's gradient goes in autograd's graph: `NO_GRADIENT`, `LEAF`, or a number that only records
    of one output of one graph node have. So of tensors with equal contents it tells which one an input is. None where
    it was not recorded: recordings of earlier builds, and records other than inputs, outputs and losses.
    """

    rank: str
    step: int
    site: Site
    role: Role
    index: int
    name: str
    sequence: int
    occurrence: int
    content: Content
    argument: str = ""
    source: str = field(default="", compare=False)
    layout: Layout | None = field(default=None, compare=False)
    edge: int | None = field(default=None, compare=False)

    @property
    def dtype(self) -> str:
        """Element type, e.g. "float32"."""
        return self.content.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.content.shape

    @property
    def statistics(self) -> Statistics | None:
        """Statistics, where they could be taken."""
        return self.content.statistics

    @property
    def digest(self) -> str | None:
        """Content hash."""
        return self.content.digest

    def load(self) -> Array:
        """Read the whole tensor; see `Content.load`."""
        return self.content.load()


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a Python call stack, innermost first in a stack.

    `library` tells that the file belongs to an installed package rather than to the user.
    """

    file: str
    line: int
    function: str
    library: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Call:
    """One call of a module, an operator, an optimizer ... in one step of one rank, with all its records.

    `id` grows with time within a rank; `parent` is the id of the module call around it, or -1. `site.phase` is the
    phase in which it was *called*; its records carry their own phase (a forward call has backward records too).
    `arguments` are the non-tensor arguments as JSON values. `conditions` are None where they were not recorded;
    `random_state` is the state of the generator before a call that draws from it, of dtype uint8, where it was saved.
    `sample` are some elements of each tensor of an update, by the names of `lockstep.core.sample`. `body` are the
    operators that a custom autograd function calls, those of its backward in that phase, or a step of an optimizer of a
    script's own, beside its first update.
    """

    id: int
    rank: str
    step: int
    kind: CallKind
    site: Site
    module_class: str
    parent: int
    sequence: int
    stack: tuple[Frame, ...]
    arguments: dict[str, Any]
    recomputed: bool
    records: tuple[TensorRecord, ...]
    conditions: Conditions | None = None
    random_state: Content | None = None
    sample: tuple[TensorRecord, ...] = ()
    body: tuple[Call, ...] = ()

    def with_role(self, *roles: Role) -> tuple[TensorRecord, ...]:
        """The records of these roles, in order."""
        return tuple(record for record in self.records if record.role in roles)

    @property
    def source(self) -> str:
        """`file:line` of the user's code that made the call, of a library's where there is none, or ""."""
        return source_of(self.stack)

    @property
    def library(self) -> str:
        """`file:line` of the library that made the call for the user's code at `source`, or ""."""
        inner = str(self.stack[0]) if self.stack else ""
        return inner if inner != self.source else ""


def source_of(stack: Sequence[Frame]) -> str:
    """`file:line` of the innermost frame of the user's own code, of a library's where there is none, or ""."""
    own = next((frame for frame in stack if not frame.library), None)
    return str(own or stack[0]) if stack else ""
