"""What custom functions, hooks and optimizers hold: constants of a program, or computed past every recorded call.

From one step to the next the batch and the parameters change, and with them all that is computed of them. What has the
very same numbers in two steps of a run is a constant. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.core.records import TensorRecord
from lockstep.laws.step_events import Contents, Source, StepProgram


@dataclass
class HeldTensors:
    """Follows what the steps of a run hold, as `StepProgram.held` has it."""

    _steps: dict[int, Contents] = field(default_factory=dict)

    def note(self, step: int, program: StepProgram) -> None:
        """Note what a step holds."""
        self._steps[step] = frozenset(_contents(program.sources[one] for one in program.held))

    def constants(self, step: int) -> Contents:
        """What this step holds, and another of those that were noted too."""
        of_others: Contents = frozenset().union(
            *(held for other, held in self._steps.items() if other != step)
        )
        return self._steps.get(step, frozenset()) & of_others


def are_constants(program: StepProgram, held: Iterable[Source], constants: Contents) -> bool:
    """Whether all of these tensors are among the constants of a run."""
    records = [program.sources[one] for one in held]
    return all(one.digest is not None and (one.digest, one.shape) in constants for one in records)


def _contents(records: Iterable[TensorRecord]) -> Iterable[tuple[str, tuple[int, ...]]]:
    return ((one.digest, one.shape) for one in records if one.digest is not None)
