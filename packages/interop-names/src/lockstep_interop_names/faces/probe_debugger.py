"""`PrecisionDebugger` of mindstudio-probe: each start to stop is recorded, and the dump of its step written of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.recorder import rank_and_world_size, warn
from lockstep.recordings import RankRecording
from lockstep_interop_names.faces.api_calls import ApiNumbers, passes_of
from lockstep_interop_names.faces.dump_choice import DumpChoice
from lockstep_interop_names.faces.overflows import entered_sentence, overflow_words, overflows_in
from lockstep_interop_names.faces.probe_config import ProbeConfig, probe_config
from lockstep_interop_names.faces.probe_files import ProbeFiles
from lockstep_interop_names.faces.told import told
from lockstep_interop_names.faces.window import Window

RECORDING = "recording"


class Debugger:
    """One process's debugger; the class that scripts know passes its calls on."""

    def __init__(self) -> None:
        self._config: ProbeConfig | None = None
        self._model: Any = None
        self._window: Window | None = None
        self._files: ProbeFiles | None = None
        self._step = self._windows = self._found = 0

    @told
    def configure(self, config_path: Any, model: Any, **given: Any) -> None:
        """Take what is asked for; the first to ask is heard."""
        if self._config is None:
            self._config = probe_config(config_path, given)
            self._model = model

    @told
    def start(self, model: Any) -> None:
        """Begin to record, where this step and this rank are asked for."""
        config = self._config
        if config is None:
            raise UsageError(
                "nothing is dumped: make a PrecisionDebugger that says where to before start()"
            )
        if self._window is not None:
            raise UsageError(
                "start() was called before and stop() was not; this start() is left out"
            )
        if not self._is_chosen(config):
            return
        name = RECORDING if not self._windows else f"{RECORDING}-{self._windows + 1}"
        window = Window(
            config.folder / f"step{self._step}" / name, self._write, model=model if model is not None else self._model,
            level="module" if config.choice.level == "L0" else "api",
            save="tensors" if config.choice.needs_elements else "sketch",
        )  # fmt: skip
        window.begin()
        self._window = window

    def _is_chosen(self, config: ProbeConfig) -> bool:
        rank = rank_and_world_size()[0]
        return (not config.steps or self._step in config.steps) and (
            not config.ranks or rank in config.ranks
        )

    @told
    def stop(self) -> None:
        """End, and write the dump."""
        window, self._window = self._window, None
        if window is not None:
            window.end()
        elif self._config is not None and self._is_chosen(self._config):
            raise UsageError("nothing is dumped: stop() was called without start() before it")

    @told
    def step(self) -> None:
        """The next step begins."""
        if self._window is not None:
            raise UsageError("step() was called before stop(); call stop() first")
        self._step += 1
        self._files, self._windows = None, 0

    def _write(self, recording: Path, rank: RankRecording) -> None:
        config = self._config
        assert config is not None
        self._windows += 1
        choice = config.choice
        if choice.task == "overflow_check":
            choice = replace(choice, chosen=DumpChoice("list", self._overflows(rank)))
        if self._files is None or choice is not config.choice:
            alone = rank_and_world_size()[1] == 1
            name = f"proc{os.getpid()}" if alone else rank.name
            self._files = ProbeFiles(recording.parent / name, choice)
        self._files.add(rank)
        lacking = "".join(f"; {one}" for one in rank.missing)
        warn(
            f"{self._files.folder / 'dump.json'}: {self._files.records} records are dumped{lacking}"
        )
        if self._found >= config.overflow_nums > 0:
            warn(
                f"the training ends after {self._found} overflows, as overflow_nums={config.overflow_nums} asks"
            )
            raise SystemExit(0)

    def _overflows(self, rank: RankRecording) -> tuple[str, ...]:
        """Names of passes out of which numbers came that are not finite; each is said."""
        numbers, names = ApiNumbers(), []
        for step in rank.steps:
            calls = rank.calls(step)
            passes = list(passes_of(calls, numbers))
            if (entered := entered_sentence(passes, self._step)) is not None:
                warn(entered)
            for one in overflows_in(passes, calls):
                self._found += 1
                warn(overflow_words(one, self._step))
                names.append(one.name("."))
        return tuple(names)


DEBUGGER = Debugger()
