"""Make one recorded call again, alone; its names load torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.replay.calls.machine import machine_of
    from lockstep.replay.calls.rebuild import rebuild
    from lockstep.replay.calls.recorded_tensors import LARGE
    from lockstep.replay.calls.refusals import CannotReplay, check_call
    from lockstep.replay.calls.rerun import Precision, Rerun, outputs_of
    from lockstep.replay.equal_forms.forms import forms_of, overload_of
    from lockstep.replay.local_error import LocalErrorJudge
    from lockstep.replay.process.rerun_process import RerunsApart
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "LARGE",
    "CannotReplay",
    "LocalErrorJudge",
    "Precision",
    "Rerun",
    "RerunsApart",
    "check_call",
    "forms_of",
    "machine_of",
    "outputs_of",
    "overload_of",
    "rebuild",
]
