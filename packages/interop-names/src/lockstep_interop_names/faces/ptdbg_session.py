"""The state that ptdbg_ascend keeps between its calls: the path, the hooked model, the switch.

From ON to OFF a recording of the training is made, and the old files are written of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.options import choice_of, integer_of, path_of
from lockstep.recorder import warn
from lockstep.recordings import RankRecording
from lockstep.terminal import listed
from lockstep_interop_names.faces.api_calls import ApiNumbers
from lockstep_interop_names.faces.dump_choice import DumpChoice, dump_choice
from lockstep_interop_names.faces.ptdbg_files import VERSION, DumpFiles
from lockstep_interop_names.faces.ptdbg_overflow import OverflowCheck
from lockstep_interop_names.faces.told import told
from lockstep_interop_names.faces.window import Window

RECORDING = "recording"
"""Where in a dump the recording lies that it is written of."""


class Hook(Enum):
    """The purpose of a `register_hook`."""

    DUMP = "acc_cmp_dump"
    OVERFLOW = "overflow_check"


class PtdbgSession:
    """One process's dump; `SESSION` is the one that the functions of `lockstep_interop_names.ptdbg_ascend` use.

    overflow_check: What looks for overflows, once a model is hooked for that.
    """

    def __init__(self) -> None:
        self.overflow_check: OverflowCheck | None = None
        self._folder: Path | None = None
        self._model: Any = None
        self._hook: Hook | None = None
        self._choice: DumpChoice | None = None
        self._window: Window | None = None
        self._files: DumpFiles | None = None
        self._numbers = ApiNumbers()
        self._dumps = 0

    @told
    def set_dump_path(self, fpath: str | os.PathLike[str] | None, dump_tag: str) -> None:
        """Where to; a dump that is on goes on where it is."""
        if fpath is None and "ASCEND_WORK_PATH" in os.environ:
            fpath = Path(os.environ["ASCEND_WORK_PATH"]) / "dump_data"
        given = path_of("fpath", fpath)
        self._folder = (given / f"{path_of('dump_tag', dump_tag).name}_{VERSION}").absolute()
        self._files, self._dumps = None, 0
        self._folder.mkdir(parents=True, exist_ok=True)

    @told
    def register_hook(self, model: Any, hook: Any, options: Mapping[str, Any]) -> None:
        """Take a model, and begin where the switch is on already."""
        if not isinstance(hook, Hook):
            raise UsageError(f"hook is {hook!r:.40}; give acc_cmp_dump or overflow_check")
        if options.get("dump_mode", "api") == "acl":
            raise UsageError(
                "dump_mode 'acl' is a dump of the vendor's runtime, which Lockstep has not; leave it out"
            )
        if self._hook is not None:
            raise UsageError(
                f"a model is hooked already, by {self._hook.value}; the second hook is left out"
            )
        most = options.get("overflow_nums", 1)
        integer_of("overflow_nums", most, least=-1)
        if hook is Hook.OVERFLOW:
            self._check(model, most or 1)
        self._model, self._hook = model, hook
        self._begin()

    def _check(self, model: Any, most: int) -> None:
        if self._folder is None:
            raise UsageError("nothing is checked: say where to, by set_dump_path('./dump_path')")
        check = OverflowCheck(self._folder, model, most)
        check.begin()
        self.overflow_check = check

    @told
    def set_dump_switch(self, switch: str, mode: str, scope: Sequence[str], api_list: Sequence[str],
                        filter_switch: str, dump_mode: str | Sequence[str], summary_only: bool) -> None:  # fmt: skip
        """Begin to dump, or end and write what there is."""
        if choice_of("switch", switch, ("ON", "OFF")) == "OFF":
            self._switch_off()
            return
        if self._choice is not None:
            raise UsageError("the switch is ON already; this ON is left out")
        self._choice = dump_choice(mode, scope, api_list, filter_switch, dump_mode, summary_only)
        self._begin()

    def _switch_off(self) -> None:
        if self._choice is None:
            raise UsageError(
                "the switch is OFF already: nothing was dumped, put set_dump_switch('ON') before"
            )
        if self._window is None:
            self._choice = None
            raise UsageError(
                "nothing was dumped: no model was hooked, call register_hook(model, acc_cmp_dump)"
            )
        self.end()

    def _begin(self) -> None:
        """Begin to record where there are a path, a hook for dumps and a switch that is on."""
        if self._choice is None or self._hook is not Hook.DUMP:
            return
        try:
            if self._folder is None:
                raise UsageError("nothing is dumped: say where to, by set_dump_path('./dump_path')")
            name = RECORDING if not self._dumps else f"{RECORDING}-{self._dumps + 1}"
            window = Window(self._folder / name, self._write, model=self._model)
            window.begin()
        except BaseException:
            self._choice = None
            raise
        self._window = window

    def end(self) -> None:
        """End what is on, and write what there is."""
        window, self._window = self._window, None
        try:
            if window is not None:
                window.end()
        finally:
            self._choice = None

    def _write(self, recording: Path, rank: RankRecording) -> None:
        choice = self._choice or DumpChoice()
        self._dumps += 1
        if self._files is None or self._files.choice.stem != choice.stem:
            self._files = DumpFiles(recording.parent / rank.name, choice, self._numbers)
        files = self._files
        files.choice = choice
        files.add(recording, rank)
        lacking = "".join(f"; {one}" for one in rank.missing)
        warn(f"{files.pkl}: {files.tensors} tensors of {len(rank.steps)} steps are dumped{lacking}")
        if files.without_elements:
            named = listed(files.without_elements)
            warn(f"{files.pkl}: left out, of which no elements are recorded: {named}")


SESSION = PtdbgSession()
