"""`register_hook(model, overflow_check)`: look at each step as it ends, and end the training after N hits."""

from __future__ import annotations

import atexit
import copy
import os
import shutil
from pathlib import Path
from typing import Any

from lockstep.launch import Follow, Follower, WhenFull, WrittenStep, unheard
from lockstep.options import StepSelection
from lockstep.recorder import Recording, rank_and_world_size, warn
from lockstep.recordings import Options
from lockstep_interop_names.faces.api_calls import ApiNumbers, passes_of
from lockstep_interop_names.faces.dump_choice import DumpChoice
from lockstep_interop_names.faces.overflows import entered_sentence, overflow_words, overflows_in
from lockstep_interop_names.faces.ptdbg_files import DumpFiles

_STEPS = "0:"


class OverflowCheck:
    """Looks at the steps of this process.

    folder: The dump: `ptdbg_dump_v2.0`.
    model: The model that is trained.
    most: Behind so many overflows the training ends; -1 for never.
    """

    def __init__(self, folder: Path, model: Any, most: int) -> None:
        options = Options(
            steps=_STEPS, save="tensors", apart=True, apart_waits=True, ends_when_asked=True, optimizer_state=False
        )  # fmt: skip
        rank = f"rank{rank_and_world_size()[0]}"
        self._folder, self._most, self.found = folder / rank, most, 0
        # Of its own for each rank: whoever looks at a step takes it away.
        self._recording = Recording(folder / f".{rank}-steps", options, model=model, force=True)
        follow = Follow(self._look, when_full=WhenFull.WAIT, may_end=True)
        steps = StepSelection.parse(_STEPS)
        self._follower = Follower(self._recording.path, follow, steps, unheard)
        self._entered = False
        self._numbers, self._process = ApiNumbers(), os.getpid()

    def begin(self) -> None:
        """Begin to look. Raises LockstepError if the path cannot be written, or a recording is running."""
        self._recording.path.parent.mkdir(parents=True, exist_ok=True)
        atexit.register(self.end)  # before the recording's own, so that it runs behind it
        try:
            self._recording.start()
        except BaseException:
            atexit.unregister(self.end)
            raise
        self._follower.start()

    def end(self) -> None:
        """The training has ended: look at what is left."""
        atexit.unregister(self.end)
        if self._process != os.getpid():
            return
        self._recording.stop()
        self._follower.finish()
        shutil.rmtree(self._recording.path, ignore_errors=True)
        if not self.found and not self._entered:
            warn("no operator has made NaN or infinite numbers of finite ones")

    def _look(self, step: WrittenStep) -> None:
        before = copy.deepcopy(self._numbers)
        calls = step.rank.calls(step.number)
        passes = list(passes_of(calls, self._numbers))
        entered = entered_sentence(passes, step.number)
        if entered is not None and not self._entered and not self.found:  # weights keep an overflow
            self._entered = True
            warn(entered)
        for one in overflows_in(passes, calls):
            if self.found == self._most:
                break
            self.found += 1
            name = one.name("_")
            choice = DumpChoice("list", (name,), label=f"{name}_{self.found}")
            files = DumpFiles(self._folder, choice, copy.deepcopy(before))
            files.add(None, step.rank)
            warn(f"{overflow_words(one, step.number)}; its tensors are in {files.pkl}")
        if self.found == self._most:
            warn(
                f"the training ends after {self.found} overflows, as overflow_nums={self._most} asks"
            )
            step.end_training_after(step.number)
