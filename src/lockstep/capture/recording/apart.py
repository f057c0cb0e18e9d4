"""Steps that are recorded apart, each in a directory of its own, until whoever follows the training takes them away."""

from __future__ import annotations

import time
from pathlib import Path

from lockstep.capture.recording.recording_share import RecordingShare
from lockstep.core.errors import OutputExistsError
from lockstep.core.manifest import Options
from lockstep.following.live_runs import is_paused
from lockstep.store.claim import Claim

_LOOKS_EVERY_S = 0.005
_ASKS_EVERY_S = 1.0
_PAUSE_S = 0.1


class StepsApart:
    """The steps of this process that lie there still.

    recording: Where their directories are.
    options: How many may lie there, whether the training waits for room, and what recording may take of its time.
    """

    def __init__(self, recording: Path, options: Options) -> None:
        self._recording = recording
        self._limit, self._waits = options.apart_steps, options.apart_waits
        share = options.apart_share
        self._share = None if share is None else RecordingShare(share)
        self._there: set[Path] = set()
        self._recorded = False

    def begin(self, directory: Path) -> None:
        """A step is recorded from now on."""
        self._there.add(directory)
        self._recorded = True
        if self._share is not None:
            self._share.begin()

    def step_ended(self, *, writing: bool) -> None:
        """A step has ended, recorded or not; `writing` tells whether files are still to be written.

        Waits while the training was asked to pause, as long as somebody follows.
        """
        if self._share is not None:
            self._share.step_ended(recorded=self._recorded, writing=writing)
        self._recorded = False
        while is_paused(self._recording) and is_followed(self._recording):
            time.sleep(_PAUSE_S)

    def has_room(self) -> bool:
        """Whether one more may come: by its share of the time, and by those that lie there.

        Waits for the latter where the training is to, as long as somebody follows.
        """
        if self._share is not None and not self._share.covers_one_more():
            return False
        asked_s = time.monotonic()
        while not self._has_room_now():
            if not self._waits:
                return False
            time.sleep(_LOOKS_EVERY_S)
            if time.monotonic() - asked_s > _ASKS_EVERY_S:
                asked_s = time.monotonic()
                if not is_followed(self._recording):
                    return False
        return True

    def _has_room_now(self) -> bool:
        self._there = {directory for directory in self._there if directory.exists()}
        return len(self._there) < self._limit


def is_followed(recording: Path) -> bool:
    """Whether the process lives that started this one: it has claimed the recording."""
    try:
        Claim(recording).release()
    except OutputExistsError:
        return True
    except OSError:
        return False
    return False
