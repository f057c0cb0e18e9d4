"""Lockstep finds the first operator where a training run leaves its reference, and proves it.

The public face. Everything is loaded when it is first used: `import lockstep` itself loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lockstep.core import generators as _generators  # noqa: F401  # looks at them now
from lockstep.core.errors import LockstepError
from lockstep.core.version import DISTRIBUTION as DISTRIBUTION
from lockstep.core.version import VERSION as __version__

if TYPE_CHECKING:
    from lockstep import reading
    from lockstep.align.converted_weights import convert_weights
    from lockstep.capture.api import record
    from lockstep.capture.token_notes import tokens
    from lockstep.capture.weight_notes import weights
    from lockstep.comparison import compare_recordings
    from lockstep.report.comparison.in_python import assert_agree
    from lockstep.store.reader import open_recording as open

__all__ = [
    "LockstepError", "__version__", "assert_agree", "compare_recordings", "convert_weights", "open", "reading",
    "record", "tokens", "weights",
]  # fmt: skip

_LAZY = {
    "assert_agree": ("lockstep.report.comparison.in_python", "assert_agree"),
    "compare_recordings": ("lockstep.report.comparison.in_python", "compare_recordings"),
    "convert_weights": ("lockstep.align.converted_weights", "convert_weights"),
    "open": ("lockstep.report.notebook", "open_recording"),
    "record": ("lockstep.capture.api", "record"),
    "tokens": ("lockstep.capture.token_notes", "tokens"),
    "weights": ("lockstep.capture.weight_notes", "weights"),
}


def __getattr__(name: str) -> Any:
    if name == "reading":
        return importlib.import_module("lockstep.reading")
    if name not in _LAZY:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
