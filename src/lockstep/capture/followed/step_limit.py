"""End a training after a step, for `lockstep record --max-steps` or a follower."""

from __future__ import annotations

import math
import time
import weakref
from pathlib import Path
from typing import Any, NoReturn

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from lockstep.capture.patching.untraced import untraced
from lockstep.capture.recording.apart import is_followed
from lockstep.capture.updates.inner_steps import is_inner_step
from lockstep.following.last_step import LastStep, last_step_in

_LEAST_PATIENCE_S = 10.0
_PAUSE_S = 0.05


class StepLimit:
    """Ends this process by `SystemExit(0)` out of an optimizer's step, as a script that is done would.

    The recorder counts while it is at work. Behind that, steps are those of the optimizer that steps next. A script
    that catches the exit is ended at each later step again.

    steps: How many the training has; None for as many as it takes.
    asked_in: The recording, in which a last step may be asked for while the training runs; None where nobody does.

    reached: Whether it ended there.
    """

    def __init__(self, steps: int | None, asked_in: Path | None = None) -> None:
        self.reached = False
        self._began_s = time.monotonic()
        self._steps: float = math.inf if steps is None else steps
        self._asked_in = asked_in
        self._counted: int | None = None
        self._optimizer: weakref.ref[Optimizer] | None = None
        # There from the beginning: while torch goes through its hooks none may be added.
        self._handle = register_optimizer_step_post_hook(untraced(self._stepped))

    def ends_after(self, counted: int) -> bool:
        """Return whether this step is the last one."""
        if self._asked_in is not None:
            asked = last_step_in(self._asked_in)
            self._steps = min(self._steps, math.inf if asked is None else asked.step + 1)
        return counted >= self._steps

    def asked_elsewhere(self, counted: int) -> LastStep | None:
        """Return the request, if the step that begins now is the last and is recorded elsewhere."""
        asked = None if self._asked_in is None else last_step_in(self._asked_in)
        return asked if asked is not None and asked.into and counted >= asked.step else None

    def wait_for_word(self) -> None:
        """Wait until whoever follows has looked at all that was recorded, as one more step may be wanted.

        That may take as long as it took to come here, and a little more: nobody is to wait for ever for what another
        rank does not do.
        """
        began_s = time.monotonic()
        until_s = began_s + _LEAST_PATIENCE_S + began_s - self._began_s
        while self._asked_in is not None and last_step_in(self._asked_in) is None:
            if time.monotonic() > until_s or not is_followed(self._asked_in):
                return
            time.sleep(_PAUSE_S)

    def count_on(self, counted: int) -> None:
        """The recorder has counted so many, and counts no more."""
        if self._counted is None:
            self._counted = counted

    def end(self) -> NoReturn:
        """The training ends here."""
        self.reached = True
        raise SystemExit(0)

    def forget(self) -> None:
        """The process ends by itself."""
        self._handle.remove()

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if self._counted is None or is_inner_step(optimizer):
            return
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self._counted += 1
            if self.ends_after(self._counted):
                self.end()
