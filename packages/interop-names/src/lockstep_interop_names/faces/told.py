"""A training does not end because its dump cannot be made: what is wrong is said in one sentence, and it goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from lockstep.errors import LockstepError
from lockstep.recorder import warn

P = ParamSpec("P")


def told(function: Callable[P, None]) -> Callable[P, None]:
    """The same function, whose errors are said and not raised."""

    @functools.wraps(function)
    def without_raising(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except LockstepError as error:
            warn(f"{error}; the training goes on")
        except OSError as error:
            warn(f"{error.filename}: {error.strerror or error}; the training goes on")

    return without_raising
