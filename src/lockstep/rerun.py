"""Make one recorded call again, alone; most names load torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.replay.answers import Substitute
    from lockstep.replay.calls.held_results import RECORDED, RUNS_AGAIN, Held, Result, results_of
    from lockstep.replay.calls.machine import machine_of
    from lockstep.replay.calls.rebuild import rebuild
    from lockstep.replay.calls.recorded_tensors import LARGE
    from lockstep.replay.calls.refusals import CannotReplay, check_call
    from lockstep.replay.calls.rerun import Precision, Rerun, outputs_of
    from lockstep.replay.equal_forms.forms import forms_of, overload_of
    from lockstep.replay.local_error import LocalErrorJudge
    from lockstep.replay.process.rerun_process import RerunsApart
    from lockstep.replay.questions import Again, Answers, EqualForm, TimesAlone
    from lockstep.report.rerun_results import add_refusals, refusals_json
    from lockstep.report.rerun_results import figures as figures_of_rerun
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "LARGE",
    "RECORDED",
    "RUNS_AGAIN",
    "Again",
    "Answers",
    "CannotReplay",
    "EqualForm",
    "Held",
    "LocalErrorJudge",
    "Precision",
    "Rerun",
    "RerunsApart",
    "Result",
    "Substitute",
    "TimesAlone",
    "add_refusals",
    "check_call",
    "figures_of_rerun",
    "forms_of",
    "machine_of",
    "outputs_of",
    "overload_of",
    "rebuild",
    "refusals_json",
    "results_of",
]
