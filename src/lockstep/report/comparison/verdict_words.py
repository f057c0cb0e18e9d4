"""The words and counts of a verdict for the terminal, the sheet and the report: where, which tensor, by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lockstep.core.errors import ExitCode
from lockstep.core.finding import (
    Comparison,
    Evidence,
    Explanation,
    Finding,
    JudgedWindow,
    Kind,
    Origin,
    Outcome,
    RanksCompared,
    UniformChange,
    Verdict,
    at_hand,
    equal_ranks,
)
from lockstep.core.reason import About, Reason
from lockstep.core.records import would_differ
from lockstep.core.remarks import On
from lockstep.core.site import Phase
from lockstep.core.text import listed, spans, times
from lockstep.core.told_facts import Told
from lockstep.report.comparison import end_words
from lockstep.report.comparison.end_words import idle_settings, settings_in_headline
from lockstep.report.paragraphs import counted


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer about a comparison that every verb and face prints.

    word: The verdict, but for runs of which none is wrong and each computes in a precision of its own.
    mark: What stands between the two: a colon, or nothing where a place follows.
    clauses: What follows it.
    source: The source line of the first origin, or "".
    more: The faults beside the first one, or "": the first may be one that nobody planted, as a library's race or a
        flipped bit in the reference.
    exit_code: What a shell is told.
    """

    word: str
    mark: str
    clauses: tuple[str, ...]
    source: str
    more: str
    exit_code: ExitCode

    @property
    def words(self) -> str:
        """The words after the first one, up to the source line."""
        return f"{self.mark} {'; '.join(self.clauses)}"

    @property
    def rest(self) -> str:
        """All that follows the first word and its mark."""
        source = f", {self.source}" if self.source else ""
        return " ".join(f"{'; '.join(self.clauses)}{source} {self.more}".split())

    @property
    def headline(self) -> str:
        """The verdict in one sentence, with its place and the source line of its first origin."""
        return f"{self.word}{self.mark} {self.rest}"

    @property
    def short(self) -> str:
        """The verdict, and where it is at a place that place."""
        return self.word if self.mark else f"{self.word} {self.clauses[0]}"


def answer_of(comparison: Comparison, tally: Tally | None = None) -> Answer:
    """Return verdict, headline and exit code of a comparison; the one place where they are decided."""
    tally = tally or tally_of(comparison.findings)
    word = "ANOTHER PRECISION" if comparison.other_precision_alone else comparison.verdict.name
    source = source_words(comparison.origins[0]) if comparison.origins else ""
    source = "" if _unseeded(comparison) else source
    (mark, clauses), more = _clauses(comparison, tally), _more_origins(comparison, tally)
    return Answer(word, mark, tuple(clauses), source, more, comparison.exit_code())


def headline(comparison: Comparison) -> str:
    """Return the verdict in one sentence, as every verb and face prints it first."""
    return answer_of(comparison).headline


def _clauses(comparison: Comparison, tally: Tally) -> tuple[str, list[str]]:
    """What follows the word of a verdict, and what stands between."""
    if comparison.other_precision_alone:
        return "", [f"{_no_culprit(comparison)}: {uniform_words(comparison.uniform[0])}"]
    if unseeded := _unseeded(comparison):
        return ":", [unseeded]
    if comparison.origins:
        return "", [f"at {place_words(comparison.origins[0], tally)}"]
    compared = _compared(comparison, tally)
    if comparison.verdict is Verdict.AGREE:
        return ":", compared
    if comparison.verdict is Verdict.INCOMPARABLE:
        first = (*comparison.not_compared, *comparison.notes, "nothing could be compared")[0]
        more = [one for one in comparison.endings if one != first]
        return ":", [first, *(compared if comparison.compared else more)]
    if of_all_steps := end_words.logs_in_headline(comparison.step_logs):
        return "", [of_all_steps]
    if differed := next((one for one in comparison.windows if one.differed), None):
        return "", [f"before step {differed.steps[0]}: {differed.differed[0]}"]
    if left := next((one for one in comparison.windows if one.left), None):
        return "", [f"after the update of step {left.steps[0]}: {left.left[0]}"]
    if late := next((one for one in comparison.windows if one.precision), None):
        return "", [f"at step {late.steps[0]}, not in each window: {late.precision}"]
    if comparison.uniform:
        words = f"another precision {_no_culprit(comparison)} in what was judged"
        return ":", [f"{words}: {uniform_words(comparison.uniform[0])}"]
    if parted := end_words.parting(comparison):
        return "", [f"after the recorded steps: {parted}", *compared]
    return ":", [f"{comparison.inherited} tensors differ, but none can be named the first"]


def _unseeded(comparison: Comparison) -> str:
    """How it is told that the runs drew other numbers as no seed was set; "" where that is not what differs first."""
    clauses = comparison.origins[0].reason.clauses[:1] if comparison.origins else ()
    return next((one.words for one in clauses if one.about is About.UNSEEDED), "")


def _more_origins(comparison: Comparison, tally: Tally) -> str:
    more = [one for one in comparison.origins[1:] if one.kind is Kind.FAULT]
    if not more:
        return ""
    return f"and at {counted(len(more), 'more origin')}: {place_words(more[0], tally)}" + (
        " first" if len(more) > 1 else ""
    )


def lines_below(comparison: Comparison) -> list[str]:
    """Return the lines below a headline: reason, explanation, tolerance; of an agreement, settings that bit nothing."""
    lines: list[str] = list(idle_settings(comparison))
    if _unseeded(comparison):
        first = comparison.origins[0]
        where = place_words(first, tally_of(comparison.findings))
        return [f"seen first at {where}: {Reason(*first.reason.without(About.UNSEEDED))}"]
    for origin in comparison.origins[:1]:
        lines.append(origin_words(origin))
        if origin.explanation is not None:
            lines.append(explanation_sentence(origin.explanation))
        lines.append(tolerance_words(origin))
    if comparison.origins and (differed := end_words.logs_in_headline(comparison.step_logs)):
        lines.append(f"the trainings differ {differed}")
    return [line for line in lines if line]


def gap_words(windows: Sequence[JudgedWindow]) -> str:
    """Return between which steps the first bad one is, "" where a window shows it or none before agrees."""
    bad = next((n for n, one in enumerate(windows) if one.verdict is Verdict.DIVERGED), 0)
    if not bad or windows[bad - 1].verdict is not Verdict.AGREE:
        return ""
    agrees = windows[bad - 1].steps  # of the last of several no mean of the weights was measured
    last, first = (agrees[:-1] or agrees)[-1], windows[bad].steps[0]
    origin = windows[bad].origin
    if first == last + 1 or (origin is not None and origin.step > first):
        return ""
    return f"the first bad step is after step {last} and at step {first} at the latest; lockstep zoom finds it"


def figure(value: float, sign: str = "") -> str:
    """A number with four digits; a dash where it is not known."""
    return "-" if math.isnan(value) else f"{sign}{value:.4g}"


def place_words(origin: Origin, tally: Tally) -> str:
    ranks = tally.ranks | {origin.rank}
    rank = f"{origin.rank}, " if ranks != {"rank0"} else ""
    when = f"{rank}step {origin.step}, "
    if origin.phase is Phase.DATA:
        return f"{when}data: {origin.tensor or 'the batch'}"
    if origin.phase in (Phase.INIT, Phase.OPTIMIZER):
        owner = f" ({origin.op})" if origin.op else ""
        return (
            f"{when}{origin.phase.value} of {origin.tensor or origin.module or 'the model'}{owner}"
        )
    if origin.op == _ADDED_UP and origin.tensor:
        return f"{when}{origin.phase.value} of {origin.tensor} (its gradient, added up)"
    if origin.between:
        return f"{when}{origin.phase.value} {origin.between}"
    call = f", call {origin.call + 1}" if origin.call else ""
    if origin.after_backward:
        return f"{when}between backward and update ({origin.op}{call})"
    if not origin.op:  # another tool tells a name alone
        return f"{when}{origin.phase.value} of {_module(origin)}{call}"
    return f"{when}{origin.phase.value} of {_module(origin)} ({origin.op}{call})"


def window_words(window: JudgedWindow, tally: Tally) -> str:
    """Return a window's steps and verdict, and what is known of the time before it."""
    where = f" at {place_words(window.origin, tally)}" if window.origin is not None else ""
    apart = window.distance
    before = "" if not apart else f"; the parameters differed by {apart:.2g} before"
    differed = "".join(f"; before, {one}" for one in window.differed)
    missing = f"; not set: {listed(list(window.not_set))}" if window.not_set else ""
    left = "".join(f"; after the update of step {window.steps[0]}, {one}" for one in window.left)
    precision = f"; {window.precision}" if window.precision else ""
    name = "step" if len(window.steps) == 1 else "steps"
    return f"{name} {spans(window.steps)}: {window.verdict.name}{where}{precision}{before}{differed}{left}{missing}"


_ADDED_UP = "accumulate_grad"
"""What the recorder calls the gradient of a parameter as backward leaves it."""


def _module(origin: Origin) -> str:
    """The module of an origin; of a tree beside the model its place in there, and which tree that is."""
    if not origin.beside:
        return origin.module or "the model"
    inside = origin.module.partition(".")[2]
    return f"{inside} in {origin.beside}" if inside else origin.beside


def source_words(origin: Origin) -> str:
    """The user's line, and the library's that it led to."""
    return f"{origin.source} through {origin.library}" if origin.library else origin.source


def origin_words(origin: Origin) -> str:
    """Kind and reason of an origin, the kind once."""
    clauses = origin.reason.clauses
    said = origin.kind is Kind.RANDOM and clauses[0].about is About.RANDOM
    return origin.reason if said else f"{origin.kind.value}: {origin.reason}"


def explanation_sentence(explanation: Explanation) -> str:
    """Return the candidate's computation as a sentence, with the share of the error that it explains."""
    share = math.floor(1e4 * explanation.share) / 100  # 100 % is said of what leaves nothing
    return f"what it computes instead: {explanation.words} (explains {share:g} % of the error)"


def tolerance_words(origin: Origin) -> str:
    """Return the tolerance in words and how many times the difference exceeds it, or that nothing rounds."""
    finding = origin.finding
    if math.isnan(finding.tolerance) or not finding.margin:
        return ""
    if not finding.rounds:
        return "no rounding is expected here"
    beyond = (
        "" if math.isinf(finding.margin) else f"; the difference is {times(finding.margin)} that"
    )
    return f"tolerance here: rel {finding.tolerance:.2g}{beyond}"


def uniform_words(change: UniformChange) -> str:
    if change.of:
        return f"{change.name} at {len(change.members)} of {counted(change.of, 'site')}"
    return f"{change.name}, at {counted(len(change.members), 'site')}"


def _no_culprit(comparison: Comparison) -> str:
    where = "in part, as set up" if any(one.of for one in comparison.uniform) else "throughout"
    return f"{where}, no operator at fault"


OTHER_CHECKSUMS = "not judged (equal numbers, different checksums)"
"""How pairs are told of which only checksums of another tool differ."""


def _compared(comparison: Comparison, tally: Tally) -> list[str]:
    """What was compared and how it came out; what was not judged, where there is any."""
    ranks = ranks_words(comparison.ranks)
    steps = f"{ranks}{', ' if ranks else ''}{_steps(comparison.steps, comparison.trained)}"
    if not comparison.compared:
        return [f"{steps}no tensor was compared"]
    compared = f"{steps}{comparison.compared} tensors compared"
    unaligned = comparison.unaligned_reference + comparison.unaligned_candidate
    parts = (
        (tally.equal, "equal bit by bit"),
        (tally.alike, "equal in every number"),
        (tally.inside, "inside their tolerance"),
        (tally.unjudged - tally.checksums, "could not be judged"),
        (tally.checksums, OTHER_CHECKSUMS),
        (comparison.missing, "without partner"),
        (unaligned, _unaligned_words(comparison, unaligned)),
    )
    said = [f"{count} {words}" for count, words in parts if count]
    if tally.equal == comparison.compared and len(said) == 1:
        said[0] = "all equal bit by bit"
    found = [", ".join([compared, *said])]
    if tally.by_statistics:
        found.append(
            f"{tally.by_statistics} by statistics alone, which do not show the order of elements"
        )
    if tally.overruled:
        found.append(f"{tally.overruled} by a re-run that overrules the error model (see Notes)")
    if comparison.compiled:
        what = " and ".join(comparison.compiled)
        found.append(f"compared at the boundary of compiled code: {what}")
    if any(Told.of(one).facts.why is On.BY_PAIRS for one in comparison.notes):
        found.append("judged by pairs of calls alone (see Notes)")
    if comparison.not_run_again:
        found.append(f"judged without running operators of {comparison.not_run_again} again")
    found += [comparison.unconfirmed] if comparison.unconfirmed else []
    if comparison.windows:
        found.append("each window begins with one state, which was set")
    found += end_words.logs_in_agreement(comparison.step_logs)
    found += end_words.in_headline(comparison.ends)
    found += settings_in_headline(comparison)
    said_before = {*found, *comparison.not_compared[:1]}  # what an INCOMPARABLE begins with
    found += [one for one in comparison.endings if one not in said_before]
    beside = ", ".join(comparison.unrecorded)
    return [*found, f"not recorded: {beside}"] if beside else found


def _unaligned_words(comparison: Comparison, count: int) -> str:
    """How calls without partner are told; whether anything depends on them."""
    words = "call unaligned" if count == 1 else "calls unaligned"
    beside = sum(one.count for one in comparison.unaligned_calls if one.beside)
    if not beside:
        return words
    if beside == count:
        return f"{words} (on which nothing recorded depends)"
    return f"{words} (on {beside} of them nothing recorded depends)"


def ranks_words(ranks: RanksCompared) -> str:
    """`rank 0 of 2`; nothing where every rank was compared."""
    if ranks.are_all or not ranks.numbers:
        return ""
    return f"rank{'s'[len(ranks.numbers) == 1 :]} {spans(ranks.numbers)} of {ranks.world_size}"


def _steps(steps: Sequence[int], trained: Sequence[int | None]) -> str:
    """`steps 0-1 of 4 trained, `; without gaps as a range."""
    if not steps:
        return ""
    known = sorted({count for count in trained if count is not None and count > len(steps)})
    of = f" of {' and '.join(map(str, known))} trained" if known else ""
    return f"{'steps' if len(steps) > 1 else 'step'} {spans(steps)}{of}, "


_TELLS_NUMBERS = frozenset({Evidence.TENSORS, Evidence.SKETCH})


@dataclass(slots=True)
class Tally:
    """Counts of findings: each compared tensor is `equal`, `alike`, `inside`, `beyond` or `unjudged`.

    equal: Tensors that are equal bit by bit.
    alike: Tensors that hold the same numbers, and not the same bits in the same place: 0 and -0, which IEEE 754 calls
        equal, another dtype, or another layout. Whole tensors or sketches tell it.
    inside: Those that differ inside their tolerance.
    beyond: Those that differ beyond it.
    unjudged: Those of which nothing could be said, `checksums` among them.
    checksums: Those whose numbers are equal, and of which another tool noted two checksums that are not: these may be
        of a later moment.
    amplified, flipped: Those of these kinds: `Kind.AMPLIFIED`, `Kind.DECISION`.
    overruled: Those that a re-run acquits, and that are faults without one.
    by_statistics: Those that agree by their statistics alone, which do not tell in which order elements stand, and have
        other digests; where there is no digest, the comparison itself says what is not known.
    evidence: Sources of numbers that occur.
    ranks: Ranks that occur.
    """

    equal: int = 0
    alike: int = 0
    inside: int = 0
    beyond: int = 0
    unjudged: int = 0
    checksums: int = 0
    amplified: int = 0
    flipped: int = 0
    overruled: int = 0
    by_statistics: int = 0
    evidence: set[Evidence] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)

    def add(self, finding: Finding) -> None:
        """Count one finding."""
        source, outcome, kind = finding.metrics.evidence, finding.outcome, finding.kind
        self.evidence.add(source)
        self.ranks.add(finding.pair.present.rank)
        if outcome is Outcome.MISSING:
            pass
        elif outcome is Outcome.INCOMPARABLE or finding.is_by_checksum_alone:
            self.unjudged += 1
            self.checksums += finding.is_by_checksum_alone
        elif source is Evidence.DIGEST:  # also where a setting is told of equal tensors
            self.equal += 1
        elif outcome is Outcome.DIFFER:
            self.beyond += 1
        elif math.isnan(finding.difference):
            self.unjudged += 1
        elif finding.difference == 0 and source in _TELLS_NUMBERS:
            self.alike += 1
        else:
            self.inside += 1
        self.overruled += finding.overrules
        judged = outcome is Outcome.AGREE and not finding.is_by_checksum_alone
        if judged and source is Evidence.STATISTICS:
            sides = (finding.pair.reference, finding.pair.candidate)
            digests = [None if one is None else one.digest for one in sides]
            self.by_statistics += would_differ(*digests)
        if kind is Kind.AMPLIFIED:
            self.amplified += 1
        elif kind is Kind.DECISION:
            self.flipped += 1


def tally_of(findings: Iterable[Finding]) -> Tally:
    """Count all findings."""
    tally = Tally()
    for finding in at_hand(findings):
        tally.add(finding)
    for rank in equal_ranks(findings):
        tally.equal += rank.count
        tally.ranks.add(rank.name)
        tally.evidence.add(Evidence.DIGEST)
    return tally
