"""Everything that a page shows of a comparison, gathered from it and from its two recordings."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.core.finding import Comparison
from lockstep.core.redaction import REDACTED
from lockstep.core.text import shell_line
from lockstep.locate.setups.explains_origin import set_up_answers
from lockstep.report.comparison import end_words
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.lone_calls import unaligned_sentences
from lockstep.report.comparison.verdict_words import answer_of, lines_below, uniform_words
from lockstep.store.reader import Recording
from lockstep.wings.report.advice import advice
from lockstep.wings.report.comparison_types import (
    ComparisonData,
    Run,
    SetupLine,
)
from lockstep.wings.report.module_tree import module_tree
from lockstep.wings.report.pair_columns import chosen_pairs, pairs_of
from lockstep.wings.report.pair_details import Details, detailed_rows
from lockstep.wings.report.source_excerpts import excerpts

DETAILS = 40
LARGEST_PAIRS = 300_000


def gather(
    comparison: Comparison,
    reference: Recording,
    candidate: Recording,
    *,
    details: int = DETAILS,
    largest_pairs: int = LARGEST_PAIRS,
) -> ComparisonData:
    """Everything that a page shows of a comparison.

    Parameters
    ----------
    comparison
        What comparing the two found.
    reference, candidate
        The two recordings, of which tensors are read.
    details
        Of how many of the worst pairs details are gathered, beside those of all origins.
    largest_pairs
        Of more pairs than this, equal ones are left out.

    Raises
    ------
    CorruptError
        If a file of a recording is damaged.

    Examples
    --------
    >>> gather(compare_recordings("ref", "npu"), open_recording("ref"), open_recording("npu"))  # doctest: +SKIP
    """
    chosen = chosen_pairs(comparison, largest_pairs)
    pairs = pairs_of(chosen, comparison)
    origins = chosen.rows_of(comparison.origins)
    rows = detailed_rows(chosen, pairs, origins, details)
    shown = Details(chosen, pairs, reference, candidate).of(rows)
    frames = (f"{one.file}:{one.line}" for detail in shown.values() for one in detail.stack)
    places = dict.fromkeys((*frames, *pairs.source.names))
    answer = answer_of(comparison)
    return ComparisonData(
        answer=comparison_json(comparison),
        headline=answer.rest,
        first_clause=answer.clauses[0],
        later_clauses="; ".join(answer.clauses[1:]),
        reasons=_reasons(comparison),
        advice=advice(comparison, reference, candidate),
        runs=(run_of("reference", reference), run_of("candidate", candidate)),
        pairs=pairs,
        origins=origins,
        left_out=chosen.left_out,
        details=shown,
        sources=excerpts(places, (candidate, reference)),
        modules=module_tree(pairs, set(origins), (reference, candidate)),
        set_up=tuple(
            SetupLine(one.difference.words, one.answer.value, one.why)
            for one in set_up_answers(comparison)
        ),
        coverage=tuple(_coverage(comparison)),
    )


def _reasons(comparison: Comparison) -> tuple[str, ...]:
    """The lines below the terminal's first one."""
    lines = [*lines_below(comparison), *map(uniform_words, comparison.uniform)]
    return (*lines, *end_words.paragraphs(comparison))


def run_of(name: str, recording: Recording) -> Run:
    """One side; what a rank says of its machine is the first rank's."""
    manifest = recording.manifest
    first = next(iter(recording.ranks.values()), None)
    steps = {step for rank in recording.ranks.values() for step in rank.steps}
    kept = manifest.command and manifest.command != [REDACTED]
    return Run(
        name=name,
        path=str(recording.path),
        version=first.manifest.packages.get("torch", "") if first else "",
        device=", ".join(first.manifest.devices) if first else "",
        steps=tuple(sorted(steps)),
        command=shell_line(manifest.command) if kept else "",
    )


def _coverage(comparison: Comparison) -> Iterator[str]:
    """What was not compared, has no partner or ended early, and what else is to be known; each sentence once."""
    sentences = (
        *comparison.not_compared,
        *unaligned_sentences(comparison),
        *comparison.endings,
        *(f"not recorded: {what}" for what in comparison.unrecorded),
        *(f"compared at the boundary of compiled code: {what}" for what in comparison.compiled),
        *comparison.notes,
    )
    return iter(dict.fromkeys(sentences))
