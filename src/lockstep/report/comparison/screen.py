"""A comparison on one screen of a terminal: the verdict, where, why, and the gaps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from lockstep.core.finding import (
    Comparison,
    Evidence,
    Finding,
    Kind,
    Outcome,
    Verdict,
    at_hand,
)
from lockstep.core.text import factor_figure, listed, printable
from lockstep.judge.fixed_rule import accuracy_reached
from lockstep.report.comparison import end_words
from lockstep.report.comparison.end_words import idle_settings
from lockstep.report.comparison.lone_calls import unaligned_sentences
from lockstep.report.comparison.pairs import reached_word, tensor_name
from lockstep.report.comparison.verdict_words import (
    OTHER_CHECKSUMS,
    Answer,
    Tally,
    answer_of,
    figure,
    gap_words,
    lines_below,
    place_words,
    ranks_words,
    source_words,
    tally_of,
    uniform_words,
    window_words,
)
from lockstep.report.comparison.verdict_words import headline as headline
from lockstep.report.paragraphs import (
    WIDTH,
    OutputConsole,
    Page,
    add_line,
    add_paragraph,
    add_wrapped,
    counted,
    terminal_width,
    width_of,
)

NEXT_ORIGINS = 5
MEMBERS = 4
UNALIGNED = 6

_STYLES = {
    Verdict.AGREE: "bold green",
    Verdict.DIVERGED: "bold red",
    Verdict.INCOMPARABLE: "bold yellow",
}
_SIGNS = {Evidence.SKETCH: ("~", ">="), Evidence.STATISTICS: (">=", ">=")}
"""What stands before cosine and distance, and before the maximum error, by evidence."""

_JUDGES = {
    "error-model": "an error model of each operator and dtype",
    "calibration": "the calibration of each site",
    "local-error": "a double-precision run of the operator, or rounding that any run of it has",
    "fixed": "the fixed rule (cosine 0.99 with max abs 0.001, cosine 0.9, max abs 1)",
}

_IN_SHORT = {
    "error-model": "an error model",
    "calibration": "the calibration",
    "local-error": "double precision",
    "fixed": "the fixed rule",
}

_BEHIND = {"local-error": "error-model"}
"""Who judged what a judge that leaves some to another one did not."""


def render_comparison(
    comparison: Comparison,
    *,
    show_all: bool = False,
    cosine: float | None = None,
    limit: int | None = None,
    width: int | None = None,
) -> Text:
    """Lay a comparison out as text in a number of columns, except paths and names.

    Parameters
    ----------
    comparison
        The comparison.
    show_all
        Whether the table of all pairs follows.
    cosine
        Where given, pairs under this cosine follow, lowest first.
    limit
        Cap on the lines of either table; None for no cap.
    width
        Columns of the terminal; without one there are 100, and a line of a table is never broken.

    Returns
    -------
    rich.text.Text
        Print it with `soft_wrap=True`, so that no path is broken; `.plain` is the text without
        colour.
    """
    text, tally = Page(width or WIDTH), tally_of(comparison.findings)
    first, answer = Page(width_of(text)), answer_of(comparison, tally)
    _add_headline(first, answer)
    add_wrapped(text, first.plain)
    style = "bold yellow" if comparison.other_precision_alone else _STYLES[comparison.verdict]
    text.stylize(style, 0, len(answer.word))
    for line in lines_below(comparison):
        add_paragraph(text, line)
    _add_windows(text, comparison, tally)
    _add_list(text, "Step log", end_words.log_paragraphs(comparison))
    _add_uniform(text, comparison)
    _add_next_origins(text, comparison, tally)
    _add_ends(text, comparison)
    _add_counts(text, comparison, tally, show_all=show_all)
    _add_setup(text, comparison)
    _add_unaligned(text, comparison, show_all=show_all)
    said = comparison.verdict is Verdict.INCOMPARABLE
    _add_list(text, "Not compared", comparison.not_compared[said:])
    events = [f"step {event.step}: {event.kind}: {event.detail}" for event in comparison.events]
    _add_list(text, "Events", events)
    below = idle_settings(comparison)
    notes = [one for one in comparison.notes if one not in below]
    _add_list(text, "Notes", [*_unsaid(comparison), *notes])
    _add_what_next(text, comparison)
    if show_all or cosine is not None:
        add_paragraph(text, signs_words(tally))
    if show_all:
        _add_table(
            text, f"All pairs: {len(comparison.findings)}", comparison.findings, limit, width
        )
    if cosine is not None:
        _add_under_cosine(text, comparison.findings, cosine, limit, width)
    text.rstrip()
    return text


def print_comparison(
    comparison: Comparison,
    *,
    show_all: bool = False,
    cosine: float | None = None,
    limit: int | None = None,
) -> None:
    """Print the text of `render_comparison` to standard output, in colour on a terminal only."""
    width = terminal_width()
    text = render_comparison(comparison, show_all=show_all, cosine=cosine, limit=limit, width=width)
    OutputConsole().print(text, soft_wrap=True, highlight=False)


def _add_headline(text: Text, answer: Answer) -> None:
    text.append(answer.word)
    _add_with_source(text, answer.words, answer.source, used=len(answer.word))
    if answer.more:
        add_paragraph(text, answer.more)


def _unsaid(comparison: Comparison) -> list[str]:
    """What the headline of an agreement says of the processes, where it tells of a difference."""
    if comparison.verdict is not Verdict.DIVERGED:
        return []
    ranks = ranks_words(comparison.ranks)
    ends = [one for one in comparison.endings if one not in comparison.not_compared]
    return [*([f"compared: {ranks}"] if ranks else []), *ends]


def _add_windows(text: Text, comparison: Comparison, tally: Tally) -> None:
    """The verdict of each window that began with one state, and how far the trainings were apart before it."""
    if not comparison.windows:
        return
    text.append("\nWindows (both runs begin each with the same state)\n", style="bold")
    for window in comparison.windows:
        add_paragraph(text, window_words(window, tally))
    if gap := gap_words(comparison.windows):
        add_paragraph(text, gap)


def _add_uniform(text: Text, comparison: Comparison) -> None:
    if not comparison.uniform:
        return
    text.append("\nUniform precision changes\n", style="bold")
    for change in comparison.uniform:
        modules = list(dict.fromkeys(site.module or "the model" for site in change.members))
        add_paragraph(text, f"{uniform_words(change)}: {listed(modules, MEMBERS)}")


def _add_next_origins(text: Text, comparison: Comparison, tally: Tally) -> None:
    following = comparison.origins[1:]
    if not following:
        return
    text.append("\nNext origins\n", style="bold")
    for number, origin in enumerate(following[:NEXT_ORIGINS], start=2):
        kind = "" if origin.kind is Kind.FAULT else f": {origin.kind.value}"
        line, entry = f"  {number}. {place_words(origin, tally)}{kind}", Page(width_of(text))
        _add_with_source(entry, line, source_words(origin), used=0)
        add_wrapped(text, entry.plain)
    if len(following) > NEXT_ORIGINS:
        add_line(text, f"  and {len(following) - NEXT_ORIGINS} more (--json lists them)")


def _add_counts(text: Text, comparison: Comparison, tally: Tally, *, show_all: bool) -> None:
    """Add how many tensors came out how: two lines, or with `show_all` a line for each count."""
    if show_all:
        _add_every_count(text, comparison, tally)
        return
    origins = counted(len(comparison.origins), "origin")
    places = f"{origins}, {counted(comparison.inherited, 'later site')}"
    counts = (
        (tally.equal, "equal bit by bit"),
        (tally.inside, "inside their tolerance"),
        (tally.beyond, f"beyond it ({places})" if tally.inside else f"beyond tolerance ({places})"),
        (tally.unjudged - tally.checksums, "could not be judged"),
        (tally.checksums, OTHER_CHECKSUMS),
        (comparison.missing, "missing on one side"),
        (comparison.unaligned_reference + comparison.unaligned_candidate, "unaligned"),
    )
    if not any(count for count, _ in counts):
        return
    told = ", ".join(f"{count} {words}" for count, words in counts if count)
    text.append("\nTensors\n", style="bold")
    if comparison.verdict is not Verdict.AGREE:  # the headline of an agreement has the counts
        add_paragraph(text, f"{comparison.compared} compared: {told}")
    if comparison.compared:
        add_paragraph(text, f"{_judges_in_short(comparison)} (--all: every count and pair)")


def _add_every_count(text: Text, comparison: Comparison, tally: Tally) -> None:
    origins = counted(len(comparison.origins), "origin")
    later = counted(comparison.inherited, "later site")
    unaligned = (comparison.unaligned_reference, comparison.unaligned_candidate)
    counts = (
        (comparison.compared, "compared"),
        (tally.equal, "equal bit by bit"),
        (tally.alike, "equal in value, different in bits (0 and -0), dtype or layout"),
        (tally.inside, "differ inside their tolerance"),
        (tally.beyond, f"differ beyond it: at {origins} and, inherited, at {later}"),
        (
            tally.amplified,
            "of these amplified: ill-conditioned there, small differences grow far",
        ),
        (tally.flipped, "choices flipped inside the noise (see Events)"),
        (tally.unjudged - tally.checksums, "could not be judged"),
        (tally.checksums, OTHER_CHECKSUMS),
        (comparison.missing, "missing on one side"),
        (
            sum(unaligned),
            f"unaligned: {unaligned[0]} in the reference, {unaligned[1]} in the candidate",
        ),
    )
    if any(count for count, _ in counts):
        text.append("\nTensors\n", style="bold")
    for count, words in counts:
        if count:
            add_paragraph(text, words, first=f"{count:>8}  ", indent=" " * 10)
    if comparison.compared:
        add_paragraph(text, _judgement(comparison))


def _add_ends(text: Text, comparison: Comparison) -> None:
    """How the trainings went on."""
    _add_list(text, "After the recorded steps", end_words.paragraphs(comparison))


def _add_setup(text: Text, comparison: Comparison) -> None:
    """What the two runs were set up with otherwise, a line each: reference / candidate."""
    if comparison.setup:
        text.append("\n")
    for one in comparison.setup:
        add_paragraph(text, str(one), indent="")


def _add_unaligned(text: Text, comparison: Comparison, *, show_all: bool) -> None:
    """Calls of one run only; with `show_all` every one, else the first few."""
    sentences = unaligned_sentences(comparison)
    shown = sentences if show_all else sentences[:UNALIGNED]
    more = len(sentences) - len(shown)
    _add_list(text, "Calls without partner", shown)
    if more:
        add_line(text, f"  and {more} more (--all lists them)")


def _judges(comparison: Comparison) -> Counter[str]:
    """Count the tensors that differ by who judged them."""
    return Counter(
        one.judged_by or _BEHIND.get(comparison.judged_by, comparison.judged_by)
        for one in at_hand(comparison.findings)
        if one.outcome in (Outcome.AGREE, Outcome.DIFFER)
        and one.metrics.evidence is not Evidence.DIGEST
    )


def _judges_in_short(comparison: Comparison) -> str:
    judges = _judges(comparison)
    if len(judges) < 2:
        name = next(iter(judges), comparison.judged_by)
        return f"judged by {_IN_SHORT.get(name, name)}"
    told = (f"{_IN_SHORT.get(name, name)} ({count})" for name, count in judges.most_common())
    return f"judged by {', '.join(told)}"


def _judgement(comparison: Comparison) -> str:
    """What decided; where several judges did, of how many of the tensors that differ each."""
    judges = _judges(comparison)
    if len(judges) < 2:
        name = next(iter(judges), comparison.judged_by)
        return f"Judged by {_JUDGES.get(name, name)}."
    of = judges.total()
    words = [f"{count} by {_JUDGES.get(name, name)}" for name, count in judges.most_common()]
    return f"Judged, of {of} that differ: {'; '.join(words)}."


def signs_words(tally: Tally) -> str:
    """Return the meaning of the signs before numbers, if there are any."""
    words = []
    if Evidence.SKETCH in tally.evidence:
        words.append("~ marks estimates from sketches")
    if tally.evidence & {Evidence.SKETCH, Evidence.STATISTICS}:
        words.append(">= lower bounds from statistics")
    return ", ".join(words)


def _add_under_cosine(
    text: Text,
    findings: Sequence[Finding],
    cosine: float,
    limit: int | None,
    width: int | None,
) -> None:
    under = [finding for finding in findings if finding.metrics.cosine < cosine]
    under.sort(key=lambda finding: finding.metrics.cosine)
    unknown = sum(math.isnan(finding.metrics.cosine) for finding in findings)
    beside = f"; {unknown} more have no known cosine" if unknown else ""
    _add_table(
        text, f"Pairs with a cosine under {cosine:g}: {len(under)}{beside}", under, limit, width
    )


def _add_table(
    text: Text, title: str, findings: Sequence[Finding], limit: int | None, width: int | None
) -> None:
    text.append(f"\n{title}\n", style="bold")
    shown = findings if limit is None else findings[:limit]
    if not shown:
        return
    add_line(text, _columns(PAIR_TITLES))
    for finding in shown:
        text.append(f"{_row(finding, width)}\n", style=_row_style(finding))
    if len(shown) < len(findings):
        add_line(text, f"... and {len(findings) - len(shown)} more")


PAIR_TITLES = ("Outcome", "Cosine", "MaxAbsErr", "RelL2", "Margin", "Reached", "Step", "Name")
"""Titles of a table of pairs."""


def pair_cells(finding: Finding) -> tuple[str, ...]:
    """One pair as a line of a table, a text for each of `PAIR_TITLES`."""
    metrics, record = finding.metrics, finding.pair.present
    sign, bound = _SIGNS.get(metrics.evidence, ("", ""))
    alone = "" if finding.pair.candidate else " (reference only)"
    alone = alone if finding.pair.reference else " (candidate only)"
    return (
        "inherited" if finding.inherited else finding.outcome.value,
        figure(metrics.cosine, sign),
        figure(metrics.max_abs, bound),
        figure(metrics.rel_l2, sign),
        factor_figure(finding.margin),
        reached_word(accuracy_reached(metrics)),
        f"{record.step}",
        f"{record.rank}: {tensor_name(record)}{alone}",
    )


def _row(finding: Finding, width: int | None) -> str:
    """A line of a table; where it is wider than the terminal, its name stands below."""
    row = printable(_columns(pair_cells(finding)))
    if width is None or len(row) <= width:
        return row
    name = Page(width)
    add_paragraph(name, row[_NAME_AT:], indent="    ")
    return f"{row[:_NAME_AT].rstrip()}\n{name.plain.rstrip()}"


_NAME_AT = 72
"""Column of a table at which names begin."""


def _columns(cells: Sequence[str]) -> str:
    outcome, *numbers, reached, step, name = cells
    middle = " ".join(f"{number:>10}" for number in numbers)
    return f"{outcome:<12} {middle} {reached:>7} {step:>5}  {name}"


def _row_style(finding: Finding) -> str:
    if finding.outcome is Outcome.DIFFER:
        return "" if finding.inherited else "red"
    return "" if finding.outcome is Outcome.AGREE else "yellow"


def _add_list(text: Text, title: str, sentences: Sequence[str]) -> None:
    if not sentences:
        return
    text.append(f"\n{title}\n", style="bold")
    for sentence in sentences:
        add_paragraph(text, sentence)


def _add_what_next(text: Text, comparison: Comparison) -> None:
    """The command on a line of its own, never broken and never cut: it is there to be pasted."""
    following = comparison.what_next
    if following is not None:
        text.append("\nWhat next", style="bold")
        add_line(text, f": {following.words}")
        add_line(text, f"  {following.command}")


def _add_with_source(text: Text, line: str, source: str, *, used: int) -> None:
    """Add a line and its `file:line`, on a line of its own where both do not fit."""
    whole = f"{line}, {source}" if source else line
    if source and used + len(whole) > width_of(text):
        add_line(text, line)
        add_line(text, f"     in {source}")
    else:
        add_line(text, whole)
