"""The judge of updates of a port: one run's optimizer is PyTorch's, and the other's that of a different framework."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.finding import CallPair
from lockstep.core.site import Role
from lockstep.judge.protocol import Judge, Judgement, Operation, Region
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.refusals import CannotReplay, Crashed
from lockstep.replay.questions import Answers, OfOtherUpdate


class PortUpdatesJudge:
    """Asks for an update of both optimizers from the same numbers; a `lockstep.judge.protocol.Judge`.

    See `lockstep.replay.verdicts.update_of_other`.

    Parameters
    ----------
    fallback
        Judges everything else.
    reruns
        Runs calls again.
    """

    def __init__(self, fallback: Judge, reruns: Answers) -> None:
        self._fallback, self._reruns = fallback, reruns

    @property
    def name(self) -> str:
        """As it stands under `judged_by`: the fallback's."""
        return self._fallback.name

    @property
    def looks_at_set_up(self) -> bool:
        """As the fallback does."""
        return self._fallback.looks_at_set_up

    def notes(self) -> Sequence[str]:
        """Return the fallback's."""
        return self._fallback.notes()

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call, as the fallback does."""
        return self._fallback.operator(operation, output)

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that the calls of a region made it from, as the fallback does."""
        return self._fallback.passage(sources, target, region=region)

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step: one that the fallback lets pass is looked at again."""
        found = self._fallback.update(entering, output, calls=calls)
        is_told = output.equal or found.unexplained or output.pair.layout is not None
        if is_told or calls is None or output.pair.present.role is not Role.PARAM_AFTER:
            return found
        records = [
            one
            for item in (*entering, output)
            for one in (item.pair.reference, item.pair.candidate)
        ]
        if any(one is None or one.content.loader is None for one in records):
            return found
        try:
            return self._reruns.ask(OfOtherUpdate(output, tuple(entering), calls))
        except (CannotReplay, Crashed, MemoryError, RuntimeError):
            return found
