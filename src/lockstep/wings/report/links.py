"""Which pair made the tensor that enters another one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.core.finding import Finding
from lockstep.core.site import Phase, Role
from lockstep.wings.report.comparison_types import Integers

_MAKING = frozenset(
    {Role.OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD, Role.PARAM_AFTER, Role.STATE_AFTER, Role.BUFFER}
)
_TAKING = frozenset(
    {Role.INPUT, Role.GRAD_OUTPUT, Role.PARAM, Role.STATE, Role.PARAM_GRAD, Role.LOSS}
)


def producers(findings: Sequence[Finding]) -> Integers:
    """Per row the nearest row before whose tensor has the same content and was made there, else -1.

    Parameters
    ----------
    findings
        In execution order. Contents are those of the reference, of the candidate where it alone has the tensor.

    Returns
    -------
    numpy.ndarray
        int32, one per finding. What makes tensors has -1 itself, but for gradients of parameters, which an optimizer
        takes.
    """
    made: dict[tuple[str, bool, int], int] = {}
    found = np.full(len(findings), -1, dtype=np.int32)
    for row, finding in enumerate(findings):
        record = finding.pair.present
        key = (record.rank, finding.pair.reference is None, record.content.id)
        taken = record.role is not Role.PARAM_GRAD or record.site.phase is Phase.OPTIMIZER
        if record.role in _TAKING and taken:
            found[row] = made.get(key, -1)
        elif record.role in _MAKING:
            made[key] = row
    return found
