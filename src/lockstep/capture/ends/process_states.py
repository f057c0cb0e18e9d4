"""Digest and write the state of the process after the first and last recorded step, and at its end."""

from __future__ import annotations

from functools import partial

from torch.optim.optimizer import Optimizer

from lockstep.capture.ends.afterwards import Afterwards, Owners, owners_of
from lockstep.capture.modules.live_modules import LivingModules
from lockstep.capture.modules.process_modules import NamedModule, held_modules
from lockstep.capture.recording.rank_directories import as_json
from lockstep.capture.recording.rank_recording import RankRecording, Tables
from lockstep.capture.silence import Silence
from lockstep.capture.updates.optimizers import Optimizers
from lockstep.core.manifest import END, HELD, NotSeen, RankManifest
from lockstep.store.writer import RankWriter


class KeptStates:
    """Keeps the state of the process after the first and the last recorded step, and at its end.

    recording: Of this process's rank.
    optimizers: The optimizers of the process.
    living: The modules of the process.
    """

    def __init__(
        self, recording: RankRecording, optimizers: Optimizers, living: LivingModules
    ) -> None:
        self._recording = recording
        self._optimizers = optimizers
        self._living = living
        self._afterwards: Afterwards | None = None

    def first(self) -> None:
        """The first recorded step has ended, and more are to come."""
        if not (self._recording.options.apart or self._recording.steps.is_finished):
            self._kept().first(*self._held_now())

    def begin(self) -> None:
        """The last recorded step has ended: keep what comes."""
        recording, session = self._recording, self._recording.written
        if session is None or session.writer.failure:
            return
        if recording.failure or recording.options.apart:
            return
        with Silence(recording.fail):
            self._kept().begin(*self._held_now())

    def listen(self) -> None:
        """Keep the losses from now on; all other taps are out."""
        if self._afterwards is not None:
            self._afterwards.listen()

    def goes_on(self, earlier: int, optimizer: Optimizer) -> None:
        """The training goes on with an optimizer that was made anew: its end is that of the training."""
        if self._afterwards is not None:
            with Silence(self._recording.fail):
                self._afterwards.goes_on(earlier, optimizer)

    def went_back(self, later: int) -> None:
        """An optimizer did not go on with the training."""
        if self._afterwards is not None:
            self._afterwards.went_back(later)

    def tables(self) -> Tables:
        """Tables of the recorded steps."""
        return {} if self._afterwards is None else self._afterwards.recorded()

    def write_end(self, writer: RankWriter, manifest: RankManifest) -> None:
        """Add the end of the training to a recording that was closed."""
        afterwards, why_not = self._afterwards, ""
        if afterwards is not None and not (self._recording.options.exit_after or writer.failure):
            with Silence(self._recording.fail):
                tables, why_not = afterwards.finish()
                why_not = writer.write_behind(tables) or why_not
                if unseen := afterwards.not_seen:
                    manifest.not_seen.append(NotSeen(HELD, unseen))
            why_not = why_not or self._recording.failure
        later = self._optimizers.count_no_more()
        if later is not None:
            manifest.trained = self._recording.steps.number + later
        if why_not:
            manifest.not_seen.append(NotSeen(END, why_not))
        if later is not None or afterwards is not None or manifest.ended_by:
            writer.amend(partial(as_json, manifest, self._recording.kept))

    def forget(self) -> None:
        """Listen for nothing any more."""
        self._optimizers.count_no_more()
        if self._afterwards is not None:
            self._afterwards.forget()
            self._afterwards = None

    def _kept(self) -> Afterwards:
        recording = self._recording
        if self._afterwards is None:
            self._afterwards = Afterwards(
                recording.options.save,
                lambda text: recording.kept(text),
                lambda: recording.steps.number + self._optimizers.counted_on,
                recording.sites.wants,
            )
        return self._afterwards

    def _held_now(self) -> tuple[list[NamedModule], list[Optimizer], Owners]:
        """What the process holds: modules, optimizers, and what is known of names."""
        names = self._recording.names
        modules = held_modules(names, self._living, self._optimizers.trained_now())
        owners = owners_of(names.owners.values())
        return modules, self._optimizers.taking_part(), owners
