"""Record what optimizers of a script's own call, so that their updates can be run again.

Those of `torch.optim` are run again by their class.
"""

from __future__ import annotations

from lockstep.capture.calls.call_places import Place
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.handlers.call_rows import CallRows
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.core.site import Phase


class UpdateBodies:
    """Records the calls of an optimizer's step beside the first of its updates.

    Parameters
    ----------
    recording
        Of this process's rank.
    rows
        Records calls.
    """

    def __init__(self, recording: RankRecording, rows: CallRows) -> None:
        self._recording, self._places = recording, rows.places
        self._sees_operators = recording.options.level == "api"

    def begin(self, first: OpenCall) -> None:
        """A step begins that updates a parameter by this call first."""
        self.end()
        session = self._recording.session
        if self._sees_operators and session is not None and session.contents.keeps_what_enters:
            self._places.enter(Place(first.id, "", "", None, first.stack, body=Phase.OPTIMIZER))

    def end(self) -> None:
        """The step has ended, or another begins within."""
        here = self._places.here
        if here is not None and here.body is Phase.OPTIMIZER:
            self._places.leave()
