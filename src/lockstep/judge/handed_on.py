"""Gradients that are handed on, where nothing is computed: whether one run alone alters them, in 16 bits too.

A hook changes a gradient without a call. Within a distance that rounding to 16 bits may leave, a factor of 1.003 is not
seen. But where one run hands the gradient on bit by bit, there is nothing to round, and the other run should do so too.
What that one does instead is told by the norm. Rounding each element of a result `y` once is off by `d_i`, with
`|d_i| <= u |y_i|`, `u` the unit roundoff, and of either sign as often. So (Hoeffding, Probability inequalities for sums
of bounded random variables, JASA 58, 1963, theorem 2)

    | |y + d|**2 - |y|**2 |  ~  2 |sum y_i d_i|  <=  2 t u sqrt(sum y_i**4)  <=  2 t u max|y| |y|

but once in `exp(t**2 / 2) / 2` times, with `t` `BIAS_DEVIATIONS`. The sum of two equal gradients is rounded once, as it
is in the other run: there the two runs' 16-bit sums are compared in the same way. A gradient of few elements may be
off more. In single precision `KERNEL_ROUNDINGS` are allowed: the noise of 16-bit calls hides a factor there too.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.finding import Kind
from lockstep.core.operators import operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement, Region, is_gradient
from lockstep.judge.tolerances import BIAS_DEVIATIONS, KERNEL_ROUNDINGS, LINEAR_REGIME, SINGLE
from lockstep.measure.measured_pair import Measured


def altered_by_one(
    sources: Sequence[Measured], target: Measured, region: Region, *, noise: float = 0.0
) -> Judgement | None:
    """Judge a gradient that both runs should hand on as it is, or as the sum of two; None where nothing tells.

    sources, target, region: As `lockstep.judge.protocol.Judge.passage` gets them.
    noise: How far all gradients of the step are off, relative: a clipping that one of them sets off changes as much.
    """
    calls = (*region.reference_calls, *region.candidate_calls)
    if not is_gradient(target) or region.unseen or not target.floating:
        return None
    if target.equal or not target.norm > 0 or not all(map(_hands_on, calls)):
        return None
    roundings = KERNEL_ROUNDINGS if target.unit <= SINGLE else 1.0
    chance = 2.0 * BIAS_DEVIATIONS * roundings * target.unit * target.peak / target.norm
    chance += 2.0 * noise
    for source in sources:
        alone = all(one.equal for one in sources if one is not source)
        if alone and _fits(source, target) and source.difference <= LINEAR_REGIME:
            found = _altered(source, target, chance)
            if found is not None:
                return found
    if (
        target.unit > SINGLE
        and len(sources) == 2
        and all(one.equal and _fits(one, target) for one in sources)
    ):
        left, right = target.pair.reference, target.pair.candidate
        return _beyond(chance, _longer(left, right), "as the sum of two equal ones")
    return None


def _altered(source: Measured, target: Measured, chance: float) -> Judgement | None:
    """Judge a gradient that one run hands on bit by bit."""
    before, after = source.pair, target.pair
    ways = (before.reference, after.reference), (before.candidate, after.candidate)
    for (handed_on, other), run in ((ways, "candidate"), (ways[::-1], "reference")):
        if _is_same(*handed_on):
            words = f"by the {run} alone, where the other run hands it on"
            return _beyond(chance, _longer(*other), words)
    return None


def _hands_on(call: Call) -> bool:
    """Whether a call returns the elements that it is given, as far as these data show."""
    given = {record.content.id for record in call.with_role(Role.INPUT)}
    made = {record.content.id for record in call.with_role(Role.OUTPUT)}
    return operator_of(call.site.op).keeps_elements or (len(given) == 1 and made == given)


def _beyond(chance: float, longer: float, words: str) -> Judgement | None:
    if abs(longer) <= chance:
        return None
    factor = (1.0 + longer) ** 0.5 if longer > -1.0 else 0.0
    how = f"its norm is changed by a factor of {factor:.5g}, {words}"
    return Judgement.wrong(Kind.FAULT, f"{how}: roundings of either sign leave {chance / 2.0:.2g}")


def _fits(source: Measured, target: Measured) -> bool:
    return source.numel == target.numel and source.unit == target.unit and not source.shape_differs


def _is_same(one: TensorRecord | None, two: TensorRecord | None) -> bool:
    return one is not None and two is not None and None is not one.digest == two.digest


def _longer(one: TensorRecord | None, two: TensorRecord | None) -> float:
    """By how much the square of the second one's norm is more than that of the first, relative; 0 where not known."""
    if one is None or two is None or one.statistics is None or two.statistics is None:
        return 0.0
    if one.statistics.minimum == one.statistics.maximum or not one.statistics.norm > 0:
        return 0.0  # one number many times is rounded to one side
    return (two.statistics.norm / one.statistics.norm) ** 2 - 1.0
