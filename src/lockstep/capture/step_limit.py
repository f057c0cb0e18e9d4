"""Ending a training behind so many steps, where `lockstep record --max-steps` was asked to."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from lockstep.capture.compiled_code import untraced


class StepLimit:
    """Ends this process by `SystemExit(0)` out of an optimizer's step, as a script that is done would.

    The recorder counts while it is at work. Behind that, steps are those of the optimizer that steps next. A script
    that catches the exit is ended at each later step again.

    Parameters
    ----------
    steps
        How many the training has.

    Attributes
    ----------
    reached
        Whether it ended there.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.reached = steps, False
        self._counted: int | None = None
        self._optimizer: weakref.ref[Optimizer] | None = None
        # There from the beginning: while torch goes through its hooks none may be added.
        self._handle = register_optimizer_step_post_hook(untraced(self._stepped))

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
        if self._counted is None:
            return
        if self._optimizer is None or self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is optimizer:
            self._counted += 1
            if self._counted >= self.steps:
                self.end()
