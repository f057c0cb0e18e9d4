"""Whether the last function of a call's graph is the same in two dumps, whose tools note the gradient that it sends.

`linear` may end in `addmm`, which sends a bias's gradient first, or in a conversion, which sends on what it got.
"""

from __future__ import annotations

from lockstep.align.step import Aligned
from lockstep.core.finding import Pair
from lockstep.core.records import OF_LAST_FUNCTION, Call, Content
from lockstep.core.site import Role

OTHER_FUNCTION = "the graph of this call ends in a different function in the two runs"
"""Why such a gradient is not judged."""


def is_of_other_function(item: Aligned, pair: Pair) -> bool:
    """Whether a gradient is one that two different functions sent on, so that nothing follows from how it differs.

    Their gradients have different extents, or in one run a conversion comes last: it sends on what arrived,
    in a dtype of its own.
    """
    left, right = pair.reference, pair.candidate
    if left is None or right is None or not left.name.startswith(OF_LAST_FUNCTION):
        return False
    read = left.content.loader is not None and right.content.loader is not None
    if left.content.numel != right.content.numel or (left.shape != right.shape and not read):
        return True
    if left.dtype == right.dtype:
        return False
    handed_on = _arrived(item.reference, left.content), _arrived(item.candidate, right.content)
    return handed_on[0] != handed_on[1]


def _arrived(call: Call, gradient: Content) -> bool:
    """Whether a gradient is one that arrived at its call, by its extremes: a conversion sends it on."""
    one = gradient.statistics
    if one is None or not one.maximum:
        return False
    arrived = (record.content for record in call.with_role(Role.GRAD_OUTPUT))
    return any(
        other.numel == gradient.numel
        and other.statistics is not None
        and (other.statistics.minimum, other.statistics.maximum) == (one.minimum, one.maximum)
        for other in arrived
    )
