"""An audit as text."""

from __future__ import annotations

import math

from lockstep.rerun import add_refusals, figures_of_rerun
from lockstep.terminal import Page, add_line, add_more, add_paragraph, counted, spans
from lockstep_audit.tally import Beyond, Tally


def headline(tally: Tally) -> str:
    """The answer in one sentence, with what was not judged."""
    missing = tally.not_judged.total()
    unjudged = f"; {counted(missing, 'result')} could not be judged" if missing else ""
    if tally.calls_left:
        unjudged += f"; the budget left no time for {counted(tally.calls_left, 'call')}"
    if not tally.judged:
        return f"nothing was judged{unjudged}"
    ranks = f" of {len(tally.ranks)} ranks" if len(tally.ranks) > 1 else ""
    looked = f"{counted(tally.judged, 'result')} of {counted(tally.calls, 'call')}{ranks}"
    where = _coverage(tally)
    places = len(tally.beyond)
    if not places and tally.too_little:
        return f"TOO LITTLE JUDGED in {where}: {tally.too_little}; of {looked} none is beyond its floor"
    if not places:
        return f"SOUND in {where}: of {looked} none is beyond its floor{unjudged}"
    are = "is" if tally.beyond_times == 1 else "are"
    sites = len({one.site for one in tally.beyond})
    return (
        f"BEYOND ITS FLOOR in {where}: {tally.beyond_times} of {looked} {are}, at"
        f" {counted(sites, 'site')}{unjudged}"
    )


def _coverage(tally: Tally) -> str:
    """How many steps were looked at, of how many there were."""
    looked = len(tally.steps)
    if tally.trained > looked:
        return f"{looked} of {counted(tally.trained, 'step')}"
    return counted(looked, "step")


def render(tally: Tally, *, limit: int) -> Page:
    """The headline, what is beyond its floor, furthest first, and what was not judged."""
    text = Page()
    add_paragraph(text, headline(tally), indent="  ", first="")
    found = tally.beyond
    for one in found[:limit]:
        add_line(text, "")
        _add_beyond(text, one)
    if len(found) > limit:
        add_line(text, "")
    add_more(text, len(found) - limit)
    add_refusals(text, "Not judged", tally.not_judged)
    if tally.left_out:
        add_line(text, "")
        ranks = ", all ranks together" if len(tally.ranks) > 1 else ""
        were = "was" if tally.left_out == 1 else "were"
        budget = ", or the budget left no time to record them" if tally.has_budget else ""
        add_paragraph(
            text,
            f"{counted(tally.left_out, 'step')} {were} left out{ranks}: they came while one before was still"
            f" looked at{budget}",
            first="",
        )
    text.rstrip()
    return text


def _add_beyond(text: Page, one: Beyond) -> None:
    source = f"  {one.source}" if one.source else ""
    add_line(text, f"{one.site}{source}")
    add_paragraph(text, f"{one.role} {one.name}: {figures_of_rerun(one.worst)}")
    add_paragraph(text, f"{_often(one)}; {_beside_host(one)}")


def _often(one: Beyond) -> str:
    steps = sorted(one.steps)
    ranks = f", {', '.join(sorted(one.ranks))}" if one.ranks != {"rank0"} else ""
    return f"{one.times} of {counted(one.judged, 'time')} (step {spans(steps, 6)}{ranks})"


def _beside_host(one: Beyond) -> str:
    host = one.host
    if host is None:
        return "it was not run again here in its own dtype"
    if host.sound:
        off = f", off by rel {host.error:.2g}" if not math.isnan(host.epsilons) else ""
        return f"this machine's own kernel gives the sound result{off}"
    return "this machine's own kernel is as far off: the kernel, or the re-run, is at fault"
