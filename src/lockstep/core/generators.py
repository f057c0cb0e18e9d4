"""The states of Python's and NumPy's global random generators, as they were when this package was imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def _states() -> Iterator[tuple[str, Any]]:
    python = getattr(sys.modules.get("random"), "getstate", None)
    if python is not None:
        yield "python", python()
    # NumPy may load this part of itself only now.
    numpy = getattr(getattr(sys.modules.get("numpy"), "random", None), "get_state", None)
    if numpy is not None:
        yield "numpy", numpy()


AT_IMPORT: dict[str, Any] = dict(_states())
"""By "python" and "numpy"; a generator whose module was not loaded by then is left out. Nothing is drawn."""
