"""The extension points of this member."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lockstep.plugin import hookspec

if TYPE_CHECKING:
    from lockstep_watch.observed import Hit


@hookspec
def lockstep_watch_rules() -> list[Callable[..., Iterable[Hit]]]:  # type: ignore[empty-body]
    """Rules: functions `rule(step, *, setting=...)` that yield `step.hit(...)`."""
