"""Record the step after the first origin of a followed training, with that operator's whole tensors."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from lockstep.commands.record_again import new_place, pattern_for
from lockstep.core.errors import OutputExistsError
from lockstep.core.finding import Origin
from lockstep.core.manifest import Options
from lockstep.following.last_step import LastStep
from lockstep.store.directory import RunDirectory
from lockstep.store.reader import Recording, open_recording


class OriginStep:
    """Records the last step apart from the recording that is compared.

    beside: That recording.
    command, options: What runs, and how it is recorded.
    """

    def __init__(self, beside: Path, command: Sequence[str], options: Options) -> None:
        self._beside, self._command, self._options = beside, command, options
        self._run: RunDirectory | None = None

    def begin(self, last: int, origin: Origin) -> LastStep:
        """Make room for it; gives what the training is to be asked for, plainly to end where there is no room."""
        only = (pattern_for(origin.module, origin.op),)
        options = dataclasses.replace(
            self._options, save="tensors", only=list(only), skip=[], steps=str(last),
            exit_after=True, ends_when_asked=False,
        )  # fmt: skip
        place = new_place(self._beside.with_name(f"{self._beside.name}-origin"))
        try:
            self._run = RunDirectory.create(place, list(self._command), options, force=False)
        except OutputExistsError:
            return LastStep(last)
        self._run.started()
        return LastStep(last, only, str(place))

    def finish(self, *, exit_code: int | None) -> Recording | None:
        """The command has ended; gives what was recorded, None where no step came any more."""
        if self._run is None:
            return None
        path = self._run.path
        steps = [step for rank in open_recording(path).ranks.values() for step in rank.steps]
        if not steps:
            self._run.release()
            shutil.rmtree(path)
            return None
        self._run.manifest.options.steps = str(max(steps))
        self._run.finish(exit_code=exit_code)
        return open_recording(path)
