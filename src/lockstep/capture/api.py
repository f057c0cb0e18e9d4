"""Recording from inside a script: `with lockstep.record("ref", model=model): ...`."""

from __future__ import annotations

import atexit
import builtins
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Literal

import torch

from lockstep.capture.process.process_ends import Endings, named, uncaught
from lockstep.capture.recorder import Recorder, active_recorder
from lockstep.capture.settings.setup import seed_everything
from lockstep.capture.user_notes import warn
from lockstep.core.arguments import (
    LEAST_MEMORY_BYTES,
    MOST_SEED,
    choice_of,
    integer_of,
    path_of,
    patterns_of,
    truth_of,
)
from lockstep.core.errors import CaptureError, LockstepError, OutputExistsError, UsageError
from lockstep.core.manifest import MEMORY_BYTES, WHOLE_BYTES, Options
from lockstep.core.selection import LEVELS, SAVES, StepSelection, parse_ranks
from lockstep.core.sizes import bytes_of
from lockstep.core.windows import Windows
from lockstep.devices.emulation.mode import Emulation
from lockstep.devices.emulation.profiles import device_of, parse_profile
from lockstep.store.directory import RunDirectory
from lockstep.store.kept_windows import kept_windows
from lockstep.store.reader import open_recording

_FIRST_STEPS = Options().steps


class Recording:
    """A recording in the making; use it as a context manager, or by `start`, `step` and `stop`.

    `record` makes one.

    Parameters
    ----------
    path
        Where to.
    options
        What is recorded.
    model
        The model whose module paths are to be plain; found by itself where left out.
    force
        Whether a recording that is there is replaced.
    """

    def __init__(
        self, path: Path, options: Options, *, model: torch.nn.Module | None, force: bool
    ) -> None:
        self.path = path.absolute()
        self._options = options
        self._emulation: Emulation | None = None
        self._model = model
        self._force = force
        self._run: RunDirectory | None = None
        self._recorder: Recorder | None = None
        self._joined: Recorder | None = None
        self._endings = Endings(self._close_before_end, self._save)

    def start(self) -> None:
        """Begin to record; the first step begins at once.

        Where `lockstep record` records the whole process, that goes on and nothing is written here: what this was asked
        to do to the training (`seed`, `emulate`) is done, and `step` ends the steps of that recording.

        Raises
        ------
        CaptureError
            If a recording that the script began is running already.
        """
        outer = active_recorder()
        if (outer is not None and not outer.is_of_command) or self._is_running:
            raise CaptureError(
                "a recording is already running in this process; stop it before starting another"
            )
        if outer is None:
            self._run = self._create()
        if self._options.seed is not None:
            seed_everything(self._options.seed)
        device = device_of(self._options)
        if device:
            self._emulation = Emulation(device, training_only=True)
            self._emulation.start()
        if outer is None:
            self._arm()
        else:
            self._joined = outer
            warn(
                f"nothing is written to {self.path}: `lockstep record` records this process already"
            )
        _running.append(self)
        self._endings.listen()
        atexit.register(self._close_at_exit)

    @property
    def _is_running(self) -> bool:
        return self._recorder is not None or self._joined is not None

    def _arm(self) -> None:
        self._recorder = Recorder(
            self.path, self._options, model=self._model, wait_for_optimizer=False
        )
        try:
            self._recorder.arm()
        except BaseException:
            self._close(interrupted=True)
            raise

    def step(self) -> None:
        """End the current step by hand, for loops whose optimizer is not a `torch.optim.Optimizer`.

        Where an optimizer has just ended the step this does nothing.
        """
        recorder = self._recorder or self._joined
        if recorder is not None:
            recorder.end_step_by_hand()

    def stop(self) -> None:
        """Stop recording and close the files."""
        self._close(interrupted=False)

    def __enter__(self) -> Recording:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(interrupted=kind is not None, ended_by=named(value))

    def _close_at_exit(self) -> None:
        self._close(interrupted=True, ended_by=uncaught())

    def _close_before_end(self, ended_by: str) -> None:
        self._close(interrupted=True, ended_by=ended_by)

    def _save(self) -> None:
        if self._recorder is not None:
            self._recorder.save()

    def _close(self, *, interrupted: bool, ended_by: str = "") -> None:
        atexit.unregister(self._close_at_exit)
        self._endings.stop()
        _running.clear()
        if self._recorder is not None:
            self._recorder.finish(interrupted=interrupted, ended_by=ended_by)
        if self._emulation is not None:
            self._emulation.stop()
        if self._run is not None:
            self._run.finish(exit_code=None)
        self._recorder = self._joined = self._run = self._emulation = None

    def _abandon(self) -> None:
        """After a fork: the recording is the parent's."""
        atexit.unregister(self._close_at_exit)
        self._endings.stop()
        if self._recorder is not None:
            self._recorder.abandon_in_child()
        if self._run is not None:
            self._run.release()
        self._recorder = self._joined = self._run = None

    def _create(self) -> RunDirectory | None:
        """Make the directory, or wait for the rank that makes it; None in the other ranks.

        The ranks of a training share one recording. They agree on who makes it through the store
        of their process group, without a collective operation: a script may well record in one
        rank only.
        """
        if not _shared_by_ranks():
            return self._make()
        store = torch.distributed.distributed_c10d._get_default_store()
        _starts[self.path] += 1
        key = f"lockstep/{self.path}/{_starts[self.path]}"
        if store.add(f"{key}/claims", 1) > 1:
            problem = store.get(f"{key}/made").decode()
            if problem:
                raise OutputExistsError(problem)
            return None
        try:
            run = self._make()
        except LockstepError as error:
            store.set(f"{key}/made", str(error))
            raise
        store.set(f"{key}/made", "")
        return run

    def _make(self) -> RunDirectory:
        run = RunDirectory.create(self.path, _command(), self._options, force=self._force)
        run.started()
        return run


def _command() -> list[str]:
    """The words that this process's script was started with; of cells of IPython, as a notebook's, none.

    There `sys.argv` names the program that runs the cells.
    """
    of_a_file = hasattr(sys.modules.get("__main__"), "__file__")
    return [""] if hasattr(builtins, "__IPYTHON__") and not of_a_file else list(sys.argv)


def record(
    directory: str | os.PathLike[str],
    *,
    model: torch.nn.Module | None = None,
    steps: str = _FIRST_STEPS,
    windows: str = "",
    start_from: str | os.PathLike[str] = "",
    inputs_of: str | os.PathLike[str] = "",
    level: Literal["module", "api", "aten"] = "api",
    save: Literal["stats", "sketch", "program", "tensors"] = "program",
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    ranks: str = "",
    max_bytes: int | str | None = None,
    memory_bytes: int | str = MEMORY_BYTES,
    seed: int | None = None,
    emulate: str | None = "",
    calibrate: bool = False,
    compile_eager: bool = False,
    redact: bool = False,
    whole_bytes: int | str = WHOLE_BYTES,
    step_log: bool = True,
    force: bool = False,
) -> Recording:
    """Describe a recording of the training in this process; a `with` block around the training makes it.

    Parameters
    ----------
    directory
        Where to; must not exist yet unless `force`.
    model
        The model whose module paths are to be plain; found by itself where left out.
    steps
        Which steps, as on the command line: `"0:2"` is the first two, `"2"` is step 2 alone, `"10,20"` two of them.
    windows
        In its place: ranges such as `"0:2,1000:1002"`, or `"every=1000"`; the whole state of the training is kept
        at the start of each.
    start_from
        In the place of both: a recording with windows. They are recorded, and its state is set at the start of each.
    inputs_of
        A recording with whole tensors. Each module gets its inputs, so that each is judged by itself.
    level
        How deep to look.
    save
        What to keep of a tensor.
    only, skip
        Shell patterns on module paths and operators.
    ranks
        Ranks to record, e.g. "0"; all of them by default.
    max_bytes
        Stop recording at this size on disk: bytes, or a text such as "8GB".
    memory_bytes
        Memory that recording may take, written in the same way; if it is full, the training waits for the disk.
    seed
        Fix all random numbers and ask for deterministic algorithms; nothing is touched where None.
    emulate
        Compute as another device would while this records, "npu-fp16" say; `lockstep record --emulate help` lists the
        names.
    calibrate
        Round every result at random while this records: a recording for `compare --calibration`.
    compile_eager
        Run what `torch.compile` captures while this records operator by operator, so that it is seen.
    redact
        Keep no path, no name of user or host, and no command: for a recording that others get.
    whole_bytes
        With `save="program"`, keep so many bytes of whole tensors of each rank; sketches of the rest.
    step_log
        Keep a small row of each step of the training, recorded or not.
    force
        Replace a recording that is there.

    Returns
    -------
    Recording
        Not begun: enter it, or call its `start`, `step` and `stop`.

    Raises
    ------
    UsageError
        If an argument is wrong; `start` raises OutputExistsError if the directory is taken.

    Examples
    --------
    >>> with record("ref", model=model, steps="0:2"):                 # doctest: +SKIP
    ...     train(model)
    """
    if (steps != _FIRST_STEPS) + bool(windows) + bool(start_from) > 1:
        raise UsageError(
            "steps, windows and start_from each say which steps are recorded; give one"
        )
    source = path_of("start_from", start_from).absolute() if start_from else None
    chosen = Windows.parse(windows) if windows else None
    if source is not None:
        chosen = kept_windows(open_recording(source))
    steps = chosen.steps if chosen is not None else steps
    StepSelection.parse(steps)
    parse_ranks(ranks)
    if model is not None and not isinstance(model, torch.nn.Module):
        raise UsageError(
            f"model is {model!r:.40}, of type {type(model).__name__}; give the torch.nn.Module itself, or leave it out"
        )
    options = Options(
        steps=steps,
        ranks=ranks,
        level=choice_of("level", level, LEVELS),
        save=choice_of("save", save, SAVES),
        only=patterns_of("only", only),
        skip=patterns_of("skip", skip),
        max_bytes=None if max_bytes is None else bytes_of("max_bytes", max_bytes),
        seed=None if seed is None else integer_of("seed", seed, least=0, most=MOST_SEED),
        emulate=emulate or "",
        calibrate=truth_of("calibrate", calibrate),
        memory_bytes=bytes_of("memory_bytes", memory_bytes, least=LEAST_MEMORY_BYTES),
        compile_eager=truth_of("compile_eager", compile_eager),
        redact=truth_of("redact", redact),
        whole_bytes=bytes_of("whole_bytes", whole_bytes),
        states_at="" if chosen is None else chosen.starts,
        set_from="" if source is None else str(source),
        step_log=truth_of("step_log", step_log),
        inputs_of=str(path_of("inputs_of", inputs_of).absolute()) if inputs_of else "",
    )
    device = device_of(options)
    if device:
        parse_profile(device)
    return Recording(
        path_of("directory", directory), options, model=model, force=truth_of("force", force)
    )


def _after_fork() -> None:
    for recording in _running:
        recording._abandon()
    _running.clear()


_running: list[Recording] = []
_starts: Counter[Path] = Counter()
os.register_at_fork(after_in_child=_after_fork)


def _shared_by_ranks() -> bool:
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )
