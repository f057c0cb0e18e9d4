"""Arming a process that imports a framework whose recorder is not installed: it notes what to install."""

from __future__ import annotations

import os
import sys

from lockstep.capture.process.environment import VARIABLE, Reached, leave_trace, request_from
from lockstep.core.members import FRAMEWORKS
from lockstep.core.version import DISTRIBUTION


def arm_from_environment() -> None:
    """Note it where `lockstep record` asks for a recording; the training goes on."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return
    directory, _ = request_from(asked)
    for module, name in FRAMEWORKS.items():
        if module in sys.modules:
            words = f"{name} was imported, and what records it is not installed: pip install '{DISTRIBUTION}[{module}]'"
            leave_trace(directory, Reached.FRAMEWORK, words)
