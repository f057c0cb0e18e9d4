"""Further runs of a program with rounding, for results of few numbers, of which a few runs do not tell the noise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from lockstep.laws.distances import distance
from lockstep.laws.double_run import FEW_NUMBERS, Run
from lockstep.laws.random_rounding import Rounding
from lockstep.laws.step_events import Node
from lockstep.laws.step_sides import Side
from lockstep.replay.calls.recorded_tensors import widened

if TYPE_CHECKING:
    from collections.abc import Mapping

SEEDS = range(2, 10)
"""Of the further runs. The largest of eleven errors of one number is below a sixth of another error in one case of a
million, the largest of three in one of some three hundred (normal distribution)."""


@dataclass(frozen=True)
class FurtherRun:
    """How far one run took the results and the gradients of few numbers, by Euclidean distance.

    `sent` is what each backward pass has added to these gradients.
    """

    off: dict[Node, float] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    sent: list[dict[str, torch.Tensor]] = field(default_factory=list)


@dataclass(frozen=True)
class MoreDraws:
    """Runs of a program that are made when they are first asked for.

    side: The program, and its own numbers.
    exact, rounded: What the steps before have left, as the runs in double precision and with rounding take it, by
        content. Each further run takes their difference with other signs.
    base: The run in double precision. Runs that are made once its results are forgotten tell of gradients alone.
    """

    side: Side
    exact: Mapping[int, torch.Tensor]
    rounded: Mapping[int, torch.Tensor]
    base: Run

    @cached_property
    def runs(self) -> tuple[FurtherRun, ...]:
        """The runs, each as far as it is off. Raises NotApplicable as `DoubleRun.run` does."""
        return tuple(self._run(torch.Generator().manual_seed(seed)) for seed in SEEDS)

    def _run(self, generator: torch.Generator) -> FurtherRun:
        numbers = replace(self.side.numbers, carried=self._carried(generator))
        found = FurtherRun()

        def seen(node: Node, value: torch.Tensor) -> None:
            truth = self.base.values.get(node)
            if truth is not None and truth.numel() < FEW_NUMBERS and truth.dtype.is_floating_point:
                found.off[node] = distance(value, truth)

        run = self.side.double.run(
            lambda _, record: widened(numbers.of(record)),
            rounding=Rounding(generator),
            decided=True,
            keep=False,
            seen=seen,
        )
        found.sent.extend(run.sent)
        for name, truth in self.base.gradients.items():
            if truth.numel() < FEW_NUMBERS:
                found.gradients[name] = distance(run.gradients.get(name, truth), truth)
        return found

    def _carried(self, generator: torch.Generator) -> dict[int, torch.Tensor]:
        """What the steps before have left, with noise of the same size."""
        found = {}
        for content, rounded in self.rounded.items():
            exact = self.exact.get(content)
            if exact is None or exact.shape != rounded.shape or not exact.is_floating_point():
                found[content] = rounded
                continue
            drawn = torch.randint(0, 2, exact.shape, generator=generator, dtype=torch.int8)
            found[content] = exact + (2 * drawn - 1) * (rounded - exact)
        return found
