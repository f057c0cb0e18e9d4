"""One way of holding an export against the original, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the verb's options need neither torch nor a runtime
    from lockstep_deploy.parity import Parity

TARGET = "target"
"""What a training step is given beside the inputs of its model."""


@dataclass(frozen=True)
class Stage:
    """One way of holding what was exported against the original: what it is called, and what came of it.

    `by_exporter` says that a difference is there too where the runtime optimises nothing.
    """

    name: str
    words: str
    parity: Parity
    by_exporter: bool = False
