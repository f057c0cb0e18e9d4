"""Two aligned tensors with the numbers for a judgement: their sizes and their distance, in the tensors' own unit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lockstep.core.content_notes import DIFFER_BETWEEN_RANKS, NoteKind
from lockstep.core.dims import dims_of
from lockstep.core.dtypes import is_floating, smallest_positive, unit_roundoff
from lockstep.core.finding import Evidence, Metrics, Pair
from lockstep.core.records import (
    Array,
    Content,
    Sketch,
    Statistics,
    TensorRecord,
    is_other_checksum_alone,
    would_differ,
)
from lockstep.core.sketch import distances
from lockstep.measure.axis_order import measure_layouts
from lockstep.measure.metrics import (
    IDENTICAL,
    are_equal,
    are_placed_apart,
    measure,
    measure_sketches,
    norm_at_most,
    symmetric_difference,
)

_RESOLUTION = 2.0**-44
"""Share of a tensor's norm below which its measured distance means nothing: distances come from
double-precision sums (unit roundoff 2**-53) over up to 1e9 elements. Only tensors with an attention
mask's -3e38 among small numbers feel it."""

_FEW_ELEMENTS = 8.0
"""Distance in units of `unit * peak` that a sketch may lose: where just a few elements differ by an
ulp or two, two of them may share a lane (see `lockstep.core.sketch`) and cancel."""

_UNSEEN_ROUNDINGS = 256.0
"""Roundings that statistics may hide: where only norms are known, tensors of equal norm may still
be apart by a network's usual noise, some hundred unit roundoffs (measured on a 12-layer
transformer)."""


@dataclass(slots=True)
class Measured:
    """A pair of tensors, measured.

    Parameters
    ----------
    difference
        Symmetric relative Euclidean distance; `inf` where one side has NaN, Inf or a shape that the
        other lacks; NaN where it is not known.
    norm, distance
        Larger Euclidean norm and Euclidean distance of the two, in the tensors' unit.
    peak
        Largest magnitude among finite elements on either side.
    unit
        Unit roundoff of the coarser of the two dtypes.
    """

    pair: Pair
    metrics: Metrics
    equal: bool
    difference: float
    norm: float
    distance: float
    peak: float
    numel: int
    unit: float
    floating: bool

    def at(self, pair: Pair) -> Measured:
        """Return the same numbers for a second pair of records with the same contents."""
        return Measured(
            pair,
            self.metrics,
            self.equal,
            self.difference,
            self.norm,
            self.distance,
            self.peak,
            self.numel,
            self.unit,
            self.floating,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.pair.present.shape

    @property
    def shape_differs(self) -> bool:
        """Return whether the two have different extents, and not just a different layout."""
        left, right = self.pair.reference, self.pair.candidate
        if left is None or right is None or self.pair.layout is not None:
            return False
        return left.shape != right.shape and not is_placed_otherwise(left.content, right.content)

    @property
    def least_rounding(self) -> float:
        """Half of the spacing of subnormal numbers of the coarser dtype, in the tensor's unit: a rounding is off by as
        much, however small the number is; 0 for whole numbers."""
        records = (self.pair.reference, self.pair.candidate)
        spacings = (smallest_positive(one.dtype) for one in records if one is not None)
        return max((0.5 * one for one in spacings if one), default=0.0)

    @property
    def means_nothing(self) -> bool:
        """Whether it is memory that nobody has written to, which nothing follows from."""
        left, right = self.pair.reference, self.pair.candidate
        notes = (record.content.told for record in (left, right) if record is not None)
        return any(note.kind is NoteKind.UNWRITTEN for note in notes)

    @property
    def known(self) -> bool:
        """Whether it can be said if the two agree."""
        return self.equal or not math.isnan(self.difference)

    @property
    def possible_distance(self) -> float:
        """How far apart the two may be, as far as the numbers can show: an input's difference."""
        if self.equal:
            return 0.0
        if not self.known:
            return math.inf
        if self.metrics.evidence is Evidence.STATISTICS:
            return 8.0 * self.distance + _UNSEEN_ROUNDINGS * self.unit * self.norm
        lost = (
            _FEW_ELEMENTS * self.unit * self.peak
            if self.metrics.evidence is Evidence.SKETCH
            else 0.0
        )
        return self.distance + _RESOLUTION * self.norm + lost

    @property
    def relative(self) -> float:
        """`possible_distance` over the norm, 0 for equal tensors."""
        far = self.possible_distance
        if far == 0.0:
            return 0.0
        return far / self.norm if self.norm > 0 else math.inf


def is_other_mask(item: Measured) -> bool:
    """Whether two masks leave out the same elements by other numbers: -inf in one run, -1e9 in the other."""
    left, right = item.pair.reference, item.pair.candidate
    if left is None or right is None or not (item.equal and item.floating):
        return False
    return would_differ(left.digest, right.digest) and item.peak >= -LEAVES_OUT


def alone(record: TensorRecord) -> Measured:
    """A tensor beside itself: its sizes, in the form that bounds are made from."""
    content = record.content
    floating = is_floating(content.dtype)
    return Measured(
        pair=Pair(record, record),
        metrics=IDENTICAL,
        equal=True,
        difference=0.0,
        norm=_norm(content),
        distance=0.0,
        peak=_peak(content),
        numel=content.numel,
        unit=unit_roundoff(content.dtype),
        floating=floating,
    )


def pooled(tensors: Iterable[Measured]) -> Measured | None:
    """Many tensors as one; None where all are equal or nothing is known of them."""
    known = [item for item in tensors if item.known and math.isfinite(item.distance)]
    if not known or all(item.equal for item in known):
        return None
    norm = math.sqrt(sum(item.norm * item.norm for item in known))
    distance = math.sqrt(sum(item.distance * item.distance for item in known))
    relative = distance / norm if norm > 0 else 0.0
    return replace(known[0], equal=False, norm=norm, distance=distance, difference=relative)


def sketched_distances(pairs: Iterable[Pair], *, read_tensors: bool) -> Iterator[float | None]:
    """Distances of the sketches of many aligned pairs, at once; None where something else decides."""
    pairs = iter(pairs)
    while some := list(itertools.islice(pairs, _AT_ONCE)):
        chosen = [_by_sketches(pair, read_tensors) for pair in some]
        lefts, rights = ([one[side] for one in chosen if one is not None] for side in (0, 1))
        found = iter(distances(lefts, rights))
        yield from (None if one is None else next(found) for one in chosen)


def is_read_whole(pair: Pair, *, read_tensors: bool) -> bool:
    """Whether measuring an aligned pair, as it lies in memory, takes whole tensors of equal size."""
    left, right = pair.contents
    if not read_tensors or left.loader is None or right.loader is None:
        return False
    if pair.layout is not None or left.shape != right.shape:
        return False
    return left.digest is None or left.digest != right.digest


_AT_ONCE = 1024
"""Pairs of sketches in memory at once, 4 MB."""


def _by_sketches(pair: Pair, read_tensors: bool) -> tuple[Sketch, Sketch] | None:
    """Both sketches, where they are the best evidence of how far apart a pair is."""
    left, right = pair.contents
    if left.sketch_loader is None or right.sketch_loader is None or pair.layout is not None:
        return None
    if left.shape != right.shape or left.statistics is None or right.statistics is None:
        return None
    if left.digest is not None and left.digest == right.digest:
        return None
    if read_tensors and left.loader is not None and right.loader is not None:
        return None
    return left.sketch_loader(), right.sketch_loader()


def measure_pair(
    pair: Pair,
    *,
    read_tensors: bool = False,
    sketched: float | None = None,
    whole: Metrics | None = None,
    tells_widths: bool = True,
) -> Measured:
    """Measure two aligned records; both must be there.

    `sketched` is the answer of `sketched_distances` for this pair, `whole` the measurement where `is_read_whole`.
    Without `tells_widths`, equal whole numbers are equal in whatever width they are kept.
    """
    left, right = pair.contents
    if pair.layout is not None:  # which gives every place another number
        left, right = _without_places(left), _without_places(right)
    floating = is_floating(left.dtype) or is_floating(right.dtype)
    equal = left.shape == right.shape and are_equal(left, right)
    if not equal and pair.layout is None and floating:
        equal = is_same_mask(left, right, read_tensors=read_tensors)
    if equal:
        metrics, difference = IDENTICAL, 0.0
    elif whole is not None:
        metrics, difference = whole, _difference(left, right, whole)
    elif pair.layout is not None:
        metrics = measure_layouts(left, right, pair.layout, read_tensors=read_tensors)
        difference = _difference(left, right, metrics)
        if metrics.evidence is Evidence.STATISTICS and not floating and metrics.rel_l2 == 0:
            difference = math.nan  # equal statistics are not equal numbers
    elif left.shape != right.shape:
        metrics = Metrics(Evidence.NONE)
        difference = math.nan if is_placed_otherwise(left, right) else math.inf
    elif sketched is not None:
        metrics = measure_sketches(left, right, sketched)
        difference = _difference(left, right, metrics)
    else:
        with np.errstate(
            invalid="ignore", over="ignore"
        ):  # sketches of attention masks may overflow
            metrics = measure(left, right, read_tensors=read_tensors)
        difference = _difference(left, right, metrics)
    norm = max(_norm(left), _norm(right))
    alike = floating or left.dtype == right.dtype
    alike = alike or not (tells_widths or "bool" in (left.dtype, right.dtype))
    if alike and difference == 0.0 and metrics.evidence in (Evidence.DIGEST, Evidence.TENSORS):
        equal = True  # the same numbers, though maybe in another dtype
    elif floating and _sketched_alike(left, right, metrics):
        equal = True
    return Measured(
        pair=pair,
        metrics=metrics,
        equal=equal,
        difference=difference,
        norm=norm,
        distance=0.0 if difference == 0.0 else difference * norm if norm > 0 else difference,
        peak=max(_peak(left), _peak(right)),
        numel=max(left.numel, right.numel),
        unit=max(unit_roundoff(left.dtype), unit_roundoff(right.dtype)),
        floating=floating,
    )


def _sketched_alike(left: Content, right: Content, metrics: Metrics) -> bool:
    """Whether sketches and statistics tell the same numbers, as where 0 faces -0.

    Where something is not finite its places must be known to be the same, and both must round.
    """
    one, two = left.statistics, right.statistics
    if metrics.evidence is not Evidence.SKETCH or metrics.rel_l2 != 0 or one is None or two is None:
        return False
    if one.nan_count or one.inf_count or two.nan_count or two.inf_count:
        return one.not_finite is not None and one.not_finite == two.not_finite
    ends = (one.minimum, one.maximum, one.zero_count), (two.minimum, two.maximum, two.zero_count)
    return ends[0] == ends[1]


def _without_places(content: Content) -> Content:
    if content.statistics is None or content.statistics.not_finite is None:
        return content
    return replace(content, statistics=replace(content.statistics, not_finite=None))


def is_placed_otherwise(left: Content, right: Content) -> bool:
    """Return whether two contents of one shape are spread over ranks in one run alone, or in different ways.

    So are two of which one was put together of ranks' parts, and then has another shape: the words on its axes are
    wrong. That copies differ is no matter of words.
    """
    if left.shape != right.shape and (left.told.dims or right.told.dims):
        return not any(
            one.told.kind in DIFFER_BETWEEN_RANKS and one.shape[1:] == other.shape
            for one, other in ((left, right), (right, left))
        )
    placed = NoteKind.PART in (left.told.kind, right.told.kind)
    return placed and _whole_shape(left) == _whole_shape(right)


def dims_that_do_not_fit(left: Content, right: Content) -> str:
    """Which axis tells that the words on a tensor's axes are wrong; "" where it was not put together of parts."""
    for one, other in ((left, right), (right, left)):
        dims = one.told.dims
        if not dims or one.shape == other.shape:
            continue
        where = f"its shape is {one.shape} {one.told}, and {other.shape} in the other run"
        axes = dims_of(dims).axes or ()
        if len(one.shape) == len(other.shape) == len(axes):
            unlike = (
                axis
                for axis, *both in zip(axes, one.shape, other.shape, strict=True)
                if both[0] != both[1]
            )
            where = f"along {next(unlike).name} {where}"
        return f"{where}; say what its axes are with --dims"
    return ""


def _whole_shape(content: Content) -> tuple[int, ...]:
    whole = content.told.whole_shape
    return content.shape if whole is None else whole


def _difference(left: Content, right: Content, metrics: Metrics) -> float:
    if metrics.evidence is Evidence.NONE:
        return math.nan
    if metrics.evidence is Evidence.DIGEST:
        return 0.0
    if is_floating(left.dtype) and is_floating(right.dtype):
        return symmetric_difference(left, right, metrics)
    if metrics.evidence is Evidence.TENSORS:
        return symmetric_difference(left, right, metrics)
    apart = left.dtype == right.dtype and would_differ(left.digest, right.digest)
    apart = apart and not is_other_checksum_alone(left, right)
    return math.inf if apart or metrics.rel_l2 > 0 or metrics.max_abs > 0 else math.nan


def _norm(content: Content) -> float:
    if content.statistics is None:
        return 0.0
    norm = norm_at_most(content, content.statistics)
    return norm if math.isfinite(norm) else 0.0


def _peak(content: Content) -> float:
    if content.statistics is None:
        return 0.0
    low, high = content.statistics.minimum, content.statistics.maximum
    return max((abs(value) for value in (low, high) if math.isfinite(value)), default=0.0)


LEAVES_OUT = -1e4
"""What a mask adds to a score to leave it out is this or below: -1e4 and -65504 in fp16, -1e9, -3.4e38, -inf."""

_SAME = 1e-6
"""Relative difference of a mean up to which all that is not 0 is one number."""

_SAME_SKETCH = 1e-5
"""Relative difference of sketches up to which they are one: two elements of a thousand million left out are more, and
sums in double precision of numbers that are all alike are off by less than a tenth of it."""


def is_same_mask(left: Content, right: Content, *, read_tensors: bool) -> bool:
    """Whether two tensors leave out the same elements, each in its own way.

    Of truth values, either may say what is kept. Where neither whole tensors nor sketches tell, the same number of
    elements is taken for the same ones: what is computed by means of another mask shows.
    """
    if left.shape != right.shape or left.dtype == right.dtype == "bool":
        return False
    one, two = _left_out(left), _left_out(right)
    if one is None or two is None or one.isdisjoint(two) or _infinities_apart(left, right):
        return False
    if not read_tensors or left.loader is None or right.loader is None:
        return _sketches_allow(left, right)
    first, second = _positions(left.load()), _positions(right.load())
    either = "bool" in (left.dtype, right.dtype)
    return bool((first == second).all()) or (either and bool((first != second).all()))


def _infinities_apart(left: Content, right: Content) -> bool:
    """Whether both leave out by an infinity, and at other places."""
    one, two = left.statistics, right.statistics
    return one is not None and two is not None and are_placed_apart(one, two)


def _sketches_allow(left: Content, right: Content) -> bool:
    """Whether two masks may leave out the same elements: divided by the numbers that do, their sketches are one.

    A sketch is linear (`lockstep.core.sketch`), so that of a mask is its number times that of what it leaves out.
    Truth values have none, and one of -inf is empty.
    """
    first, second = _sketch_of_left_out(left), _sketch_of_left_out(right)
    if first is None or second is None:
        return True
    return float(np.linalg.norm(first - second)) <= _SAME_SKETCH * float(np.linalg.norm(first))


def _sketch_of_left_out(content: Content) -> Array | None:
    sketch, statistics = content.sketch, content.statistics
    if sketch is None or statistics is None or statistics.inf_count or not statistics.minimum:
        return None
    return np.asarray(sketch) / statistics.minimum


def _left_out(content: Content) -> frozenset[int] | None:
    """How many elements a mask may leave out; None for what is no mask."""
    statistics = content.statistics
    if statistics is None or statistics.nan_count or not content.numel:
        return None
    if content.dtype == "bool":
        return frozenset({statistics.zero_count, content.numel - statistics.zero_count})
    if not _adds_nothing_else(statistics, content.numel):
        return None
    return frozenset({content.numel - statistics.zero_count})


def _adds_nothing_else(statistics: Statistics, count: int) -> bool:
    """Whether all elements are 0, -inf or one number that leaves out."""
    finite = count - statistics.inf_count
    left_out = finite - statistics.zero_count
    if not finite or not (left_out or statistics.inf_count):
        return False
    if statistics.maximum > 0 or (statistics.inf_count and left_out):
        return False
    if not left_out:
        return statistics.minimum == statistics.maximum == 0
    total = statistics.mean * finite
    lowest = statistics.minimum * left_out
    return statistics.minimum <= LEAVES_OUT and math.isclose(total, lowest, rel_tol=_SAME)


def _positions(values: Array) -> Array:
    """Where a mask leaves out; for truth values, where it is false."""
    return ~values if values.dtype == np.bool_ else values <= LEAVES_OUT
