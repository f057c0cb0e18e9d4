"""The linear sketch: its estimator, its variance, and its plan of signs, lanes and rows.

A sketch is `S x` for a fixed matrix `S` with `SKETCH_SIZE` rows, so the sketch of a difference is the difference of
the sketches, and `|S d|` estimates the Euclidean distance of two tensors that nobody kept. Tensors of at most
`SKETCH_SIZE` elements are their own sketch: exact. For larger ones `S` is built in two stages.

1. **Lanes**, one pass at memory speed. Element `i` (row-major order) of a block gets the sign
   `table[i + offset(block)] * sign(block)` and is added to lane `(i + shift(block)) % row`: a CountSketch (Charikar,
   Chen, Farach-Colton, ICALP 2002; as a distance estimator: Thorup and Zhang, SODA 2004) whose buckets are cheap to
   address. Offset, sign and shift are drawn anew for every block of some 260 000 elements, so neither constant nor
   periodic differences line up between blocks. `row` is a prime that does not divide the tensor's element count (see
   `plan_of`), so no channel, head or other stride that comes from the shape stays in one lane.
2. **Dense mixing** of the lanes into `SKETCH_SIZE` numbers. Lane `(p, r, c)` of part `p` adds
   `H[j, r] G[p, j, q, c] / 16` to number `(j, q)`, with `H` the 32 x 32 Hadamard matrix and `G` random signs: a
   Johnson-Lindenstrauss map with +-1 entries (Achlioptas, JCSS 2003), most of whose work a Hadamard factor saves (the
   idea of Ailon and Chazelle, SIAM J. Comput. 2009). Every lane reaches every number, so two lanes cannot cancel:
   their columns are orthogonal or have the cosine of random signs, of standard deviation 1/16.

**Law.** Over the random signs `E |S d|^2 = |d|^2` for every `d`. For lanes that meet at random
`Var |S d|^2 <= 2 (1 / SKETCH_SIZE + 1 / row) (|d|^4 - sum d_i^4)`: any `d` that is spread over a few elements or more
has a relative standard deviation of the estimated distance of `sqrt(1 / (2 SKETCH_SIZE) + 1 / (2 row))` = 4.6 %, a
single element has none. The square behaves like a chi-squared variable of 256 degrees of freedom, which leaves 20 % in
distance with probability 7e-6. Measured over 25 classes of difference, 2000 draws each, at 300 to 100 000 elements:
99.9 % of all 250 000 estimates lie within 16 %; the 12 beyond 20 % are of the kind that follows.

**Where it is weaker**, known and accepted: a difference of two to eight elements in a tensor of more than `row`
elements, of which two share a lane and cancel or add up (probability 1/4127 per pair, 1/16 493 from 524 288 elements
and 1/66 047 from 8 388 608 on); and a stride that is a multiple of `row`, which no shape gives, in a tensor of a few
blocks. Any fixed linear map has differences that it does not see; these are none that a training makes often.

Non-finite elements count as zero, each tensor's own: the law holds for positions that are finite on both sides, the
others are counted in the statistics. The parts of a complex number count as two elements. Sketches of tensors with
different element counts have different plans and cannot be compared. A sketch is kept in double precision: rounded to
single it could not show less than 3e-8 of the norm, which is where equal computations in single precision differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

SKETCH_SIZE = 256
"""How many numbers a sketch has."""
_SEED = 0x10C4_57E9
ORDER, COLUMNS = 32, 129
"""Lanes of one part, as the rows and columns that mixing sees."""

_PER_ROW = SKETCH_SIZE // ORDER
_LANES = ORDER * COLUMNS
_BLOCK_LIMIT = 64 * _LANES
_TABLE = 4 * _BLOCK_LIMIT

_ROWS = (
    # least element count, parts, primes just below parts * _LANES
    (1 << 23, 16, (66_047, 66_041, 66_037)),
    (1 << 19, 4, (16_493, 16_487, 16_481)),
    (0, 1, (4_127, 4_111, 4_099)),
)
"""More lanes where the tensor is large enough that mixing them stays within a few percent of the pass."""

Doubles = npt.NDArray[np.float64]
Signs = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Plan:
    """How the elements of tensors of one size are laid out.

    row: Number of lanes, and elements per row; a prime that does not divide the element count.
    parts: How many groups of 32 x 129 lanes are mixed.
    """

    row: int
    parts: int

    @property
    def block(self) -> int:
        """Elements of one block: an even number of rows, small enough for a processor's caches."""
        return 64 // self.parts * self.row


@lru_cache(maxsize=4096)
def plan_of(count: int) -> Plan:
    """Plan for tensors of `count` elements; the two parts of a complex number count as two.

    The smallest product of three primes in a row of the table is 7e10, so one of them is always left.
    """
    parts, primes = next((parts, primes) for least, parts, primes in _ROWS if count >= least)
    return Plan(next(prime for prime in primes if count % prime or not count), parts)


@lru_cache(maxsize=1)
def sign_table() -> Signs:
    """Signs (+1 or -1), int8, long enough that any block offset fits."""
    return _drawn_signs(_SEED, (_TABLE,))


def _drawn_signs(seed: int, shape: tuple[int, ...]) -> Signs:
    drawn = np.random.Generator(np.random.PCG64(seed)).integers(0, 2, shape, dtype=np.int8)
    signs: Signs = drawn * np.int8(2) - np.int8(1)
    return signs


@lru_cache(maxsize=4096)
def block_plan(block: int) -> tuple[int, float, int]:
    """Offset into the sign table, sign, and lane shift (to be taken modulo the row) of one block of elements.

    The first block is not shifted, so that a tensor of fewer elements than lanes fills the first ones.
    """
    first, second = _mixed(2 * block), _mixed(2 * block + 1) if block else 0
    offset = (first >> 1) % (_TABLE - _BLOCK_LIMIT + 1)
    return offset, 1.0 if first & 1 else -1.0, second


def _mixed(number: int) -> int:
    """64 bits that look random: one step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014)."""
    mixed = (number * 0x9E37_79B9_7F4A_7C15 + _SEED) & 0xFFFF_FFFF_FFFF_FFFF
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58_476D_1CE4_E5B9) & 0xFFFF_FFFF_FFFF_FFFF
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D0_49BB_1331_11EB) & 0xFFFF_FFFF_FFFF_FFFF
    return mixed ^ (mixed >> 31)


class Lanes:
    """Lane sums of one tensor as its blocks go by.

    plan: `plan_of` the tensor's element count.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sums = np.zeros(plan.parts * _LANES)
        self._end = 0

    def add(self, block: int, row: npt.NDArray[np.floating]) -> None:
        """Add elements of one block, of shape (<= row,), that `sign_table` was applied to; rows summed or not."""
        _, sign, shift = block_plan(block)
        row = row if sign > 0 else -row
        start = shift % self._plan.row
        end = min(self._plan.row, start + row.size)
        self._end = max(self._end, end)
        self._sums[start:end] += row[: end - start]
        wrapped = row[end - start :]
        if wrapped.size:
            self._sums[: wrapped.size] += wrapped

    def sketch(self) -> Doubles:
        """Mix the lanes into float64 numbers of shape (SKETCH_SIZE,)."""
        parts, used = self._plan.parts, min(ORDER, -(-self._end // COLUMNS))
        hadamard, signs = _hadamard(), mixing_signs(parts).astype(np.float64)
        # Small products, so that no linear algebra library starts threads inside a training.
        mixed = hadamard[:, :used] @ self._sums.reshape(parts, ORDER, COLUMNS)[:, :used]
        result: Doubles = (signs @ mixed[..., None]).sum(axis=0).ravel()
        return result


@lru_cache(maxsize=1)
def _hadamard() -> Doubles:
    """`H / 16` of shape (32, 32) by Sylvester's construction."""
    hadamard: Doubles = np.ones((1, 1))
    while len(hadamard) < ORDER:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    return hadamard / math.sqrt(SKETCH_SIZE)


@lru_cache(maxsize=3)
def mixing_signs(parts: int) -> Signs:
    """`G`, int8 of shape (parts, 32, 8, 129)."""
    return _drawn_signs(_SEED + parts, (parts, ORDER, _PER_ROW, COLUMNS))


def exact_sketch(values: npt.NDArray[np.floating]) -> Doubles:
    """Sketch of at most SKETCH_SIZE finite elements: themselves, then zeros."""
    sketch = np.zeros(SKETCH_SIZE)
    sketch[: values.size] = values
    return sketch


def sketch_of(values: npt.ArrayLike) -> Doubles:
    """Sketch an array in double precision: the reference that device kernels are tested against.

    Parameters
    ----------
    values
        Real or complex array of any shape and layout, taken in row-major order. Non-finite elements count as zero.

    Returns
    -------
    numpy.ndarray
        float64 of shape (SKETCH_SIZE,).

    Examples
    --------
    >>> far = distance(sketch_of(np.arange(1000.0)), sketch_of(np.arange(1000.0)[::-1]))
    >>> bool(abs(far / 18257.4 - 1) < 0.2)
    True
    """
    flat = np.asarray(values).ravel()
    flat = flat.astype(np.complex128).view(np.float64) if flat.dtype.kind == "c" else flat
    flat = np.nan_to_num(flat.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    if flat.size <= SKETCH_SIZE:
        return exact_sketch(flat)
    plan = plan_of(flat.size)
    table, lanes = sign_table(), Lanes(plan)
    for block, start in enumerate(range(0, flat.size, plan.block)):
        part = flat[start : start + plan.block]
        offset = block_plan(block)[0]
        signed: Doubles = part * table[offset : offset + part.size]
        for first in range(0, signed.size, plan.row):
            lanes.add(block, signed[first : first + plan.row])
    return lanes.sketch()


def distance(left: Doubles, right: Doubles) -> float:
    """Estimated Euclidean distance of two tensors from their sketches, in the tensors' unit."""
    return float(np.linalg.norm(left - right))


def distances(left: Sequence[Doubles], right: Sequence[Doubles]) -> list[float]:
    """`distance` of many pairs at once, to the last bit; overflow gives infinity or NaN without a warning."""
    if not left:
        return []
    with np.errstate(all="ignore"):
        differences = np.stack(left) - np.stack(right)
        # One dot product each: sums over a whole matrix would add in another order.
        squares = np.array([row.dot(row) for row in differences])
        roots: list[float] = np.sqrt(squares).tolist()
    return roots
