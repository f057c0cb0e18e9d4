"""Results in 16 bits that one run rounds once and the other twice: a sum of products, then the sum with a bias.

Where the library adds the bias, the whole is rounded once; where a kernel of its own adds it afterwards, the sum of
products `s` is rounded before. Both round to nearest, so both are sound. Rounding `s` moves it by a quarter of a unit
in its last place on average, and takes the result `y` to the neighbour as often as it is moved in such units. With
`u` the unit roundoff, a unit in the last place is at most `2 u |y|`, so

    E d_i**2 <= 2 u |y_i| (u / 2) |s_i|      and      |d| <= u sqrt(|y| |s|)      (Cauchy-Schwarz)

A kernel that truncates leaves as large a distance. Statistics tell the two apart: differences of two roundings to
nearest have either sign as often, and for signs drawn independently (Hoeffding, Probability inequalities for sums of
bounded random variables, JASA 58, 1963, theorem 2)

    |sum d_i| <= t |d|      and      |sum (y1_i + y2_i) d_i| = | |y2|**2 - |y1|**2 | <= t 2 max|y| |d|

Truncation takes half a unit in the last place from each number, `u |y_i| / 2` at least, and `u |y|**2` from the square
of the norm. Where chance may take as much, which is so for a result of less than some hundred elements, nothing is
allowed.
"""

from __future__ import annotations

import math

from lockstep.judge.bounds import bilinear_operands, spread
from lockstep.judge.protocol import Operation, is_gradient
from lockstep.judge.tolerances import BIAS_DEVIATIONS, SINGLE, SKETCHED_ALIKE
from lockstep.measure.measured_pair import Measured


def rounded_twice(operation: Operation, output: Measured) -> float:
    """How far apart a bias that is added to a rounded sum of products may take two results, in the tensor's unit.

    0 where nothing is added, and where the differences lie to one side or it cannot be told whether they do.
    """
    _, addends = bilinear_operands(operation)
    if not addends or is_gradient(output) or output.unit <= SINGLE or not _has_either_sign(output):
        return 0.0
    added = sum(spread(output, item) * item.norm for item in addends)
    return SKETCHED_ALIKE * output.unit * math.sqrt(output.norm * (output.norm + added))


def _has_either_sign(output: Measured) -> bool:
    """Whether statistics show that two results do not differ to one side, as truncation would."""
    left, right = output.pair.reference, output.pair.candidate
    one = left.content.statistics if left is not None else None
    two = right.content.statistics if right is not None else None
    if one is None or two is None or not math.isfinite(output.distance):
        return False
    distance = SKETCHED_ALIKE * output.distance
    chance = 2.0 * BIAS_DEVIATIONS * output.peak * distance
    if not chance < output.unit * output.norm * output.norm:
        return False
    longer = abs(two.norm - one.norm) * (two.norm + one.norm)
    sum_apart = abs(two.mean - one.mean) * output.numel
    return longer <= chance and sum_apart <= BIAS_DEVIATIONS * distance
