"""Print the result of a gate for a person: as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.compare import markdown_code as code
from lockstep.compare import render_comparison, render_markdown
from lockstep.terminal import printable
from lockstep_gate.gating import Gated


def as_text(gated: Gated, *, width: int | None = None) -> str:
    """Return the text of `compare`, with the gate's own lines."""
    compared = gated.comparison
    whole = render_comparison(compared, width=width).plain.rstrip("\n") if compared else ""
    return "\n".join(one for one in (whole, "", *sentences(gated)) if one or whole).rstrip("\n")


def as_markdown(gated: Gated) -> str:
    """The same for a job's summary or a merge request."""
    title = f"### lockstep gate {code(gated.golden.name)}"
    told = [f"- {code(one)}" for one in sentences(gated)]
    whole = [render_markdown(gated.comparison)] if gated.comparison is not None else []
    return "\n".join([title, "", *whole, *told, ""])


def sentences(gated: Gated) -> Iterator[str]:
    """Return the gate's own notes, a line each."""
    if gated.variant:
        words = f", {gated.chosen_words}" if gated.chosen_words else ""
        yield printable(f"golden: {gated.variant}{words}")
    if gated.failed:
        yield printable(gated.failed)
    if gated.updated:
        yield printable(f"golden {gated.updated} is this training from now on")
    if gated.refused:
        yield printable(f"the golden was not replaced: {gated.refused}")
