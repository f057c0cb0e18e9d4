"""Following a reference: a training is recorded, and each step that it ends is compared with that of the reference."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.comparison import GrowingComparison, SteppedTo
from lockstep.core.errors import LockstepError, OutputExistsError, RecordingError
from lockstep.core.manifest import Options
from lockstep.core.selection import StepSelection
from lockstep.following.last_step import LastStep, ask_for_last_step
from lockstep.launch import Ended, Event, launch
from lockstep.store.reader import Recording, open_recording
from lockstep.wings.follow.origin_step import OriginStep

_LOOKS_EVERY_S = 0.2
_BEYOND_ALL_RANKS = 2
"""How many steps no rank can be ahead of the others: each waits for them in every step."""


@dataclass(slots=True)
class Followed:
    """The result of following.

    steps: What was compared while the training ran.
    stopped_at: Behind which step the training was asked to end, None where it was not.
    why_not: Why a step could not be compared, or "".
    origin_kept: The last step, of which the first origin's tensors were recorded whole, None where there was none.
    """

    steps: list[SteppedTo] = field(default_factory=list)
    stopped_at: int | None = None
    why_not: str = ""
    origin_kept: Recording | None = None

    @property
    def at_the_end(self) -> list[int] | None:
        """Which steps are compared at the end; None for all, where the training came to its own end."""
        return None if self.stopped_at is None else [step.number for step in self.steps]


def recorded_as(reference: Options, save: str | None) -> Options:
    """How a candidate is recorded, to be compared with a reference: what, of which steps, from which seed."""
    return dataclasses.replace(
        reference, save=save or ("stats" if reference.save == "stats" else "sketch"), emulate="",
        calibrate=False, exit_after=False, redact=False, ends_when_asked=True,
    )  # fmt: skip


class Following:
    """Compares steps on a thread of its own while the command runs.

    comparison: Compares them.
    directory: The recording that grows.
    tell: Is given each step as it was compared.
    stops: Whether the training is asked to end at the first origin.
    """

    def __init__(
        self,
        comparison: GrowingComparison,
        directory: Path,
        tell: Callable[[SteppedTo], None],
        *,
        stops: bool,
    ) -> None:
        self.followed = Followed()
        self._comparison, self._directory, self._tell, self._stops = (
            comparison, directory, tell, stops,
        )  # fmt: skip
        self._seen: dict[Path, int] = {}
        self._origin_step: OriginStep | None = None
        self._steps = StepSelection.parse("0:")
        self._ended = threading.Event()
        self._is_taken = False

    def run(
        self,
        command: Sequence[str],
        options: Options,
        hear: Callable[[Event], None],
        *,
        force: bool,
        **streams: Any,
    ) -> Ended:
        """Run the command to its end and follow it.

        Raises UsageError if it cannot be started. Raises OutputExistsError if the directory is taken.
        """
        self._steps = StepSelection.parse(options.steps)
        self._origin_step = OriginStep(self._directory, command, options)
        thread = threading.Thread(target=self._work, name="lockstep-following", daemon=True)
        thread.start()
        code = None
        try:
            ended = launch(command, self._directory, options, force=force, hear=hear, **streams)
            code = ended.code
            return ended
        except OutputExistsError:
            self._is_taken = True  # what lies there is of another training
            raise
        finally:
            self._ended.set()
            thread.join()
            self.followed.origin_kept = self._origin_step.finish(exit_code=code)

    def _work(self) -> None:
        try:
            while not self._ended.wait(_LOOKS_EVERY_S):
                if not self._look():
                    return
            if not self._is_taken:
                self._look()
        finally:
            if not self._is_taken:
                self._let_go_on()

    def _let_go_on(self) -> None:
        """Nothing more is asked for: a training that waits behind its last recorded step need not."""
        if self.followed.stopped_at is None and self._directory.exists():
            ask_for_last_step(self._directory, LastStep())

    def _look(self) -> bool:
        """Compare what has come; tells whether to go on."""
        if not self._has_grown():
            return True
        try:
            for step in self._comparison.add(open_recording(self._directory)):
                self.followed.steps.append(step)
                self._tell(step)
                if step.origins:
                    self._stop(step)
                    return False
                if not self._steps.any_from(step.number + 1):
                    self._let_go_on()
        except RecordingError:  # a file that is being written at this moment: it is met again
            return not self._ended.is_set()
        except LockstepError as error:
            self.followed.why_not = str(error)
            return False
        return True

    def _has_grown(self) -> bool:
        """Whether a manifest was written since the last look."""
        seen = {}
        for path in self._directory.glob("rank*/manifest.json"):
            try:
                seen[path] = path.stat().st_mtime_ns
            except FileNotFoundError:
                continue
        grown, self._seen = seen != self._seen, seen
        return grown

    def _stop(self, step: SteppedTo) -> None:
        if self._stops and not self._ended.is_set():
            last = step.number
            ranks = open_recording(self._directory).ranks.values()
            if len(ranks) > 1:
                begun = max(
                    (one.index for rank in ranks for one in rank.manifest.steps), default=last
                )
                ahead = range(begun + 1, begun + _BEYOND_ALL_RANKS)
                # Behind the last recorded step all wait for the word.
                last = next(
                    (one for one in ahead if not self._steps.any_from(one)),
                    begun + _BEYOND_ALL_RANKS,
                )
            self.followed.stopped_at = last
            assert self._origin_step is not None
            ask_for_last_step(self._directory, self._origin_step.begin(last, step.origins[0]))
