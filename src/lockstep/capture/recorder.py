"""The recorder: which step it is, when taps go in and come out, and where rows go.

A step runs from the first tapped call that builds a graph to the optimizer step that ends it; until its first backward
it may turn out to be none (`held`). It ends when every live optimizer has stepped, or when one steps for the second
time; a gradient scaler that leaves the optimizer out ends it too. Between chosen steps nothing is installed but one
hook on optimizers; behind the last one, what counts updates and hears where backward begins (`afterwards`).
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from lockstep.capture import setup
from lockstep.capture.afterwards import Afterwards, Owners, owners_of
from lockstep.capture.apart import StepsApart
from lockstep.capture.before_backward import end_process
from lockstep.capture.call_places import Place
from lockstep.capture.call_rows import CallRows
from lockstep.capture.calls import Calls
from lockstep.capture.compiled_code import CompiledCodeGate, untraced, wrap_compile
from lockstep.capture.configuration import Configuration
from lockstep.capture.environment import TRAINS, UNMATCHED, UNWRITTEN, leave_note
from lockstep.capture.gaps import gap_of
from lockstep.capture.held_modules import held_modules
from lockstep.capture.interception import Taps
from lockstep.capture.last_states import NamedModule
from lockstep.capture.live_modules import LivingModules, living
from lockstep.capture.loaders import Loaders, random_states
from lockstep.capture.loss_watch import LossWatch
from lockstep.capture.module_paths import ModuleNames
from lockstep.capture.optimizers import (
    Optimizers,
    names_in_groups,
    optimizer_name,
    plain_options,
)
from lockstep.capture.patches import Patch
from lockstep.capture.redacted_writer import RedactedWriter, redact, redaction_of_process
from lockstep.capture.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.source_lines import rows_around
from lockstep.capture.step_limit import StepLimit
from lockstep.capture.steps import End, Steps
from lockstep.capture.surroundings import has_parameters
from lockstep.capture.trainers import Trainers
from lockstep.capture.waiting import wait_until_written
from lockstep.capture.without_draws import without_draws
from lockstep.core.errors import CaptureError, LockstepError
from lockstep.core.manifest import (
    BEFORE_BACKWARD,
    END,
    OTHER_TRAININGS,
    Event,
    NotSeen,
    OptimizerSetup,
    Options,
    RankManifest,
    StepSummary,
)
from lockstep.core.secrets import masked
from lockstep.core.selection import SiteFilter, StepSelection, parse_ranks
from lockstep.core.text import message, with_texts, words_of
from lockstep.core.unmatched import UnmatchedNote
from lockstep.devices.emulation.mode import unmatched_operators
from lockstep.devices.tensor_numbers import copy_bytes, prepare_kernels
from lockstep.kernels.jit import say_before_compiling
from lockstep.store.claim import Claim
from lockstep.store.writer import RankWriter

_active: Recorder | None = None


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
    directory
        As given.
    began
        Whether a step was begun, so that there is a directory of this rank.
    other_rank
        Whether a step was left out because this rank was not asked for.
    optimizer_seen
        Whether an optimizer was made.
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
        self.directory = self._rank_directory = directory
        self.began = self.other_rank = self.optimizer_seen = False
        self._options = options
        self.steps = Steps(StepSelection.parse(options.steps))
        self._ranks = parse_ranks(options.ranks)
        self._sites = SiteFilter(tuple(options.only), tuple(options.skip))
        self._wait_for_optimizer = wait_for_optimizer
        self._model = model
        self._living = LivingModules()
        self._names = ModuleNames(self._living, model, lambda: self._optimizers.trained_now())
        self._calls = Calls(self, options.level, compile_eager=options.compile_eager)
        self.taps = self._calls.taps
        self._session: Session | None = None
        self._closing: RankWriter | None = None
        self._manifest: RankManifest | None = None
        self._optimizers: Optimizers = Optimizers(
            self, lambda tensor: self._names.owner_of(tensor) is not None
        )
        self._handles: list[Any] = []
        self._hooked: dict[int, int] = {}
        self._grouped: weakref.WeakKeyDictionary[Optimizer, list[list[str]]]
        self._grouped = weakref.WeakKeyDictionary()
        self._untraced: Callable[[torch.Tensor], None] | None = None
        self._hand_updated = self._is_known_to_train = False
        self._another_trains = self._stopped = False
        self._is_first_step = True
        self._beginning = threading.RLock()
        self._failure = ""
        self._kept: Callable[[str], str] = masked
        self._afterwards: Afterwards | None = None
        self._claim: Claim | None = None
        self._apart = StepsApart(directory, options)
        self._without_draws = without_draws(options)
        self._limit: StepLimit | None = None
        if options.max_steps is not None or options.ends_when_asked:
            asked_in = directory if options.ends_when_asked else None
            self._limit = StepLimit(options.max_steps, asked_in)
        self._loss_watch: LossWatch | None = None
        if options.until_losses_part:
            self.steps.choose(StepSelection.not_known_yet())
            self._loss_watch = LossWatch(directory, lambda: self.steps.number)
        self._began_s = time.time()
        self._loaders = Loaders(self.fail)
        self._configuration = Configuration(self.fail)
        self._patches = [
            self._loaders.patch,
            self._configuration.patch,
            Patch(
                torch,
                "compile",
                lambda original: wrap_compile(original, _taps_now, eager=options.compile_eager),
            ),
            *CompiledCodeGate(_taps_now).patches(),
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
    def records_apart(self) -> bool:
        """Whether each step is recorded apart, for an audit."""
        return self._options.apart

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
        for patch in self._patches:
            patch.put()
        if "torch._dynamo" in sys.modules:
            self._untraced = untraced(self._accumulated)
        self._optimizers.listen()
        self._living.listen()
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
        session = self._session
        writer = self._closing if session is None else session.writer
        if writer is not None:
            writer.save()

    def finish(self, *, interrupted: bool = False, ended_by: str = "") -> None:
        """Close the recording and wait until it is written; safe to call twice.

        `interrupted` tells that nobody asked for it, and `ended_by` what ends the process, "" where it ends by itself.
        """
        if self._manifest is not None:
            reached = self._limit is not None and self._limit.reached
            ended_by = setup.ended_behind(self._options) if reached else ended_by
            self._manifest.ended_by = BEFORE_BACKWARD if self._stopped else ended_by
        if self._manifest is not None and self.optimizer_seen and not self.steps.is_finished:
            self._manifest.trained = self.steps.number
        if self._loss_watch is not None and not self._failure:
            with self._failing_aloud():
                self._loss_watch.finish(self.steps.number)
        self._end(interrupted=interrupted)
        writer, self._closing = self._closing, None
        if writer is not None and self._manifest is not None:
            wait_until_written(writer)
            self._write_end(writer, self._manifest)
        self._forget_end()
        if self.began and (self._is_no_training or self._holds_nothing):
            self.began = False
            shutil.rmtree(self._rank_directory, ignore_errors=True)
        self._release()

    def _write_end(self, writer: RankWriter, manifest: RankManifest) -> None:
        """Add what the training became behind its recorded steps to a recording that was closed."""
        afterwards, why_not = self._afterwards, ""
        if afterwards is not None and not (self._options.exit_after or writer.failure):
            with Silence(self.fail):
                tables, why_not = afterwards.finish()
                why_not = writer.write_behind(tables) or why_not
            why_not = why_not or self._failure
        later = self._optimizers.count_no_more()
        if later is not None:
            manifest.trained = self.steps.number + later
        if why_not:
            manifest.not_seen.append(NotSeen(END, why_not))
        if later is not None or afterwards is not None:
            writer.amend(partial(setup.as_json, manifest, self._kept))

    def _forget_end(self) -> None:
        """Listen for nothing any more."""
        self._optimizers.count_no_more()
        if self._afterwards is not None:
            self._afterwards.forget()
            self._afterwards = None

    def _begin_afterwards(self, session: Session) -> None:
        """The last recorded step has ended: keep what comes."""
        if self._failure or session.writer.failure or self._options.apart:
            return
        with Silence(self.fail):
            self._states_kept().begin(*self._held_now())

    def _keep_first_states(self) -> None:
        """The first recorded step has ended, and more are to come."""
        if not (self._options.apart or self.steps.is_finished):
            self._states_kept().first(*self._held_now())

    def _states_kept(self) -> Afterwards:
        if self._afterwards is None:
            self._afterwards = Afterwards(
                self._options.save,
                lambda text: self._kept(text),
                lambda: self.steps.number + self._optimizers.counted_on,
                self._sites.wants,
            )
        return self._afterwards

    def _held_now(self) -> tuple[list[NamedModule], list[Optimizer], Owners]:
        """What the process holds: modules, optimizers, and what is known of names."""
        modules = held_modules(self._names, self._living, self._optimizers.trained_now())
        owners = owners_of(self._names.owners.values())
        return modules, self._optimizers.taking_part(), owners

    def _release(self) -> None:
        """Let go of this rank's directory."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None
        if self._limit is not None:
            self._limit.forget()

    @property
    def _is_no_training(self) -> bool:
        """Whether neither an optimizer was made nor a parameter updated, in a run that was to be watched for that."""
        return self._wait_for_optimizer and not (self.optimizer_seen or self._hand_updated)

    @property
    def _holds_nothing(self) -> bool:
        """Whether every step that began turned out to be none, as in a launcher that only makes what others train."""
        manifest = self._manifest
        if not self._wait_for_optimizer or manifest is None:
            return False
        return not (manifest.steps or manifest.stopped_because)

    @property
    def may_be_left(self) -> bool:
        """Whether a forked child may start anew: the threads that write tables here would not be there."""
        if self._closing is not None:
            return False
        writer = None if self._session is None else self._session.writer
        return writer is None or not (writer.bytes_written or writer.waiting_chunks)

    def _note_training(self) -> None:
        """Leave a note, once, that this process trains: killed now, it would leave more than an empty directory."""
        if self.is_of_command and self.began and not self._is_known_to_train:
            self._is_known_to_train = True
            leave_note(self.directory, TRAINS, self._rank_directory.name)

    def _end(self, *, interrupted: bool = False) -> None:
        """Stop recording; what is left is written while the training goes on."""
        if self.steps.is_finished:
            self._optimizers.stop()
            self.taps.remove()
            return
        if interrupted and self.steps.is_idle:
            self.set_aside()
        self.steps.finish()
        if self._limit is not None:
            self._limit.count_on(self.steps.number)
        if self.steps.is_open:
            updated = self._updated_by_hand()
            self._end_step(End.FINISHED, complete=updated or not interrupted)
        self._unhook_parameters()  # they would seem to lead back to what holds them
        if self._session is not None:
            self._begin_afterwards(self._session)
        self._disarm()
        if self._afterwards is not None:
            self._afterwards.listen()
        self._close_session()

    def abandon_in_child(self) -> None:
        """After a fork: forget everything the parent holds, write nothing."""
        self.steps.abandon()
        self._forget_end()
        self._disarm()
        self._session = self._closing = None
        self._release()

    def end_step_by_hand(self) -> None:
        """End the step, for loops without a torch optimizer."""
        if self.steps.take_word():
            self._updated_by_hand()
            self._end_and_advance(End.SAID)

    def forward_begins(self) -> None:
        """A forward begins behind a backward: where the script updated its parameters, the step has ended."""
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
        self._unhook_parameters()
        if self._loss_watch is not None:
            self._loss_watch.stop()
        if _active is self:
            _active = None
            for patch in self._patches:
                patch.take_back()
        self._names.forget()
        self._model = None

    def _close_session(self) -> None:
        if self._session is None or self._manifest is None:
            return
        writer, manifest = self._session.writer, self._manifest
        manifest.unmatched = self._unmatched()
        before = [self._closing] if self._closing is not None else []

        def last_manifest() -> dict[str, Any]:
            if before:  # steps that are recorded apart are closed, and so followed, in their order
                before.pop().wait()
            manifest.state = "complete"
            manifest.stopped_because = writer.failure or self._failure
            if manifest.stopped_because:
                self._say(
                    f"recording stopped: {manifest.stopped_because}", manifest.stopped_because
                )
            return setup.as_json(manifest, self._kept)

        if not (self._options.redact or self._options.apart):
            named = self._session.named_lines()
            writer.add_sources(partial(rows_around, named, self._began_s))
        self._session, self._closing = None, writer
        with Silence(
            self.fail
        ):  # whatever fails here, the writer is told to end: the process waits for it
            if self._afterwards is not None:
                for name, (table, rows) in self._afterwards.recorded().items():
                    writer.add_table(name, table, rows)
        writer.end(last_manifest)

    def _say(self, sentence: str, why: str) -> None:
        """Recording has failed: the user sees it here, and whoever started the command says it at the end."""
        warn(f"{sentence}; the training goes on")
        if self.is_of_command:
            leave_note(self.directory, UNWRITTEN, " ".join(why.split()))

    # --- steps ---------------------------------------------------------------------------------------------------

    def optimizer_created(self) -> None:
        """An optimizer was made: a training may begin."""
        if self.optimizer_seen and self.trainers.another_lives:
            return  # what is recorded goes on in another thread
        if not self.optimizer_seen and self.steps.is_uncertain:
            self.set_aside()
        self.optimizer_seen = True
        if self._loss_watch is not None:
            self._loss_watch.listen()
        self._note_training()
        self._install_if_chosen()

    def _install_if_chosen(self) -> None:
        if self.steps.is_chosen and not (self.steps.is_finished or self.other_rank):
            self.taps.install()

    @property
    def session(self) -> Session | None:
        """The session, while a step is open."""
        return self._session if self.steps.state.is_open and not self._failure else None

    @property
    def trainers(self) -> Trainers:
        """Tells the recorded training from those of other threads."""
        return self._optimizers.trainers

    def another_trains(self) -> None:
        """A thread trains something else than what is recorded: said once."""
        self._another_trains = True

    def begin(self) -> Session | None:
        """The training comes in sight: open the step if it is to be recorded."""
        with self._beginning:
            return self._begin()

    def _begin(self) -> Session | None:
        if not self.steps.may_begin:
            return self.session
        if not self.steps.is_chosen or self._is_other_rank() or _is_data_worker():
            return None
        session = self._session or self._open_session()
        if session is None or session.writer.failure or self._manifest is None:
            self._stop_early()
            return None
        self.steps.begin()
        self._calls.openings.results.forget()
        if not self._manifest.steps:
            setup.note_seed(self._manifest)
        self._manifest.steps.append(StepSummary(self.steps.number))
        with Silence(self.fail):
            self._manifest.random_states = self._manifest.random_states or random_states()
            self._loaders.note(self._manifest, self.steps.number)
            session.begin_step(self.steps.number)
            if self._model is not None and self._names.path_of(self._model) is None:
                session.adopt(self._model)
            self._hook_parameters()
        return self.session

    def may_train(self, module: torch.nn.Module) -> bool:
        """Whether a call of this module may be of a training: of one without an optimizer, only where it looks so."""
        if len(self._optimizers) or not self._wait_for_optimizer:
            return True
        return module.training and has_parameters(module)

    def stop_before_backward(self) -> None:
        """Nothing was learnt yet: the process ends here, where that was asked for."""
        if not self._options.before_backward or self._stopped:
            return
        self._stopped = True
        if self.session is not None:
            with Silence(self.fail):
                optimizers = self._optimizers.taking_part()
                if len(optimizers) == 1:  # of several nobody knows yet in which order they step
                    self.optimizer_called(optimizers[0], optimizer_name(optimizers[0]))
        end_process(self.directory)

    def set_aside(self) -> None:
        """What was recorded of this step may not be of it: it begins with what comes now, or later."""
        with self._beginning:
            session, manifest = self._session, self._manifest
            if not self.steps.is_uncertain or session is None or manifest is None:
                return
            self.steps.set_aside()
            with Silence(self.fail):
                session.set_aside()
            self._calls.openings.results.forget()
            manifest.steps.pop()

    def is_certain(self) -> None:
        """The step that is open is one: backward or an optimizer is at work."""
        self.steps.make_certain()
        self._note_training()
        if self._session is not None:
            self._session.is_certain()

    def _open_session(self) -> Session | None:
        rank, world_size = setup.rank_and_world_size()
        self._manifest = setup.rank_manifest(rank, world_size, self._options)
        new_writer: Callable[..., RankWriter] = RankWriter
        if self._options.redact:
            redaction = redaction_of_process(self.directory)
            redact(self._manifest, setup.module_files(), redaction)
            self._kept, new_writer = redaction.text, partial(RedactedWriter, redaction)
        try:
            directory = setup.claim_rank_directory(self.directory, self._manifest)
        except OSError as error:
            why = f"{error.strerror}: {self.directory}"
            self._say(f"{why}; nothing is recorded", why)
            return None
        self.began, self._rank_directory = True, directory
        if self._options.apart:
            self._apart.begin(directory)
        with suppress(LockstepError, OSError):  # somebody looks whether it is free
            self._claim = Claim(directory)
        if self.optimizer_seen:
            self._note_training()
        writer = new_writer(
            directory,
            memory_bytes=self._options.memory_bytes,
            max_bytes=self._options.max_bytes,
            copy=copy_bytes,
        )
        self._session = Session(
            writer,
            save=self._options.save,
            sites=self._sites,
            names=self._names,
            operators=self._options.level != "module",
            below_nodes=self._options.level == "aten",
            parameter_name=self._optimizers.parameter_name,
            watch_parameters=self._hook_parameters,
            trained=self._optimizers.identities,
            idle=self._optimizers.idle_identities,
            fail=self.fail,
            border=CallRows.run_within.__code__,
            out_of_sight=self._calls.out_of_sight,
            optimizer_state=self._options.optimizer_state,
        )
        return self._session

    def path_of(self, session: Session, module: torch.nn.Module, place: Place | None) -> str:
        """Path of a module; its tree is recorded where it is met for the first time."""
        path = self._names.path_of(module)
        if path is None:
            if place is not None and place.module is not None:
                session.adopt_child(module, place.module, place.path)
            else:
                session.adopt(module)
            self._hook_parameters()
            path = self._names.path_of(module) or ""
        return path

    def _unhook_parameters(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()

    def _hook_parameters(self, new: Sequence[torch.Tensor] | None = None) -> None:
        """Listen to the gradients of `new` parameters, or of all that have none of our hooks yet."""
        hook = self._accumulated if self._untraced is None else self._untraced
        if new is None:
            new = [tensor for tensor, _, _ in list(self._names.owners.values())]
        for tensor in new:
            # Not by a weak reference to it, which would forbid to swap what is inside of it.
            hooks = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
            if self._hooked.get(id(tensor)) not in hooks and _takes_gradient(tensor):
                handle = tensor.register_post_accumulate_grad_hook(hook)
                self._hooked[id(tensor)] = handle.id
                self._handles.append(handle)

    def _end_and_advance(self, by: End) -> None:
        """A step has ended, recorded or not: the next one comes."""
        if self.steps.is_open:
            self._end_step(by, complete=True)
        else:
            self.steps.end(by)
        if not self.steps.is_finished:
            self._advance()

    def _end_step(self, by: End, *, complete: bool) -> None:
        session, manifest = self._session, self._manifest
        self.steps.end(by)
        self._optimizers.forget_stepped()
        self._calls.places.leave_all()
        if session is None or manifest is None:
            return
        summary = manifest.steps[-1]
        summary.complete = complete and not (self._failure or session.writer.failure)
        summary.calls = session.call_count
        with Silence(self.fail):
            session.end_step()
            self._note_parameters(manifest)
            if not (manifest.configuration or self._options.redact):
                manifest.configuration = self._configuration.noted()
            if len(manifest.steps) == 1 and self.steps.selection.any_from(summary.index + 1):
                self._keep_first_states()
            if self._another_trains:
                thread = threading.current_thread().name
                reason = f"one is recorded of each process: that of {thread}, which came first"
                session.note_gap(NotSeen(OTHER_TRAININGS, reason))
            for gap in self._without_draws.gaps() if self._without_draws is not None else ():
                session.note_gap(gap)
            if self._is_first_step and summary.complete and self.is_of_command:
                self._note_unmatched(summary.index)
        manifest.events, manifest.not_seen = session.events, session.not_seen
        manifest.wrappers = session.wrappers
        session.writer.step_ended(
            summary.index, partial(setup.as_json, setup.copy_of(manifest), self._kept)
        )
        if self._options.apart:
            self._close_session()
            self._release()
            self._grouped.clear()

    def _note_unmatched(self, step: int) -> None:
        """The first recorded step has ended: whoever started the command can say at once what was mistyped."""
        self._is_first_step = False
        patterns = self._unmatched()
        if patterns:
            world = range(setup.rank_and_world_size()[1])
            count = len(world) if self._ranks is None else len(self._ranks & set(world))
            leave_note(self.directory, UNMATCHED, UnmatchedNote(step, count, patterns).as_text())

    def _unmatched(self) -> dict[str, list[str]]:
        """Patterns that nothing has matched so far, with the nearest names."""
        return self._sites.unmatched() | unmatched_operators()

    def _note_parameters(self, manifest: RankManifest) -> None:
        """Add how the parameters that were met for the first time are set up."""
        trainable = self._names.trainable()
        if len(trainable) > len(manifest.trainable):
            manifest.trainable = {**trainable, **manifest.trainable}
            manifest.tied = self._names.tied()

    def _advance(self) -> None:
        if self._loss_watch is not None:
            self._hear_losses(self._loss_watch)
        self.steps.next()
        if self._limit is not None:
            self._go_elsewhere(self._limit)
        if self._options.apart:
            closing = self._closing
            self._apart.step_ended(writing=closing is not None and not closing.wait(0.0))
            if self.steps.is_chosen and not self._apart.has_room():
                self.steps.wait()
        if self._failure or (self._session is not None and self._session.writer.failure):
            self._stop_early()
        elif not self.steps.any_to_come:
            self._end()
            if self._closing is not None:
                self._optimizers.count_on()
            if self._options.exit_after:
                raise SystemExit(0)
        elif not self.steps.is_chosen:
            self.taps.remove()
        elif not self.taps.installed:  # in the midst of a call, a mode that is on does not show
            self._install_if_chosen()
        if self._limit is not None and self._limit.ends_behind(self.steps.number):
            self._end()
            self._limit.end()

    def _go_elsewhere(self, limit: StepLimit) -> None:
        """The step that begins now may be the last by request, with some sites whole and in another recording."""
        if self._session is not None and not self.steps.any_to_come:
            limit.wait_for_word()
        asked = limit.asked_elsewhere(self.steps.number)
        if asked is None:
            return
        if self._manifest is not None:
            self._manifest.trained = self.steps.number
            self._manifest.ended_by = setup.ended_behind(self._options)
            reason = "whoever follows it had the step behind recorded elsewhere"
            self._manifest.not_seen.append(NotSeen(END, reason))
        self._close_session()
        self._release()
        self._forget_end()
        self._grouped.clear()
        self._limit = None
        self.steps.choose(StepSelection.of(self.steps.number))
        self._sites = SiteFilter(asked.whole)
        self.directory = self._rank_directory = Path(asked.into)
        self._options = replace(
            self._options, save="tensors", only=list(asked.whole), skip=[], exit_after=True
        )

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
            self._say(f"losses are not heard any more: {self._failure}", self._failure)

    def _stop_early(self) -> None:
        if not self.steps.is_finished:
            self._end(interrupted=True)

    def _is_other_rank(self) -> bool:
        """Whether this rank was not asked for; it still counts steps where it has to end with the others."""
        if self._ranks is not None and not self.began and not self.other_rank:
            self.other_rank = setup.rank_and_world_size()[0] not in self._ranks
            if self.other_rank and (self._options.exit_after or self._limit is not None):
                self.taps.remove()
            elif self.other_rank:
                self._end()
        return self.other_rank

    def note_once(self, what: str, reason: str) -> None:
        """Something is not seen."""
        if self._session is not None:
            self._session.note_gap(NotSeen(what, reason))

    def note_autocast(self) -> None:
        """A call runs under autocast."""
        if self._manifest is not None:
            setup.note_autocast(self._manifest)

    def fail(self, error: Exception) -> None:
        """The recorder's own work failed: stop recording, let the training go on."""
        if not self._failure:
            at = traceback.extract_tb(error.__traceback__)[-1:]
            where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in at)
            self._failure = f"{type(error).__name__}: {words_of(error)}{where}"

    # --- gradients and optimizers --------------------------------------------------------------------------------

    def _accumulated(self, parameter: torch.Tensor) -> None:
        session = self.session
        if session is not None:
            if self.taps.in_compiled_code:
                self.note_once(
                    "the loss of a backward inside of compiled code",
                    "compiled: only the parameters' gradients are recorded",
                )
            with Silence(self.fail):
                session.accumulated(parameter)

    @property
    def in_optimizer(self) -> bool:
        """Whether an optimizer is at work."""
        return self._optimizers.at_work

    @property
    def optimizer_has_closure(self) -> bool:
        """Whether that optimizer calls the model itself."""
        return self._optimizers.has_closure

    def compiler_loaded(self) -> None:
        """Something was compiled: hooks must not be traced."""
        self._optimizers.compiler_loaded()
        if self._untraced is None and not self.steps.is_finished:
            self._untraced = untraced(self._accumulated)
            self._unhook_parameters()
            if self._session is not None:
                self._hook_parameters()

    def optimizers_stepped(self, by: End) -> None:
        """The step has ended."""
        self.optimizer_seen = True
        self._end_and_advance(by)

    def update_skipped(self) -> None:
        """A gradient scaler found an overflow: the step has no effect, or no update at all."""
        session = self.session
        if session is not None and self._manifest is not None:
            detail = "the gradient scaler found inf or NaN"
            session.events.append(Event("skipped_step", self.steps.number, detail))
            self._manifest.steps[-1].skipped = True

    def loss_scaled(self, factor: float) -> None:
        """The factor that a gradient scaler has put into the loss of this step."""
        if self._manifest is not None:
            self._manifest.steps[-1].loss_scale = factor

    def optimizer_called(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        """An optimizer begins a step that is recorded: note its hyper-parameters."""
        self.optimizer_seen = True
        if self._manifest is None:
            return
        if self.taps.in_compiled_code:
            reason = "compiled: its graph breaks where recording listens to it, before and after"
            self.note_once(f"inside of {name}.step", reason)
        if self._session is not None:
            self._session.note_gap(gap_of(optimizer))
        groups = [with_texts(plain_options(group), self._kept) for group in optimizer.param_groups]
        number = len(
            {item.index for item in self._manifest.optimizers if item.step == self.steps.number}
        )
        noted = OptimizerSetup(number, self.steps.number, name, groups)
        names = names_in_groups(optimizer, self._names)
        if names != self._grouped.get(optimizer):
            self._grouped[optimizer] = noted.parameters = names
        self._manifest.optimizers.append(noted)
        setup.note_run_state(self._manifest)


def warn(sentence: str) -> None:
    """Say what the user should know, beside what the training prints."""
    sys.stderr.write(f"lockstep: {message(sentence)}\n")


def active_recorder() -> Recorder | None:
    """The recorder at work in this process, if any."""
    return _active


def _taps_now() -> Taps | None:
    return None if _active is None else _active.taps


def _takes_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf


def _is_data_worker() -> bool:
    return torch.utils.data.get_worker_info() is not None
