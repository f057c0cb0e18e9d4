"""The contents of a comparison's page, as plain data without any recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.records import Statistics
from lockstep.locate.setups.explains_origin import Answer

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of texts, each distinct text once.

    codes: Per row the number of its text in `names`.
    names: The distinct texts, in the order in which they are met.
    """

    codes: Integers
    names: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> TextColumn:
        """The column of these texts.

        >>> TextColumn.of(["a", "b", "a"]).codes.tolist()
        [0, 1, 0]
        """
        numbers: dict[str, int] = {}
        codes = [numbers.setdefault(text, len(numbers)) for text in texts]
        return cls(np.array(codes, dtype=np.int32), tuple(numbers))

    def __len__(self) -> int:
        """How many rows."""
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        """The text of a row."""
        return self.names[int(self.codes[row])]

    def is_one_of(self, *texts: str) -> npt.NDArray[np.bool_]:
        """Per row, whether its text is one of these.

        >>> TextColumn.of(["a", "b", "a"]).is_one_of("a").tolist()
        [True, False, True]
        """
        return np.isin(self.codes, [code for code, one in enumerate(self.names) if one in texts])


@dataclass(frozen=True, slots=True)
class Pairs:
    """All pairs as columns of one length, in execution order: by step, rank and time.

    Numbers are NaN where they are not known. The formulae of the metrics stand at `lockstep.measure.metrics`, those of
    the statistics at `lockstep.core.records.Statistics`.

    kind: One of `lockstep.report.comparison.kinds.KINDS`, by its name.
    floor: What rounding at this site alone may make of the pair, relative to its norm like `difference`; see
        `lockstep.core.finding.Finding`.
    margin: `difference / floor`; 0 for equal tensors, infinite for a difference where nothing rounds.
    reference_shape, candidate_shape, reference_dtype, candidate_dtype: As recorded, "" for a missing side; `shape` and
        `dtype` are those of the side that is there.
    producer: Row of the pair whose tensor enters here: of equal content and the nearest before; -1 where there is none.
    """

    step: Integers
    index: Integers
    call: Integers
    rank: TextColumn
    phase: TextColumn
    module: TextColumn
    operator: TextColumn
    role: TextColumn
    tensor: TextColumn
    dtype: TextColumn
    shape: TextColumn
    reference_dtype: TextColumn
    candidate_dtype: TextColumn
    reference_shape: TextColumn
    candidate_shape: TextColumn
    kind: TextColumn
    outcome: TextColumn
    evidence: TextColumn
    judged_by: TextColumn
    reason: TextColumn
    source: TextColumn
    floor: Floats
    margin: Floats
    difference: Floats
    tolerance: Floats
    rel_l2: Floats
    cosine: Floats
    max_abs: Floats
    max_ulp: Floats
    reference_norm: Floats
    reference_mean: Floats
    reference_minimum: Floats
    reference_maximum: Floats
    candidate_norm: Floats
    candidate_mean: Floats
    candidate_minimum: Floats
    candidate_maximum: Floats
    producer: Integers

    def __len__(self) -> int:
        """How many pairs."""
        return len(self.step)


@dataclass(frozen=True, slots=True)
class Advice:
    """A next step: its purpose, the command on one line that can be pasted, and the reason."""

    title: str
    command: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One of the two runs; `command` is "" where it was not kept."""

    name: str
    path: str
    version: str
    device: str
    steps: tuple[int, ...]
    command: str


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a call stack; `is_library` tells that it belongs to an installed package."""

    file: str
    line: int
    function: str
    is_library: bool


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of a source file as it was when the run was recorded, the first of which has the number `first`."""

    first: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """One module of the tree: `parent` is the index of the one around it, -1 for the model itself.

    `worst` gives per phase the row of the pair furthest beyond its floor, of the module and all inside it.
    """

    path: str
    module_class: str
    parent: int
    worst: Mapping[str, int]


YES, NO, UNKNOWN = (one.value for one in Answer)


@dataclass(frozen=True, slots=True)
class SetupLine:
    """One difference in set-up; whether it `explains` the origin: yes, no or unknown, and `why` that is said."""

    words: str
    explains: str
    why: str


@dataclass(frozen=True, slots=True)
class SideNumbers:
    """Numbers about one tensor, and how it is laid out."""

    statistics: Statistics
    shape: tuple[int, ...]
    dtype: str
    layout: str

    def of(self, name: str) -> Any:
        """One of them, or of the statistics."""
        return getattr(self if name in self.__slots__ else self.statistics, name)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many elements of each tensor lie between common edges; the last bin holds its right edge too.

    `below`, `above` count, for reference and candidate, finite elements outside of all edges; `not_finite` the others.
    """

    edges: Floats
    reference: npt.NDArray[np.int64]
    candidate: npt.NDArray[np.int64]
    below: tuple[int, int] = (0, 0)
    above: tuple[int, int] = (0, 0)
    not_finite: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of the error against those of rounding to the same dtype, both in ulp; on the diagonal it rounds."""

    theoretical: Floats
    error: Floats


@dataclass(frozen=True, slots=True)
class UlpCounts:
    """Elements by how many ulp they are apart: bin 0 is none, bin k is from 2**(k-1) to below 2**k."""

    counts: npt.NDArray[np.int64]
    not_comparable: int = 0


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The error of largest magnitude in each cell, signed (candidate - reference); NaN where that is not finite.

    `row_label`, `column_label` say what the axes are of, `row_extent`, `column_extent` how many indices they cover.
    """

    values: npt.NDArray[np.float32]
    row_label: str
    column_label: str
    row_extent: int
    column_extent: int


@dataclass(frozen=True, slots=True)
class WorstElement:
    """One element: its index in the reference, both values as text and numbers, how far apart."""

    index: tuple[int, ...]
    reference: complex | float | int
    candidate: complex | float | int
    difference: float
    ulp: float


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """Share of the squared error that one simple thing explains, from 0 to 1; NaN where it was not to be had.

    `sentence` is "" where none of them stands out.
    """

    constant: float
    rows: float
    columns: float
    factor: float
    largest: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Detail:
    """The blocks of one pair's page; pictures are None if `without` says why."""

    row: int
    reference: SideNumbers | None
    candidate: SideNumbers | None
    stack: tuple[Frame, ...]
    histogram: Histogram | None = None
    quantiles: Quantiles | None = None
    ulp: UlpCounts | None = None
    heat_map: HeatMap | None = None
    worst: tuple[WorstElement, ...] = ()
    pattern: ErrorPattern | None = None
    without: str = ""


@dataclass(frozen=True, slots=True)
class ComparisonData:
    """Everything that a page shows of a comparison.

    answer: What `lockstep compare --json` says: the same words and numbers.
    headline, reasons: The terminal's first line without its first word, and the lines below it.
    first_clause, later_clauses: The same line in two parts: what was compared, and what else is to be said of it.
    advice: What to do next, best first.
    runs: Reference and candidate.
    pairs, origins: All pairs, and the rows of those that are origins, first one first.
    left_out: How many equal pairs are not in `pairs`, as there were too many.
    details: By row: of all origins, what leads up to the first, and of the worst pairs.
    sources: Lines around `file:line` as they were when recorded; what was not kept is not there.
    modules, set_up, coverage: The module tree; differences in set-up; what was not compared, in sentences.
    """

    answer: dict[str, Any]
    headline: str
    first_clause: str
    later_clauses: str
    reasons: tuple[str, ...]
    advice: tuple[Advice, ...]
    runs: tuple[Run, Run]
    pairs: Pairs
    origins: tuple[int, ...]
    left_out: int
    details: dict[int, Detail]
    sources: dict[str, Excerpt]
    modules: tuple[ModuleNode, ...]
    set_up: tuple[SetupLine, ...]
    coverage: tuple[str, ...]
