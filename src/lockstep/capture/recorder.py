"""The recorder: when recording begins and ends, when taps go in and come out, and how one step follows the other.

What a step is stands in `steps`, what is written of it in `rank_recording`. Between chosen steps nothing is installed
but one hook on optimizers; behind the last one, what counts updates and hears where backward begins (`afterwards`).
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch
from torch.optim.optimizer import Optimizer

from lockstep.capture.compiled.compiled_code import CompiledCodeGate, wrap_compile
from lockstep.capture.ends.process_states import KeptStates
from lockstep.capture.followed.loss_watch import LossWatch
from lockstep.capture.followed.step_limit import StepLimit
from lockstep.capture.handlers.call_rows import CallRows
from lockstep.capture.handlers.calls import Calls
from lockstep.capture.modules.live_modules import LivingModules, living
from lockstep.capture.modules.module_paths import ModuleNames
from lockstep.capture.modules.parameter_hooks import ParameterHooks
from lockstep.capture.patching.patches import Patch
from lockstep.capture.process.before_backward import end_process
from lockstep.capture.process.environment import UNMATCHED, leave_note
from lockstep.capture.process.first_numbers import FirstParameter
from lockstep.capture.process.waiting import wait_until_written
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.recording.update_notes import UpdateNotes
from lockstep.capture.rows.session import Session
from lockstep.capture.settings import setup
from lockstep.capture.settings.configuration import Configuration
from lockstep.capture.settings.without_draws import without_draws
from lockstep.capture.silence import Silence
from lockstep.capture.step_log.training_log import TrainingLog
from lockstep.capture.steps import End, Steps
from lockstep.capture.updates.optimizers import Optimizers
from lockstep.capture.updates.parameter_groups import optimizer_name
from lockstep.capture.updates.trainers import Trainers
from lockstep.capture.user_notes import warn
from lockstep.capture.windows.inputs_of_reference import GivenInputs
from lockstep.capture.windows.window_starts import WindowStarts
from lockstep.core.errors import CaptureError
from lockstep.core.manifest import (
    BEFORE_BACKWARD,
    END,
    EXIT_AFTER,
    OTHER_TRAININGS,
    NotSeen,
    Options,
)
from lockstep.core.script_inputs import settings_files
from lockstep.core.selection import StepSelection, parse_ranks
from lockstep.core.unmatched import UnmatchedNote
from lockstep.devices.tensor_numbers import prepare_kernels
from lockstep.kernels.jit import say_before_compiling

_active: Recorder | None = None


class StepHearer(Protocol):
    """Hears of the steps of a training, recorded or not, on the thread that trains."""

    def step_begins(self, number: int) -> None:
        """Step `number` begins: an optimizer was made, or the step before has ended."""

    def finish(self) -> None:
        """The training has ended, or the process does."""


class Recorder:
    """Records the training of this process.

    Parameters
    ----------
    directory
        The recording; the rank's part is made inside when the first step begins.
    options
        What to record.
    model
        The model whose paths are plain, where the caller has it at hand.
    wait_for_optimizer
        Whether steps begin only once an optimizer exists (zero-code runs), or right away.

    Attributes
    ----------
    recording
        What is recorded of this process.
    other_rank
        Whether a step was left out because this rank was not asked for.
    taps
        What is patched while a step is recorded.
    steps
        What is known of the step that is open, or comes next.
    """

    def __init__(
        self,
        directory: Path,
        options: Options,
        *,
        model: torch.nn.Module | None = None,
        wait_for_optimizer: bool,
    ) -> None:
        self.other_rank = False
        self.steps = Steps(StepSelection.parse(options.steps))
        self._ranks = parse_ranks(options.ranks)
        self._wait_for_optimizer = wait_for_optimizer
        self._living = LivingModules()
        self._first_parameter = FirstParameter()
        self._names = ModuleNames(self._living, model, lambda: self._optimizers.trained_now())
        self._hooks = ParameterHooks(self._names, self._accumulated)
        self._optimizers: Optimizers = Optimizers(
            self, lambda tensor: self._names.owner_of(tensor) is not None
        )
        self.recording = RankRecording(
            directory,
            options,
            model=model,
            steps=self.steps,
            names=self._names,
            optimizers=self._optimizers,
            hooks=self._hooks,
            is_of_command=wait_for_optimizer,
            border=CallRows.run_within.__code__,
            is_wanted=self._is_recorded_here,
            stop=self._stop_early,
        )
        self._calls = Calls(
            self.recording,
            self._optimizers,
            needs_optimizer=wait_for_optimizer,
            forward_begins=self.forward_begins,
            before_backward=self.stop_before_backward,
            compiler_loaded=self.compiler_loaded,
        )
        if options.inputs_of:
            self._calls.give_inputs(GivenInputs(Path(options.inputs_of), self.recording))
        self.taps = self._calls.taps
        self._updates = UpdateNotes(self.recording)
        self._hand_updated = self._another_trains = self._stopped = self._exits = False
        self._is_first_step = True
        self._kept = KeptStates(self.recording, self._optimizers, self._living)
        self._without_draws = without_draws(options)
        self._limit: StepLimit | None = None
        if options.max_steps is not None or options.ends_when_asked:
            asked_in = directory if options.ends_when_asked else None
            self._limit = StepLimit(options.max_steps, asked_in)
        self._loss_watch: LossWatch | None = None
        self._hearers: list[StepHearer] = []
        if options.states_at:
            starts = WindowStarts(self.recording, self._optimizers, self._living)
            self._hearers.append(starts)
            self.recording.hear_begin = starts.begins
        self._log: TrainingLog | None = None
        if options.step_log:
            self._log = TrainingLog(self.recording, self._step_now)
            self._hearers.append(self._log)
            self._optimizers.hearer = self._log
        if options.records_nothing:
            self.steps.choose(StepSelection.not_known_yet())
        if options.until_losses_part:
            self.steps.choose(StepSelection.not_known_yet())
            self._loss_watch = LossWatch(directory, lambda: self.steps.number)
        self._configuration = Configuration(self.fail)
        self._patches = [
            self.recording.loaders.patch,
            self._configuration.patch,
            Patch(
                torch,
                "compile",
                lambda original: wrap_compile(original, _calls_now, eager=options.compile_eager),
            ),
            *CompiledCodeGate(_calls_now).patches(),
        ]

    @property
    def is_of_command(self) -> bool:
        """Whether `lockstep record` began it, rather than the script."""
        return self._wait_for_optimizer

    @property
    def steps_counted(self) -> int:
        """How many steps have ended, recorded or not."""
        return self.steps.number

    @property
    def steps_left_out(self) -> int:
        """How many chosen steps were not recorded, as the one before was still there (`Options.apart`)."""
        return self.steps.left_out

    @property
    def directory(self) -> Path:
        """The recording."""
        return self.recording.directory

    @property
    def began(self) -> bool:
        """Whether a step was begun, so that there is a directory of this rank."""
        return self.recording.began

    @property
    def optimizer_seen(self) -> bool:
        """Whether an optimizer was made."""
        return self.recording.optimizer_seen

    @property
    def records_apart(self) -> bool:
        """Whether each step is recorded apart, for an audit."""
        return self.recording.options.apart

    def hear(self, hearer: StepHearer) -> None:
        """Tell this one of steps too; to be called before `arm`."""
        self._hearers.append(hearer)

    # --- life ----------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Begin to listen for optimizers, and record as soon as the first chosen step begins.

        Raises
        ------
        CaptureError
            If another recorder is at work in this process.
        """
        global _active
        if _active is not None:
            raise CaptureError(
                "a recording is already running in this process; stop it before starting another"
            )
        _active = self
        try:
            self._arm()
        except BaseException:
            self.steps.abandon()
            self._disarm()
            raise

    def _arm(self) -> None:
        if self._log is not None:
            self._log.listen()
        for patch in self._patches:
            patch.put()
        self._hooks.begin()
        self._optimizers.listen()
        self._living.listen()
        self._first_parameter.listen()
        say_before_compiling(warn)
        prepare_kernels()
        if not self._wait_for_optimizer:
            made_before = living(Optimizer, torch.nn.Module)
            self._optimizers.found(item for item in made_before if isinstance(item, Optimizer))
            self._living.found(item for item in made_before if not isinstance(item, Optimizer))
            self._install_if_chosen()
            self.begin()
        elif multiprocessing.parent_process() is None:
            # A training without any torch optimizer; workers that load data are no trainings.
            self._install_if_chosen()

    def save(self) -> None:
        """Write what there is by now, and wait for it; from any thread."""
        self.recording.save()

    def finish(self, *, interrupted: bool = False, ended_by: str = "") -> None:
        """Close the recording and wait until it is written; safe to call twice.

        `interrupted` tells that nobody asked for it, and `ended_by` what ends the process, "" where it ends by itself.
        """
        recording, manifest = self.recording, self.recording.manifest
        if manifest is not None:
            reached = self._limit is not None and self._limit.reached
            ended_by = setup.ended_behind(recording.options) if reached else ended_by
            ended_by = EXIT_AFTER if self._exits else ended_by
            manifest.ended_by = BEFORE_BACKWARD if self._stopped else ended_by
            if recording.optimizer_seen and not self.steps.is_finished:
                manifest.trained = self.steps.number
        for hearer in self._hearers:
            if hearer is not self._log:  # that listens below all other taps
                hearer.finish()
        if self._loss_watch is not None and not recording.failure:
            with self._failing_aloud():
                self._loss_watch.finish(self.steps.number)
        self._end(interrupted=interrupted)
        writer, recording.closing = recording.closing, None
        if writer is not None and recording.manifest is not None:
            wait_until_written(writer)
            self._kept.write_end(writer, recording.manifest)
        self._kept.forget()
        if self._log is not None:
            self._log.finish()
        if recording.began and (self._is_no_training or recording.holds_nothing):
            recording.discard()
        self._release()

    def _release(self) -> None:
        """Let go of this rank's directory, and of what ends the process."""
        self.recording.release()
        if self._limit is not None:
            self._limit.forget()

    @property
    def _is_no_training(self) -> bool:
        """Whether neither an optimizer was made nor a parameter updated, in a run that was to be watched for that."""
        return self._wait_for_optimizer and not (self.optimizer_seen or self._hand_updated)

    @property
    def may_be_left(self) -> bool:
        """Whether a forked child may start anew, see `RankRecording.may_be_left`."""
        return self.recording.may_be_left

    def _end(self, *, interrupted: bool = False) -> None:
        """Stop recording; what is left is written while the training goes on."""
        if self.steps.is_finished:
            self._optimizers.stop()
            self.taps.remove()
            return
        if interrupted and self.steps.is_idle:
            self.recording.set_aside()
        self.steps.finish()
        if self._limit is not None:
            self._limit.count_on(self.steps.number)
        if self.steps.is_open:
            updated = self._updated_by_hand()
            self._end_step(End.FINISHED, complete=updated or not interrupted)
        self._hooks.take_out()  # they would seem to lead back to what holds them
        self._kept.begin()
        self._disarm()
        self._kept.listen()
        self.recording.close(self._kept.tables)

    def abandon_in_child(self) -> None:
        """After a fork: forget everything the parent holds, write nothing."""
        self.steps.abandon()
        self._kept.forget()
        if self._log is not None:
            self._log.stop()
        self._disarm()
        self.recording.abandon()
        self._release()

    def end_step_by_hand(self) -> None:
        """End the step, for loops without a torch optimizer."""
        if self.steps.take_word():
            self._updated_by_hand()
            self._end_and_advance(End.SAID)

    def forward_begins(self) -> None:
        """End the step if a forward begins after a backward and the script has updated its parameters."""
        if not self._optimizers.at_work and self._updated_by_hand():
            self._end_and_advance(End.UPDATED_BY_HAND)

    def _updated_by_hand(self) -> bool:
        session, updated = self.session, False
        if session is not None:
            with Silence(self.fail):
                updated = session.record_hand_updates()
        self._hand_updated |= updated
        return updated

    def _disarm(self) -> None:
        global _active
        self.taps.remove()
        self._optimizers.stop()
        self._living.stop()
        self._first_parameter.stop()
        self._hooks.take_out()
        if self._loss_watch is not None:
            self._loss_watch.stop()
        if _active is self:
            _active = None
            for patch in self._patches:
                patch.take_back()
        self._names.forget()
        self.recording.model = None

    # --- steps ---------------------------------------------------------------------------------------------------

    def optimizer_created(self) -> None:
        """An optimizer was made: a training may begin."""
        if self.optimizer_seen and self.trainers.another_lives:
            return  # what is recorded goes on in another thread
        if not self.optimizer_seen:
            self._tell_hearers()
        if not self.optimizer_seen and self.steps.is_uncertain:
            self.recording.set_aside()
        self.recording.optimizer_seen = True
        if self._loss_watch is not None:
            self._loss_watch.listen()
        self.recording.note_training()
        self._install_if_chosen()

    def _install_if_chosen(self) -> None:
        if self.steps.is_chosen and not (self.steps.is_finished or self.other_rank):
            self.taps.install()

    @property
    def session(self) -> Session | None:
        """The session, while a step is open."""
        return self.recording.session

    @property
    def trainers(self) -> Trainers:
        """Tells the recorded training from those of other threads."""
        return self._optimizers.trainers

    def another_trains(self) -> None:
        """A thread trains something else than what is recorded: said once."""
        self._another_trains = True

    def begin(self) -> Session | None:
        """The training comes in sight: open the step if it is to be recorded."""
        return self.recording.begin()

    def is_certain(self) -> None:
        """The step that is open is one: backward or an optimizer is at work."""
        self.recording.is_certain()

    def _is_recorded_here(self) -> bool:
        """Whether a step may be recorded in this process."""
        return not (self._is_other_rank() or _is_data_worker())

    def stop_before_backward(self) -> None:
        """Nothing was learnt yet: the process ends here, where that was asked for."""
        if not self.recording.options.before_backward or self._stopped:
            return
        self._stopped = True
        if self.session is not None:
            with Silence(self.fail):
                optimizers = self._optimizers.taking_part()
                if len(optimizers) == 1:  # of several nobody knows yet in which order they step
                    self.optimizer_called(optimizers[0], optimizer_name(optimizers[0]))
        end_process(self.directory, setup.rank_and_world_size()[1])

    def _end_and_advance(self, by: End) -> None:
        """A step has ended, recorded or not: the next one comes."""
        if self.steps.is_open:
            self._end_step(by, complete=True)
        else:
            self.steps.end(by)
        if not self.steps.is_finished:
            self._advance()

    def _end_step(self, by: End, *, complete: bool) -> None:
        recording = self.recording
        session, manifest = recording.written, recording.manifest
        self.steps.end(by)
        self._optimizers.forget_stepped()
        self._calls.places.leave_all()
        if session is None or manifest is None:
            return
        summary = manifest.steps[-1]
        summary.complete = complete and not (recording.failure or session.writer.failure)
        summary.calls = session.call_count
        with Silence(self.fail):
            session.end_step()
            recording.note_parameters()
            if not (manifest.configuration or recording.options.redact):
                manifest.configuration = self._configuration.noted()
                manifest.settings_files = settings_files(manifest.configuration)
            if len(manifest.steps) == 1 and self.steps.selection.any_from(summary.index + 1):
                self._kept.first()
            for gap in self._gaps():
                session.gaps.add(gap)
            if self._is_first_step and summary.complete and self.is_of_command:
                self._note_unmatched(summary.index)
        manifest.events, manifest.not_seen = session.events, session.gaps
        manifest.wrappers = session.parameters.wrappers
        recording.step_written(summary.index)
        if self.records_apart:
            recording.close(self._kept.tables)
            self._release()
            self._updates.forget()

    def _gaps(self) -> Iterator[NotSeen]:
        if self._another_trains:
            thread = threading.current_thread().name
            reason = f"one is recorded of each process: that of {thread}, which came first"
            yield NotSeen(OTHER_TRAININGS, reason)
        if self._without_draws is not None:
            yield from self._without_draws.gaps()

    def _note_unmatched(self, step: int) -> None:
        """The first recorded step has ended: whoever started the command can say at once what was mistyped."""
        self._is_first_step = False
        patterns = self.recording.unmatched()
        if patterns:
            world = range(setup.rank_and_world_size()[1])
            count = len(world) if self._ranks is None else len(self._ranks & set(world))
            leave_note(self.directory, UNMATCHED, UnmatchedNote(step, count, patterns).as_text())

    def _advance(self) -> None:
        if self._loss_watch is not None:
            self._hear_losses(self._loss_watch)
        self.steps.next()
        self._tell_hearers()
        if self._limit is not None:
            self._go_elsewhere(self._limit)
        if self.records_apart:
            closing, apart = self.recording.closing, self.recording.apart
            apart.step_ended(writing=closing is not None and not closing.wait(0.0))
            if self.steps.is_chosen and not apart.has_room():
                self.steps.wait()
        session = self.recording.written
        if self.recording.failure or (session is not None and session.writer.failure):
            self._stop_early()
        elif not self.steps.any_to_come:
            self._end()
            if self.recording.closing is not None:
                self._optimizers.count_on(self._kept)
            if self.recording.options.exit_after:
                self._exits = True
                raise SystemExit(0)
        elif not self.steps.is_chosen:
            self.taps.remove()
        elif not self.taps.installed:  # in the midst of a call, a mode that is on does not show
            self._install_if_chosen()
        if self._limit is not None and self._limit.ends_after(self.steps.number):
            self._end()
            self._limit.end()

    def _step_now(self) -> int:
        """Number of the step that is under way, after the recorded ones too."""
        return self.steps.number + self._optimizers.counted_on

    def _tell_hearers(self) -> None:
        for hearer in self._hearers:
            hearer.step_begins(self.steps.number)

    def _go_elsewhere(self, limit: StepLimit) -> None:
        """The step that begins now may be the last by request, with some sites whole and in another recording."""
        recording = self.recording
        if recording.written is not None and not self.steps.any_to_come:
            limit.wait_for_word()
        asked = limit.asked_elsewhere(self.steps.number)
        if asked is None:
            return
        if recording.manifest is not None:
            recording.manifest.trained = self.steps.number
            recording.manifest.ended_by = setup.ended_behind(recording.options)
            reason = "whoever follows it had the step behind recorded elsewhere"
            recording.manifest.not_seen.append(NotSeen(END, reason))
        recording.close(self._kept.tables)
        self._release()
        self._kept.forget()
        self._updates.forget()
        self._limit = None
        self.steps.choose(StepSelection.of(self.steps.number))
        recording.move(Path(asked.into), asked.whole)

    def _hear_losses(self, watch: LossWatch) -> None:
        """A step has ended of which at most the losses were heard."""
        with self._failing_aloud():
            wanted = watch.step_ended(self.steps.number)
            if wanted is not None:
                self.steps.choose(StepSelection.of(max(wanted, self.steps.number + 1)))
                self._loss_watch = None

    @contextmanager
    def _failing_aloud(self) -> Iterator[None]:
        """What fails is said at once: there is no recording yet that could tell."""
        try:
            with Silence():
                yield
        except Exception as error:
            self.fail(error)
            failure = self.recording.failure
            self.recording.say(f"losses are not heard any more: {failure}", failure)

    def _stop_early(self) -> None:
        if not self.steps.is_finished:
            self._end(interrupted=True)

    def _is_other_rank(self) -> bool:
        """Whether this rank was not asked for; it still counts steps where it has to end with the others."""
        if self._ranks is not None and not self.began and not self.other_rank:
            self.other_rank = setup.rank_and_world_size()[0] not in self._ranks
            if self.other_rank and (self.recording.options.exit_after or self._limit is not None):
                self.taps.remove()
            elif self.other_rank:
                self._end()
        return self.other_rank

    def fail(self, error: Exception) -> None:
        """The recorder's own work failed: stop recording, let the training go on."""
        self.recording.fail(error)

    # --- gradients and optimizers --------------------------------------------------------------------------------

    def _accumulated(self, parameter: torch.Tensor) -> None:
        session = self.session
        if session is not None:
            if self.taps.in_compiled_code:
                self.recording.note_once(
                    "the loss of a backward inside of compiled code",
                    "compiled: only the parameters' gradients are recorded",
                )
            with Silence(self.fail):
                session.updates.accumulated(parameter)

    def compiler_loaded(self) -> None:
        """Something was compiled: hooks must not be traced."""
        self._optimizers.compiler_loaded()
        anew = not self.steps.is_finished and self._hooks.compiler_loaded()
        if anew and self.recording.written is not None:
            self._hooks.put()

    def optimizers_stepped(self, by: End) -> None:
        """The step has ended."""
        self.recording.optimizer_seen = True
        self._end_and_advance(by)

    def update_skipped(self) -> None:
        """A gradient scaler found an overflow: the step has no effect, or no update at all."""
        self._updates.skipped()

    def loss_scaled(self, factor: float) -> None:
        """The factor that a gradient scaler has put into the loss of this step."""
        self._updates.loss_scaled(factor)

    def optimizer_called(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        """An optimizer begins a step that is recorded: note its hyper-parameters."""
        self.recording.optimizer_seen = True
        self._updates.called(optimizer, name, compiled=self.taps.in_compiled_code)


def active_recorder() -> Recorder | None:
    """The recorder at work in this process, if any."""
    return _active


def _calls_now() -> Calls | None:
    return None if _active is None else _active._calls


def _is_data_worker() -> bool:
    return torch.utils.data.get_worker_info() is not None
