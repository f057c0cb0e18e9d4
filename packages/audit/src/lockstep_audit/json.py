"""An audit as values of its JSON."""

from __future__ import annotations

from typing import Any

from lockstep.rerun import Held, refusals_json
from lockstep.terminal import enveloped
from lockstep_audit.tally import Beyond, Tally


def audit_json(tally: Tally, code: int | None = None) -> dict[str, Any]:
    """The whole audit; `code` is the exit code of the training that was audited as it ran."""
    values: dict[str, Any] = {
        "verdict": _verdict(tally),
        "too_little": tally.too_little,
        "judged": tally.judged,
        "calls": tally.calls,
        "steps": sorted(tally.steps),
        "ranks": sorted(tally.ranks),
        "left_out": tally.left_out,
        "calls_left": tally.calls_left,
        "trained": tally.trained or None,
        "beyond": [_beyond(one) for one in tally.beyond],
        "not_judged": refusals_json(tally.not_judged),
    }
    return enveloped(values if code is None else {**values, "exit_code": code})


def _verdict(tally: Tally) -> str:
    if not tally.judged:
        return "nothing judged"
    if tally.beyond:
        return "beyond"
    return "too little judged" if tally.too_little else "sound"


def _beyond(one: Beyond) -> dict[str, Any]:
    site = one.site
    return {
        "module": site.module,
        "op": site.op,
        "call": site.call,
        "phase": site.phase.value,
        "role": one.role,
        "name": one.name,
        "source": one.source,
        "recorded": _held(one.worst),
        "host": None if one.host is None else _held(one.host),
        "times": one.times,
        "judged": one.judged,
        "steps": sorted(one.steps),
        "ranks": sorted(one.ranks),
    }


def _held(held: Held) -> dict[str, Any]:
    return {
        "rel_l2": held.error,
        "allowed": held.allowed,
        "excess": held.excess,
        "epsilons": held.epsilons,
        "rounding": held.words,
        "sound": held.sound,
    }
