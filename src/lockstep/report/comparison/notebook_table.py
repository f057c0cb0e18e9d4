"""Show a comparison in a notebook: the headline, the worst pairs as a table, the next command."""

from __future__ import annotations

from lockstep.core.finding import Comparison, Finding
from lockstep.report.comparison.pair_table import worst_of
from lockstep.report.comparison.pairs import column_of, tensor_name
from lockstep.report.comparison.screen import render_comparison
from lockstep.report.comparison.verdict_words import answer_of, figure, lines_below
from lockstep.report.page.tags import Html, tag
from lockstep.report.table import figure as factor_figure

_MOST_PAIRS = 10
_TITLES = (
    "step", "rank", "tensor", "relative L2", "tolerance", "times its tolerance", "cosine", "max abs", "kind", "source",
)  # fmt: skip


def comparison_html(comparison: Comparison) -> Html:
    """Return a comparison in a few lines of HTML; all that the terminal shows can be opened below them.

    Examples
    --------
    >>> comparison_html(compare_recordings("ref", "npu"))[:5]  # doctest: +SKIP
    '<div>'
    """
    answer = answer_of(comparison)
    following = comparison.what_next
    text = render_comparison(comparison).plain
    return tag(
        "div",
        tag("p", tag("b", answer.word), f"{answer.mark} {answer.rest}", longest=None),
        [tag("p", line, longest=None) for line in lines_below(comparison)],
        _table(comparison),
        tag("p", f"Next, to {following.words}: ", tag("code", following.command, longest=None))
        if following is not None
        else None,
        tag("details", tag("summary", "All that lockstep compare prints"), tag("pre", text, longest=None)),
    )  # fmt: skip


def _table(comparison: Comparison) -> Html | None:
    """The worst pairs; None where all are equal bit by bit."""
    worst = worst_of(comparison, _MOST_PAIRS)
    if not worst:
        return None
    kind, source = (column_of(comparison, title) for title in ("Kind", "Source"))
    rows = [
        tag("tr", *(tag("td", cell) for cell in (*_cells(one), str(kind(one)), str(source(one)))))
        for one in worst
    ]
    caption = tag(
        "caption",
        f"{comparison.reference} and {comparison.candidate}: the {len(worst)} worst of"
        f" {len(comparison.findings)} pairs of tensors",
    )
    head = tag("thead", tag("tr", *(tag("th", title) for title in _TITLES)))
    return tag("table", caption, head, tag("tbody", *rows))


def _cells(finding: Finding) -> tuple[str, ...]:
    record, metrics = finding.pair.present, finding.metrics
    return (
        str(record.step), record.rank, tensor_name(record), figure(finding.difference), figure(finding.tolerance),
        factor_figure(finding.margin), figure(metrics.cosine), figure(metrics.max_abs),
    )  # fmt: skip
