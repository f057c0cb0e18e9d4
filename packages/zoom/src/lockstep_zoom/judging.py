"""The steps of a comparison that agree, and the first that does not."""

from __future__ import annotations

from lockstep.compare import Comparison, JudgedWindow, Told, Verdict, WhyNot
from lockstep_zoom.bracket import Judged


def judged_steps(found: Comparison) -> Judged:
    """Return what a comparison says of its steps, its step logs included."""
    windows = [_of_window(one, found) for one in found.windows] or [_without_windows(found)]
    by_window = [one.bad for one in windows if one.bad is not None]
    recorded = {step for one in found.windows for step in one.steps} | {*found.steps}
    logged = None if found.step_logs is None else found.step_logs.first
    bad = min([*by_window, *([] if logged is None else [logged.step])], default=None)
    return Judged(
        tuple(step for one in windows for step in one.sound),
        bad,
        bad is None or bad in recorded,
        (bad - 1,) if bad and bad not in recorded else _likely(found, bad),
        tuple(step for one in windows for step in one.untold) + _left_out(found),
    )


def _of_window(window: JudgedWindow, found: Comparison) -> Judged:
    if window.verdict is Verdict.INCOMPARABLE:
        return Judged(untold=window.steps)
    if window.differed:
        return Judged(bad=window.steps[0])
    if window.origin is not None:
        at = window.origin.step
        return Judged(tuple(step for step in window.steps if step < at), at)
    if window.left:
        return Judged(bad=window.steps[0])
    if window.precision:
        return Judged(bad=window.steps[0])
    # Another precision throughout is no fault of a step, and is in all of them.
    if window.verdict is Verdict.AGREE or found.uniform:
        # A mean of the weights is measured as the next step begins, so of a window's last step nothing is known of it.
        return Judged(window.steps[:-1] or window.steps)
    return Judged(bad=window.steps[0])


def _without_windows(found: Comparison) -> Judged:
    """Of recordings without states: each training's own course, in which a late step shows no more than a guess."""
    if not found.origins:
        is_told = found.verdict is not Verdict.INCOMPARABLE
        return Judged(found.steps if is_told else ())
    at = min(one.step for one in found.origins)
    return Judged(tuple(step for step in found.steps if step < at), at)


def _likely(found: Comparison, bad: int | None) -> tuple[int, ...]:
    """The steps around that at which losses leave their growth, where nothing says more."""
    left = None if found.step_logs is None or bad is not None else found.step_logs.left
    at = None if left is None else left.left_at
    return () if at is None else tuple(step for step in (at - 1, at) if step >= 0)


def _left_out(found: Comparison) -> tuple[int, ...]:
    """Steps of windows that did not begin with one state."""
    left_out = [
        one for one in found.not_compared if Told.of(one).facts.why is WhyNot.WINDOW_NOT_SET
    ]
    return tuple(int(step) for one in left_out for step in Told.of(one).facts.names)
