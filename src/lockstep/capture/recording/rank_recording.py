"""The recording of a process's rank: its directory, manifest and session, and the step that is open in it."""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import polars as pl
import torch

from lockstep.capture.calls.unseen_work import OutOfSight
from lockstep.capture.modules.module_paths import ModuleNames
from lockstep.capture.modules.parameter_hooks import ParameterHooks
from lockstep.capture.process.environment import TRAINS, UNWRITTEN, leave_note
from lockstep.capture.process.first_numbers import before_first_numbers
from lockstep.capture.recording.apart import StepsApart
from lockstep.capture.recording.rank_directories import as_json, claim_rank_directory, copy_of
from lockstep.capture.recording.redacted_writer import RedactedWriter, redact, redaction_of_process
from lockstep.capture.rows.held_rows import TopResults
from lockstep.capture.rows.session import Session
from lockstep.capture.settings import setup
from lockstep.capture.settings.loaders import Loaders, random_states
from lockstep.capture.silence import Silence
from lockstep.capture.source_code.source_lines import rows_around
from lockstep.capture.source_code.user_code import module_files
from lockstep.capture.steps import Steps
from lockstep.capture.tensors.whole_sources import WholeSources
from lockstep.capture.updates.optimizers import Optimizers
from lockstep.capture.user_notes import warn
from lockstep.core.errors import LockstepError
from lockstep.core.manifest import NotSeen, Options, RankManifest, StepSummary
from lockstep.core.secrets import masked
from lockstep.core.selection import SiteFilter
from lockstep.core.text import words_of
from lockstep.devices.emulation.mode import unmatched_operators
from lockstep.devices.tensor_numbers import copy_bytes
from lockstep.store.claim import Claim
from lockstep.store.encoding import Row
from lockstep.store.writer import RankWriter

Tables = dict[str, tuple[pl.Schema, list[Row]]]
"""Tables beside those of the calls, by their names: columns and rows."""


class RankRecording:
    """Opens the recording of a rank when its first step begins, and the steps in it.

    directory: The recording; the rank's part is made inside.
    options: What to record.
    model: The model whose paths are plain, where the caller has it at hand.
    steps: What is known of the step that is open, or comes next.
    names: Names of modules and parameters.
    optimizers: The optimizers of the process.
    hooks: What listens to parameters' gradients.
    is_of_command: Whether `lockstep record` began it, rather than the script.
    border: See `capture.source_code.stacks.Stacks`.
    is_wanted: Whether a step may be recorded in this process.
    stop: Is told that nothing more can be written.

    began: Whether a step was begun, so that there is a directory of this rank.
    optimizer_seen: Whether an optimizer was made.
    manifest: What is told of the rank, once a step has begun.
    written: The session, in a step or between two; None before the first and behind the last.
    closing: The writer of the session before, which may still be at work.
    failure: Why nothing is recorded any more, "" where all is well.
    results: What is left of what the open step has computed before its first backward.
    out_of_sight: What the model has computed where no step was open.
    hear_begin: Is told the number of a step that begins, before its first call runs.
    told_tokens: What `lockstep.tokens` said of the next call of the model; empty where it said nothing.
    """

    def __init__(
        self,
        directory: Path,
        options: Options,
        *,
        model: torch.nn.Module | None,
        steps: Steps,
        names: ModuleNames,
        optimizers: Optimizers,
        hooks: ParameterHooks,
        is_of_command: bool,
        border: CodeType,
        is_wanted: Callable[[], bool],
        stop: Callable[[], None],
    ) -> None:
        self.directory = self.rank_directory = directory
        self.options = options
        self.model = model
        self.sites = SiteFilter(tuple(options.only), tuple(options.skip))
        self.began = self.optimizer_seen = False
        self.manifest: RankManifest | None = None
        self.written: Session | None = None
        self.closing: RankWriter | None = None
        self.failure = ""
        self.kept: Callable[[str], str] = masked
        self.results = TopResults()
        self.told_tokens: Mapping[str, torch.Tensor] = {}
        self.out_of_sight = OutOfSight()
        self.loaders = Loaders(self.fail)
        self.apart = StepsApart(directory, options)
        self.steps = steps
        self.names = names
        self._optimizers = optimizers
        self._hooks = hooks
        self._is_of_command = is_of_command
        self._border = border
        self._is_wanted, self._stop = is_wanted, stop
        self.hear_begin: Callable[[int], None] = lambda _step: None
        self._claim: Claim | None = None
        self._is_known_to_train = False
        self._beginning = threading.RLock()
        self._opened_by: int | None = None
        self._began_s = time.time()

    # --- the step that is open ------------------------------------------------------------------

    @property
    def session(self) -> Session | None:
        """The session, while a step is open; waited for, where another thread opens one now."""
        if self._opened_by not in (None, threading.get_ident()):
            with self._beginning:
                pass
        return self.written if self.steps.state.is_open and not self.failure else None

    def begin(self, *, by_module: bool = False) -> Session | None:
        """The training comes in sight, with the call of a module or without: open the step if it is to be recorded."""
        with self._beginning:
            before_first_numbers()
            self._opened_by = threading.get_ident()
            try:
                self._begin()
                if by_module:
                    self.steps.module_called()
            finally:
                self._opened_by = None
        return self.session

    def _begin(self) -> None:
        if not self.steps.may_begin:
            return
        if not (self.steps.is_chosen and self._is_wanted()):
            return
        session = self.written or self._open()
        manifest = self.manifest
        if session is None or session.writer.failure or manifest is None:
            self._stop()
            return
        self.steps.begin()
        self.results.forget()
        if not manifest.steps:
            setup.note_seed(manifest)
        reads = None if self.options.level == "module" else 0
        manifest.steps.append(
            StepSummary(
                self.steps.number, autograd_grad_calls=0, create_graph_calls=0,
                float_reads=reads, float_reads_after_backward=reads, decision_reads=reads,
            )
        )  # fmt: skip
        with Silence(self.fail):
            self.hear_begin(self.steps.number)
            manifest.random_states = random_states() | manifest.random_states
            self.loaders.note(manifest, self.steps.number)
            session.begin_step(self.steps.number)
            if self.model is not None and self.names.path_of(self.model) is None:
                session.parameters.adopt(self.model)
            self._hooks.put()

    def set_aside(self) -> None:
        """Set aside the rows of this step: it may begin with the next call, or later."""
        with self._beginning:
            session, manifest = self.written, self.manifest
            if not self.steps.is_uncertain or session is None or manifest is None:
                return
            self.steps.set_aside()
            with Silence(self.fail):
                session.set_aside()
            self.results.forget()
            manifest.steps.pop()

    def is_certain(self) -> None:
        """The step that is open is one: backward or an optimizer is at work."""
        self.steps.make_certain()
        self.note_training()
        if self.written is not None:
            self.written.is_certain()

    # --- opening and closing --------------------------------------------------------------------

    def _open(self) -> Session | None:
        rank, world_size = setup.rank_and_world_size()
        options = self.options
        self.manifest = setup.rank_manifest(rank, world_size, options)
        new_writer: Callable[..., RankWriter] = RankWriter
        if options.redact:
            redaction = redaction_of_process(self.directory)
            redact(self.manifest, module_files(), redaction)
            self.kept, new_writer = redaction.text, partial(RedactedWriter, redaction)
        try:
            directory = claim_rank_directory(self.directory, self.manifest)
        except OSError as error:
            why = f"{error.strerror}: {self.directory}"
            self.say(f"{why}; nothing is recorded", why)
            return None
        self.began, self.rank_directory = True, directory
        if options.apart:
            self.apart.begin(directory)
        with suppress(LockstepError, OSError):  # somebody looks whether it is free
            self._claim = Claim(directory)
        if self.optimizer_seen:
            self.note_training()
        self.written = self._session(
            new_writer(
                directory,
                memory_bytes=options.memory_bytes,
                max_bytes=options.max_bytes,
                copy=copy_bytes,
            )
        )
        return self.written

    def _session(self, writer: RankWriter) -> Session:
        options, sources = self.options, None
        if options.save == "program":
            sources = WholeSources(options.whole_bytes, batches=not options.redact)
        return Session(
            writer,
            save=self.options.save,
            sites=self.sites,
            names=self.names,
            operators=self.options.level != "module",
            below_nodes=self.options.level == "aten",
            parameter_name=self._optimizers.parameter_name,
            watch_parameters=self._hooks.put,
            trained=self._optimizers.identities,
            idle=self._optimizers.idle_identities,
            fail=self.fail,
            border=self._border,
            out_of_sight=self.out_of_sight,
            optimizer_state=self.options.optimizer_state,
            sketch_parameters=self.options.sketch_parameters,
            for_rules=self.options.apart and self.options.save == "stats",
            finite_alone=self.options.finite_alone and self.options.save == "stats",
            sources=sources,
        )

    def close(self, behind: Callable[[], Tables]) -> None:
        """Close the session; the rest is written while the training goes on. `behind` gives tables to add."""
        if self.written is None or self.manifest is None:
            return
        writer, manifest = self.written.writer, self.manifest
        manifest.unmatched = self.unmatched()
        before = [self.closing] if self.closing is not None else []

        def last_manifest() -> dict[str, Any]:
            if before:  # steps that are recorded apart are closed, and so followed, in their order
                before.pop().wait()
            manifest.state = "complete"
            manifest.stopped_because = writer.failure or self.failure
            if manifest.stopped_because:
                self.say(f"recording stopped: {manifest.stopped_because}", manifest.stopped_because)
            return as_json(manifest, self.kept)

        if not (self.options.redact or self.options.apart):
            named = self.written.rows.named_lines()
            writer.add_sources(partial(rows_around, named, self._began_s))
        self.written, self.closing = None, writer
        # Whatever fails here, the writer is told to end: the process waits for it.
        with Silence(self.fail):
            for name, (table, rows) in behind().items():
                writer.add_table(name, table, rows)
        writer.end(last_manifest)

    def step_written(self, step: int) -> None:
        """A step has ended: all of it is to be written, with what the manifest says by now."""
        if self.written is not None and self.manifest is not None:
            manifest = partial(as_json, copy_of(self.manifest), self.kept)
            self.written.writer.step_ended(step, manifest)

    def save(self) -> None:
        """Write what there is by now, and wait for it; from any thread."""
        session = self.written
        writer = self.closing if session is None else session.writer
        if writer is not None:
            writer.save()

    def release(self) -> None:
        """Let go of this rank's directory."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def abandon(self) -> None:
        """After a fork: all of it is the parent's."""
        self.written = self.closing = None
        self.release()

    def discard(self) -> None:
        """Remove the recording, because it holds no training."""
        self.began = False
        shutil.rmtree(self.rank_directory, ignore_errors=True)

    def move(self, into: Path, whole: tuple[str, ...]) -> None:
        """Record on in a directory that is made already, the tensors of some sites whole."""
        self.sites = SiteFilter(whole)
        self.directory = self.rank_directory = into
        self.options = replace(
            self.options, save="tensors", only=list(whole), skip=[], exit_after=True
        )

    @property
    def may_be_left(self) -> bool:
        """Whether a forked child may start anew: the threads that write tables here would not be there."""
        if self.closing is not None:
            return False
        writer = None if self.written is None else self.written.writer
        return writer is None or not (writer.bytes_written or writer.waiting_chunks)

    @property
    def holds_nothing(self) -> bool:
        """Whether every step that began turned out to be none, as in a launcher that only makes what others train."""
        manifest = self.manifest
        if not self._is_of_command or manifest is None:
            return False
        return not (manifest.steps or manifest.stopped_because)

    # --- notes ----------------------------------------------------------------------------------

    def note_training(self) -> None:
        """Leave a note, once, that this process trains: killed now, it would leave more than an empty directory."""
        if self._is_of_command and self.began and not self._is_known_to_train:
            self._is_known_to_train = True
            leave_note(self.directory, TRAINS, self.rank_directory.name)

    def note_once(self, what: str, reason: str) -> None:
        """Something is not seen."""
        if self.written is not None:
            self.written.gaps.add(NotSeen(what, reason))

    def note_autocast(self) -> None:
        """A call runs under autocast."""
        if self.manifest is not None:
            setup.note_autocast(self.manifest)

    def note_parameters(self) -> None:
        """Add how the parameters that were met for the first time are set up."""
        trainable = self.names.trainable()
        if self.manifest is not None and len(trainable) > len(self.manifest.trainable):
            self.manifest.trainable = {**trainable, **self.manifest.trainable}
            self.manifest.tied = self.names.tied()

    def unmatched(self) -> dict[str, list[str]]:
        """Patterns that nothing has matched so far, with the nearest names."""
        return self.sites.unmatched() | unmatched_operators()

    def fail(self, error: Exception) -> None:
        """The recorder's own work failed: stop recording, let the training go on."""
        if not self.failure:
            at = traceback.extract_tb(error.__traceback__)[-1:]
            where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in at)
            self.failure = f"{type(error).__name__}: {words_of(error)}{where}"

    def say(self, sentence: str, why: str) -> None:
        """Recording has failed: the user sees it here, and whoever started the command says it at the end."""
        warn(f"{sentence}; the training goes on")
        if self._is_of_command:
            leave_note(self.directory, UNWRITTEN, " ".join(why.split()))
