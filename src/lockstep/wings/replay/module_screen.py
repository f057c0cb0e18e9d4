"""A module that was run again, as text."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep.report.paragraphs import Page, add_line, add_paragraph, counted
from lockstep.report.table import Column, add_more, add_table
from lockstep.wings.replay.replayed_call import ReplayedCall
from lockstep.wings.replay.replayed_module import ReplayedModule
from lockstep.wings.replay.screen import add_import_advice, add_result

_COLUMNS = (
    Column("call"),
    Column("alone, times allowed", right=True),
    Column("in the chain, rel", right=True),
)


def render_module(one: ReplayedModule, machine: str, *, limit: int) -> Page:
    """Its result against the chain of its calls, each call alone and in the chain, and what could not be chained."""
    text, call = Page(), one.module.call
    run = f"{one.run}: " if one.run else ""
    rank = f"{call.rank}, " if call.rank != "rank0" else ""
    add_line(text, f"{run}{rank}step {call.step}, {call.site}")
    count = counted(len(one.module.inside), "call")
    if one.chained is None:
        add_paragraph(text, f"{count}, not run again as a chain: {one.refused}")
    else:
        add_paragraph(
            text,
            f"{count}, run again in their order, each on what those before it gave again; held against the same chain"
            " in double precision",
        )
        for result in one.chained.results:
            add_result(text, result)
        _add_calls(text, one, limit)
    add_paragraph(text, _words(one, machine))
    _add_left_out(text, one)
    text.rstrip()
    return text


def _add_calls(text: Page, one: ReplayedModule, limit: int) -> None:
    rows = [
        (str(alone.call.site).rpartition(",")[0], _alone(alone), _in_chain(link.error))
        for link, alone in one.links()
    ]
    add_line(text, "")
    add_table(text, _COLUMNS, rows, limit=limit, indent="  ")
    add_line(text, "")


def _alone(one: ReplayedCall) -> str:
    return f"{one.worst:.3g}" if one.held else "-"


def _in_chain(error: float) -> str:
    return "-" if math.isnan(error) else f"{error:.2g}"


def _words(one: ReplayedModule, machine: str) -> str:
    off = one.off_alone
    named = f": {off[0].call.site}" if off else ""
    alone = f"{counted(len(off), 'call')} beyond what is allowed alone{named}" if off else ""
    if not one.looked:
        return alone or "its result could not be held"
    if one.worst <= 1.0:
        left_out = sum(bool(link.refused) for link, _ in one.links())
        but = f", but for {counted(left_out, 'call')} taken as recorded" if left_out else ""
        sound = f"its result is what its calls give in double precision, as far as rounding lets it{but}"
        return f"{sound}; {alone}" if off else f"sound: {sound}"
    who = "what was recorded" if one.recorded_off else machine
    if off:
        return f"{who} is off; {alone}"
    return (
        f"{who} is off, and each of its calls alone is sound: what was recorded of the module is not what its recorded"
        " calls give together"
    )


def _add_left_out(text: Page, one: ReplayedModule) -> None:
    found = list(_left_out(one))
    if not found:
        return
    add_line(text, "")
    add_line(text, "Not in the chain")
    for words in found[:_MOST]:
        add_paragraph(text, words)
    add_more(text, len(found) - _MOST, indent="  ", more="(--json lists them)")
    add_import_advice(text, one.alone)


_MOST = 8


def _left_out(one: ReplayedModule) -> Iterator[str]:
    for link, alone in one.links():
        if link.refused:
            yield f"{alone.call.site}: {link.refused}; the chain goes on from what was recorded of it"
        for name in link.unmade:
            yield (
                f"{name} of {alone.call.site}: no recorded call gave it (written to through a view, or by code that is"
                " not seen); as it was recorded"
            )
