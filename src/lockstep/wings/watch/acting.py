"""What is done when a rule fires: the step is kept, the training ends."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from lockstep.core.errors import LockstepError, OutputExistsError
from lockstep.core.text import shell_line
from lockstep.launch import WrittenStep
from lockstep.wings.watch.chosen_rules import check_name
from lockstep.wings.watch.observed import Hit
from lockstep.wings.watch.running import end_soon

ANY = "any"


class Acting:
    """Keeps the first step in which one of some rules fires, and ends the training.

    Parameters
    ----------
    stop_on, save_on
        Names of rules, or `any`.
    output
        Where the step is kept.
    known
        The rules that are at work.

    Raises
    ------
    UsageError
        If a rule is unknown.
    OutputExistsError
        If a step is to be kept where something is.
    """

    def __init__(
        self, stop_on: Sequence[str], save_on: Sequence[str], output: Path, known: Collection[str]
    ) -> None:
        for name in (*stop_on, *save_on):
            check_name(name, [*known, ANY])
        if save_on and output.exists():
            raise OutputExistsError(f"{output} exists; give another directory by --output")
        self._stop_on, self._save_on, self._output = stop_on, save_on, output
        self._kept: int | None = None
        self._stopped = False

    def act(self, step: WrittenStep, hits: Sequence[Hit]) -> Iterator[str]:
        """Do what a step's hits ask for, and say it."""
        if self._asks(self._save_on, hits) and self._kept is None:
            self._kept = step.number
            yield from self._keep(step, hits)
        elif self._kept == step.number:  # another rank of the same step
            yield from self._keep(step, [])
        if self._asks(self._stop_on, hits) and not self._stopped:
            self._stopped = True
            yield f"the training is asked to end after step {end_soon(step)} (--stop-on)"

    def _keep(self, step: WrittenStep, hits: Sequence[Hit]) -> Iterator[str]:
        try:
            step.keep(self._output)
        except LockstepError as error:
            yield f"step {step.number} of {step.name} is not kept: {error}"
            return
        site = next((str(hit.site) for hit in hits if hit.site is not None), None)
        chosen = () if site is None else ("--only", site)
        command = shell_line(["lockstep", "replay", str(self._output), *chosen])
        yield f"kept step {step.number} of {step.name}: {command}"

    @staticmethod
    def _asks(names: Sequence[str], hits: Sequence[Hit]) -> bool:
        return any(hit.rule in names or ANY in names for hit in hits)
