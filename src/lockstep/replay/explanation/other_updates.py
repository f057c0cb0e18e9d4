"""Hypotheses about optimizer updates: the candidate's own hyper-parameters, other ones, another gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from lockstep.core.finding import Instead
from lockstep.core.optimizer_classes import (
    NUMBERS,
    STEP_COUNT,
    SWITCHES,
    WEIGHT_DECAY,
    optimizer_of,
)
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.replay.calls.recorded_tensors import load
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.least_squares import least_squares
from lockstep.replay.explanation.mismatch import Mismatch
from lockstep.replay.explanation.other_settings import otherwise, told
from lockstep.replay.explanation.update_attempts import (
    beside,
    exactly,
    made,
    taken,
    with_argument,
    with_tensor,
)

_BETAS = (0.0, 0.5, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999)
_NEVER_CORRECTED = 1e9
"""Updates after which bias correction is none."""


def updates(mismatch: Mismatch) -> Iterator[Prediction]:
    """The update of this parameter with other hyper-parameters, or by another rule."""
    call, right = mismatch.update, mismatch.question.candidate_call
    if call is None:
        return
    words = "" if right is None or right.site.op != call.site.op else otherwise(call, right)
    if words and right is not None:
        changed = replace(call, arguments=right.arguments)
        yield from _predicted(mismatch, changed, f"updated with {words}")
    for name, value in call.arguments.items():
        for which, other, changed in _otherwise(call, name, value):
            yield from _predicted(
                mismatch, changed, f"updated with {which}={told(other)} instead of {told(value)}"
            )
    yield from _other_rules(mismatch, call)


def fitted_updates(mismatch: Mismatch) -> Iterator[Prediction]:
    """A hyper-parameter, or a factor of the gradient, of least squares."""
    call = mismatch.update
    if call is None or not bool(mismatch.counted.any()):
        return
    for name, value in call.arguments.items():
        if name not in NUMBERS:
            continue
        for which, start, put in _places(name, value):
            found = _fit(mismatch, start, partial(_with_number, call, name, put))
            if found is not None:
                number, changed = found
                words = f"updated with {which}={number:.5g} instead of {told(value)}"
                yield from _predicted(mismatch, changed, words, fitted=1)
    found = _fit(mismatch, 1.0, partial(_with_gradient_times, call))
    if found is not None:
        number, changed = found
        words = f"updated with the gradient times {number:.5g}"
        yield from _predicted(mismatch, changed, words, fitted=1, kind=Instead.INPUT)


def _fit(
    mismatch: Mismatch, start: float, changed: Callable[[float], Call]
) -> tuple[float, Call] | None:
    """The number of least squares, with the update that has it."""
    record = mismatch.question.reference
    main = mismatch.main
    found = least_squares(
        lambda number: exactly(changed(number), record), start, main.actual, main.counted
    )
    return None if found is None else (found, changed(found))


def _with_number(call: Call, name: str, put: Callable[[float], Any], number: float) -> Call:
    return with_argument(call, name, put(number))


def _with_gradient_times(call: Call, number: float) -> Call:
    return with_tensor(call, Role.PARAM_GRAD, "", lambda gradient: gradient * number)


def _places(name: str, value: Any) -> Iterator[tuple[str, float, Callable[[float], Any]]]:
    """Numbers in a hyper-parameter, with how another one is put in its place."""
    if isinstance(value, float) and math.isfinite(value):
        yield name, value, lambda number: number
    elif isinstance(value, (tuple, list)):
        for place, item in enumerate(value):
            if isinstance(item, float):
                yield f"{name}[{place}]", item, partial(_put, value, place)


def _put(values: Any, place: int, number: float) -> Any:
    return [*values[:place], number, *values[place + 1 :]]


def _otherwise(call: Call, name: str, value: Any) -> Iterator[tuple[str, Any, Call]]:
    """A hyper-parameter otherwise: its words, what it is then, and the update that has it."""
    if isinstance(value, bool):
        if name in SWITCHES:
            yield name, not value, with_argument(call, name, not value)
        return
    for which, number, put in _places(name, value):
        for other in _others(name, number):
            if other != number:
                yield which, other, with_argument(call, name, put(other))
    if name == "betas" and isinstance(value, (tuple, list)):
        yield name, value[::-1], with_argument(call, name, value[::-1])


def _others(name: str, value: float) -> Iterator[float]:
    """What else a number among the hyper-parameters may be."""
    if name in ("weight_decay", "momentum", "dampening"):
        yield 0.0
    if name in ("betas", "momentum", "alpha", "rho"):
        yield from (*_BETAS, 1 - value)
    if name == "eps":
        yield from (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3)
    if name in ("lr", "weight_decay", "eps"):
        yield from (10 * value, value / 10, 2 * value, value / 2)


def _other_rules(mismatch: Mismatch, call: Call) -> Iterator[Prediction]:
    """Weight decay the other way, no bias correction, epsilon inside of the root, the gradient of an earlier update."""
    op = optimizer_of(call.site.op).decays_otherwise_as
    if op and call.arguments.get(WEIGHT_DECAY):
        changed = replace(call, site=replace(call.site, op=op))
        words = f"updated as by {op}: its weight decay is applied the other way"
        yield from _predicted(mismatch, changed, words)
    counted = frozenset({STEP_COUNT})
    for words, change in (
        ("without bias correction", lambda step: step * 0 + _NEVER_CORRECTED),
        ("as if one update more had been made", lambda step: step + 1),
        ("as if one update less had been made", lambda step: step - 1),
    ):
        changed = with_tensor(call, Role.STATE, STEP_COUNT, change)
        yield from _predicted(mismatch, changed, f"updated {words}", but=counted)
    yield from _inside_the_root(mismatch, call)
    for earlier in mismatch.question.earlier:
        for record in earlier.with_role(Role.PARAM_GRAD)[:1]:
            stale = with_tensor(call, Role.PARAM_GRAD, "", partial(_instead, load, record))
            words = f"updated with the gradient of step {earlier.step}"
            yield from _predicted(mismatch, stale, words, kind=Instead.INPUT)


def _instead(
    loaded: Callable[[Any], torch.Tensor], record: Any, tensor: torch.Tensor
) -> torch.Tensor:
    return loaded(record).reshape(tensor.shape)


def _inside_the_root(mismatch: Mismatch, call: Call) -> Iterator[Prediction]:
    """`sqrt(v + eps)` for `sqrt(v) + eps`: no epsilon, and as much more in the squares that are averaged."""
    name, epsilon = optimizer_of(call.site.op).root, call.arguments.get("eps")
    if not name or not isinstance(epsilon, float) or epsilon <= 0:
        return
    betas = call.arguments.get("betas")
    kept = betas[1] if isinstance(betas, (tuple, list)) else call.arguments.get("alpha", 0.0)
    steps = [
        record for record in call.with_role(Role.STATE) if record.name.endswith(f"|{STEP_COUNT}")
    ]
    if not kept or not steps:
        return
    number = float(load(steps[0])) + 1
    more = epsilon * (1 - kept**number if betas else 1.0) / kept
    changed = with_tensor(call, Role.STATE, name, lambda squares: squares.double() + more)
    words = f"updated with eps={told(epsilon)} inside of the root"
    yield from _predicted(
        mismatch, with_argument(changed, "eps", 0.0), words, but=frozenset({name})
    )


def _predicted(
    mismatch: Mismatch,
    call: Call,
    words: str,
    *,
    fitted: int = 0,
    but: frozenset[str] = frozenset(),
    kind: Instead = Instead.SETTING,
) -> Iterator[Prediction]:
    if mismatch.exhausted:
        return
    mismatch.reruns += 1
    try:
        results = made(call)
    except CannotReplay:
        return
    values = None if results is None else taken(results, mismatch.question.reference)
    if results is not None and values is not None:
        yield Prediction(kind, words, values, beside(results, but=but), fitted=fitted)
