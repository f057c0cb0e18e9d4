"""Mark results of models while no step is open: rollouts, a teacher before its student, a target network.

Nothing of it is recorded, and what comes of it arrives in the step from outside. But it is no batch: it follows from
parameters, with roundoff, so it must not be held to what a loader gives.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from lockstep.capture.tensors.memory import WeakStorages


class OutOfSight:
    """Knows the tensors that were computed out of sight, as long as they live.

    was_read: Whether Python has read numbers of them, so that whatever comes later may follow from them.
    """

    def __init__(self) -> None:
        self.was_read = False
        self._made = WeakStorages()

    def made(self, tensors: Iterable[torch.Tensor]) -> None:
        """A model has made these, or they were computed from what it made."""
        for tensor in tensors:
            self._made.add(tensor)

    def has_made(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Whether any of them was computed out of sight, or is a parameter."""
        return any(
            tensor in self._made or isinstance(tensor, torch.nn.Parameter) for tensor in tensors
        )
