"""Reading recordings: calls by pattern, records as a table, one number over steps, and two recordings side by side.

What a plug-in uses; `docs/internals.md` shows each by an example. Nothing here judges, and no tensor is read before it
is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lockstep.reading.chosen_calls import (
    calls_matching,
    check_choice,
    every_call,
    is_chosen,
    site_names,
)
from lockstep.reading.paired_steps import PairedStep, paired_records, paired_steps

if TYPE_CHECKING:
    from lockstep.reading.record_tables import record_table, series

__all__ = [
    "PairedStep",
    "calls_matching",
    "check_choice",
    "every_call",
    "is_chosen",
    "paired_records",
    "paired_steps",
    "record_table",
    "series",
    "site_names",
]


def __getattr__(name: str) -> Any:
    """Load a table's maker when it is first used: comparing makes no table."""
    if name not in ("record_table", "series"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.record_tables"), name)
