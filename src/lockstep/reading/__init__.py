"""Reading recordings: calls by pattern, records as a table, one number over steps, and two recordings side by side.

What a plug-in uses; `docs/internals.md` shows each by an example. Nothing here judges, and no tensor is read before it
is asked for.
"""

from lockstep.reading.chosen_calls import (
    calls_matching,
    check_choice,
    every_call,
    is_chosen,
    site_names,
)
from lockstep.reading.paired_steps import PairedStep, paired_records, paired_steps
from lockstep.reading.record_table import record_table, series

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
