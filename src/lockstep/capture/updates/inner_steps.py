"""Whether an optimizer's step is one inside of its own step.

A class that calls `super().step()` runs torch's hooks twice where its base was made an optimizer before: torch hooks
the step of each class that one is made of. The step that counts is the outer one.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch.optim.optimizer import Optimizer

_HOOKED = Optimizer.profile_hook_step(lambda *_: None).__code__


def is_inner_step(optimizer: Optimizer) -> bool:
    """Whether a hook is called out of a step that a step of the same optimizer has called."""
    hooked = [one for one in type(optimizer).__mro__ if hasattr(vars(one).get("step"), "hooked")]
    if len(hooked) < 2:
        return False
    steps = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and steps < 2:
        if frame.f_code is _HOOKED and frame.f_locals.get("self") is optimizer:
            steps += 1
        frame = frame.f_back
    return steps > 1
