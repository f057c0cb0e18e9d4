"""Why a call cannot be run again."""

from __future__ import annotations

NO_OPERATOR = "is not an operator of torch"
"""How it is said of a custom function."""


class CannotReplay(Exception):  # noqa: N818 - it is an answer, not a failure of Lockstep
    """A recorded call cannot be run again alone; the message says why. Never leaves this package."""


class Crashed(CannotReplay):
    """Running a call again ended the process that did it, or never came to an end; the message says how."""
