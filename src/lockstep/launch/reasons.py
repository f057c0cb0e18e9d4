"""Say why a command left no recording, or which part of it is in none."""

from __future__ import annotations

from lockstep.capture.process.environment import Reached, Traces
from lockstep.core.manifest import NotSeen, Options
from lockstep.plugins import frameworks
from lockstep.store.reader import Recording

_NOT_IMPORTED = (
    "no Python process of the command imported torch, nor another framework that is recorded"
)


def reason_for_nothing(recording: Recording, traces: Traces, options: Options) -> str:
    """Why a recording holds no step, in words; "" where it holds some."""
    reached, detail = traces.reached, traces.detail
    if any(rank.steps for rank in recording.ranks.values()):
        return ""
    if traces.unwritten:
        return f"it could not be written: {traces.unwritten}"
    if recording.ranks:
        return "; ".join(recording.missing) or "a step began, but none of its calls was chosen"
    if options.until_losses_part and reached is Reached.STEPS:
        return f"the training ended after {detail} steps, and none of its losses asked for a step to be recorded"
    by_hand = "for other loops use lockstep.record() in the script"
    return {
        Reached.NOTHING: "the command started no Python that loads Lockstep's start-up hook"
        " (python -S does not, nor one without the variables that begin with LOCKSTEP; one with another PYTHONPATH, or"
        " started by -E or -I, does where lockstep-numerics is installed)",
        Reached.HOOK: _NOT_IMPORTED,
        Reached.NOT_INSTALLED: f"{_NOT_IMPORTED}; one asked for {detail}, which is not installed in its Python:"
        f" pip install '{_requirement(detail)}'",
        Reached.UNLOADABLE: "Lockstep could not be loaded where torch was imported",
        Reached.TORCH: "torch was imported, and the process ended before it could say whether it trained",
        Reached.UNTRAINED: "torch was imported, but no torch.optim.Optimizer was made, and no model in training mode"
        " had its parameters updated by hand",
        Reached.FRAMEWORK: detail,
        Reached.OPTIMIZER: "an optimizer was made, but no model was called with gradients in a"
        f" chosen step ({options.steps}); {by_hand}",
        Reached.STEPS: f"the training ended after {detail} steps, before a chosen one"
        f" ({options.steps}) began",
        Reached.OTHER_RANK: f"no process had a chosen rank ({options.ranks})",
    }[reached]


def _requirement(module: str) -> str:
    """What installs a framework by its root module."""
    known = {one.module: one.requirement for one in frameworks()}
    return known.get(module) or module


def unseen_processes(traces: Traces) -> list[NotSeen]:
    """Processes that trained and are in no rank's directory."""
    count = traces.unrecorded_children
    if not count:
        return []
    which = "a forked process" if count == 1 else f"{count} forked processes"
    reason = (
        "the parent was recorded by then, whose writing threads do not come along with a fork;"
        " fork before the first training step, or start the process by spawn"
    )
    return [NotSeen(f"what {which} trained", reason, count)]
