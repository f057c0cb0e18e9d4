"""Act when a rule fires: keep the step, end the training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from lockstep.errors import LockstepError, OutputExistsError
from lockstep.launch import WrittenStep
from lockstep.recordings import Call, CallKind, Role, Site
from lockstep.terminal import shell_line
from lockstep_watch.chosen_rules import check_name
from lockstep_watch.observed import Hit
from lockstep_watch.running import end_words

ANY = "any"


class Acting:
    """Keeps the first step in which one of some rules fires, and ends the training.

    stop_on, save_on: Names of rules, or `any`.
    output: Where the step is kept.
    known: The rules that are at work.

    Raises UsageError if a rule is unknown. Raises OutputExistsError if a step is to be kept where something is, or
    where nothing can be.
    """

    def __init__(
        self, stop_on: Sequence[str], save_on: Sequence[str], output: Path, known: Collection[str]
    ) -> None:
        for name in (*stop_on, *save_on):
            check_name(name, [*known, ANY])
        if save_on and output.exists():
            raise OutputExistsError(f"{output} exists; give another directory by --output")
        if save_on and not next(one for one in output.absolute().parents if one.exists()).is_dir():
            raise OutputExistsError(
                f"{output}: leads into a file; give another directory by --output"
            )
        self._stop_on, self._save_on, self._output = stop_on, save_on, output
        self._kept: int | None = None
        self._stopped = False

    def act(self, step: WrittenStep, hits: Sequence[Hit]) -> Iterator[str]:
        """Do what a step's hits ask for, and say it."""
        asking = self._asking(self._save_on, hits)
        if asking and self._kept is None:
            self._kept = step.number
            yield from self._keep(step, asking)
        elif self._kept == step.number:  # another rank of the same step
            yield from self._keep(step, [])
        if self._asking(self._stop_on, hits) and not self._stopped:
            self._stopped = True
            yield f"{end_words(step)} (--stop-on)"

    def _keep(self, step: WrittenStep, hits: Sequence[Hit]) -> Iterator[str]:
        try:
            step.keep(self._output)
        except LockstepError as error:
            yield f"step {step.number} of {step.name} is not kept: {error}"
            return
        words = next_command(step.rank.calls(step.number), hits, str(self._output))
        yield f"kept step {step.number} of {step.name}: {shell_line(words)}"

    @staticmethod
    def _asking(names: Sequence[str], hits: Sequence[Hit]) -> list[Hit]:
        """The hits of these rules; notes are none of `any`."""
        return [hit for hit in hits if hit.rule in names or (ANY in names and not hit.is_note)]


def next_command(calls: Sequence[Call], hits: Sequence[Hit], kept: str) -> list[str]:
    """Return the command that looks further into a kept step: runs again the operator that a rule has fired on.

    For a gradient that is the operator that sent it. Where the rule is of no operator, all are run again; where none
    was recorded, as at level `module`, the place is shown.
    """
    operators = {call.site for call in calls if call.kind is CallKind.OPERATOR}
    again = operators | {call.site for call in calls if call.kind is CallKind.OPTIMIZER}
    site = next((hit.site for hit in hits if hit.site is not None), None)
    if site is None:
        return ["lockstep", "replay", kept, "--whole"] if operators else ["lockstep", "show", kept]
    if site not in again:
        names = {hit.subject for hit in hits if hit.site == site}
        site = _sender(calls, names) or site
    verb = "replay" if site in again else "show"
    chosen = ["--only", str(site)] if verb == "replay" else [str(site)]
    return ["lockstep", verb, kept, *chosen]


def _sender(calls: Sequence[Call], names: Collection[str]) -> Site | None:
    """The operator that sent a gradient to one of these parameters."""
    return next(
        (
            call.site
            for call in calls
            if call.kind is CallKind.OPERATOR
            and any(record.name in names for record in call.with_role(Role.PARAM_GRAD))
        ),
        None,
    )
