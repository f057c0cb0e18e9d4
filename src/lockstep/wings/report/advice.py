"""The next commands after a comparison, best first, for the terminal and for each kind of finding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep.commands.record_again import command_line, new_place, show_line
from lockstep.commands.what_next import after_origin, is_whole, made_at
from lockstep.core.finding import Comparison, Kind, Origin
from lockstep.store.reader import Recording
from lockstep.wings.report.comparison_types import Advice

_MORE_ORIGINS = 3

_WHY = {
    Kind.FAULT: "the operator gives something else than the reference's, of inputs that agree",
    Kind.MORE_ACCURATE: "the candidate is nearer to double precision than the reference here",
    Kind.SETUP: "the two runs ask for different things here, so neither need be wrong",
    Kind.RANDOM: "the two runs draw different random numbers, behind which all else differs",
    Kind.RECOMPUTED: "activation checkpointing takes the gradients of another network than the one whose loss it took",
    Kind.UNIFORM: "the candidate computes in another precision, here and everywhere",
}
"""What a kind of origin means for whoever is to act on it."""


def advice(
    comparison: Comparison, reference: Recording, candidate: Recording
) -> tuple[Advice, ...]:
    """Commands that lead on, each once and each on one line that can be pasted; the terminal's is the first.

    Raises CorruptError if a recording is damaged where a command depends on what it holds.
    """
    found = list(_first(comparison))
    if comparison.origins:
        found.extend(_at(comparison.origins[0], reference, candidate))
        found.extend(_at_others(comparison, reference, candidate))
    if comparison.compared:
        line = command_line("compare", reference.path, candidate.path, "--all")
        found.append(Advice("list every pair and what is said of it", line))
    return tuple({one.command: one for one in reversed(found)}.values())[::-1]


def _first(comparison: Comparison) -> Iterator[Advice]:
    following = comparison.what_next
    if following is not None:
        kind = comparison.origins[0].kind if comparison.origins else None
        yield Advice(following.words, following.command, "" if kind is None else _WHY.get(kind, ""))


def _at(origin: Origin, reference: Recording, candidate: Recording) -> Iterator[Advice]:
    """What can be done with what was recorded at an origin."""
    both = (reference, origin.finding.pair.reference), (candidate, origin.finding.pair.candidate)
    shown = [
        show_line(run, record, record.site)
        for run, record in both
        if record is not None and record.site.op
    ]
    calls = [one for one in made_at(origin, reference, candidate) if one is not None]
    whole = bool(calls) and all(map(is_whole, calls))
    if whole and len(calls) == 2 and origin.kind in (Kind.FAULT, Kind.MORE_ACCURATE):
        proof = new_place(Path("proof"))
        line = command_line("replay", reference.path, candidate.path, "--write-test", proof)
        words = (
            "it runs the one call on its recorded inputs, without Lockstep and without the model"
        )
        yield Advice("write a test of it for the maker of the device", line, words)
    if shown:
        words = "statistics, arguments and call stack"
        yield Advice("show what was recorded there", " && ".join(shown), words)
    for run, record in both[::-1]:
        if whole and record is not None:
            file = new_place(Path("origin.safetensors"))
            line = command_line(
                "extract", run.path, record.site, "--steps", record.step, "-o", file
            )
            yield Advice("take its tensors out into a file", line)
            return


def _at_others(
    comparison: Comparison, reference: Recording, candidate: Recording
) -> Iterator[Advice]:
    others = comparison.origins[1:]
    for number, origin in enumerate(others[:_MORE_ORIGINS], start=2):
        following = after_origin(origin, reference, candidate)
        words = f"origin {number} of {len(others) + 1}: {following.words}"
        yield Advice(words, following.command, _WHY.get(origin.kind, ""))
