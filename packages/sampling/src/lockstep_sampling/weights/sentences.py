"""What `lockstep weights` says, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lockstep.terminal import enveloped
from lockstep_sampling.weights.matching import Pair
from lockstep_sampling.weights.verdict import Judged, Judgement, Stale

_MOST_NAMES = 4


def text_of(judgement: Judgement, *, limit: int) -> str:
    """The answer: a headline, then a line for each weight that is not simply equal."""
    judged = _foremost(judgement)
    lines = [headline(judgement), *_rows(judged, limit)]
    others = [one for one in judgement.judged if one is not judged and one.exit_code]
    lines += [f"step {one.candidate_step}: {_said(one)}" for one in others[:limit]]
    if len(others) > limit:
        lines.append(f"and {len(others) - limit} more steps")
    return "\n".join(lines)


def headline(judgement: Judgement) -> str:
    """The first line: of the first step that differs, or of all."""
    judged = _foremost(judgement)
    said = _said(judged)
    if len(judgement.judged) > 1:
        if judgement.exit_code:
            said = f"step {judged.candidate_step}: {said}"
        else:
            said = f"{said}, at each of {len(judgement.judged)} steps"
    elif _are_of_other_steps(judged):
        said += (
            f" (step {judged.candidate_step} beside step {judged.reference_step} of the reference)"
        )
    if judgement.left_out:
        said += f"; not compared: steps {_listed(map(str, judgement.left_out))}, which the reference lacks"
    return said


def _are_of_other_steps(judged: Judged) -> bool:
    steps = judged.reference_step, judged.candidate_step
    return None not in steps and steps[0] != steps[1]


def _foremost(judgement: Judgement) -> Judged:
    """The first one of the worst exit code."""
    worst = judgement.exit_code
    return next(one for one in judgement.judged if one.exit_code == worst)


def _said(judged: Judged) -> str:
    """One version in a sentence, with what was not compared."""
    parts = [_verdict(judged)]
    matching = judged.matching
    for names, side in ((matching.missing, "candidate"), (matching.unexpected, "reference")):
        if names:
            parts.append(f"{_count(len(names))} missing in the {side}: {_listed(names)}")
    if judged.not_judged:
        reasons = dict.fromkeys(pair.relation.words for pair in judged.not_judged)
        parts.append(f"{_count(len(judged.not_judged))} not judged ({_reasons(reasons)})")
    return "; ".join(parts)


def _reasons(words: Iterable[str]) -> str:
    """Reasons, each once, with what they are about: "quantised: int8, float8_e5m2"."""
    about: dict[str, list[str]] = {}
    for one in words:
        reason, _, what = one.partition(": ")
        about.setdefault(reason, []).append(what)
    said = (f"{reason}: {_listed(what)}" if any(what) else reason for reason, what in about.items())
    return "; ".join(said)


def _verdict(judged: Judged) -> str:
    total = len(judged.matching.pairs)
    if judged.whole is not None:
        return _behind(judged, judged.whole)
    if judged.differing:
        return _differs(judged, total)
    if not judged.agreeing:
        return f"nothing was compared: 0 of {total} tensors"
    casts = sorted({pair.relation.dtype for pair in judged.agreeing if pair.relation.dtype})
    after = f" after a cast to {' and '.join(casts)}" if casts else ""
    return f"equal{after}: {len(judged.agreeing)} of {total} tensors"


def _behind(judged: Judged, whole: Stale) -> str:
    said = f"equal to the reference's weights of step {whole.step}"
    ours = judged.reference_step
    if ours is None or whole.step is None:
        return said
    count, side = abs(ours - whole.step), "behind" if whole.step < ours else "ahead"
    return f"{'one step' if count == 1 else f'{count} steps'} {side}: {said}"


def _differs(judged: Judged, total: int) -> str:
    differing = judged.differing
    places = {id(pair): place for place, pair in enumerate(judged.matching.pairs)}
    stale = [pair for pair in differing if places[id(pair)] in judged.stale]
    if len(stale) == len(differing):
        steps = sorted({_of(judged.stale[places[id(pair)]]) for pair in stale})
        return f"{_shared(stale)} not updated ({len(stale)} of {total} tensors): equal to {_listed(steps)}"
    known = [pair for pair in differing if pair.relation.relative is not None]
    largest = max(known, key=lambda pair: pair.relation.relative or 0.0, default=None)
    said = f"differs: {len(differing)} of {total} tensors"
    if largest is not None:
        said += (
            f", largest relative difference {_number(largest.relation.relative)} ({largest.name})"
        )
    return said


def _of(stale: Stale) -> str:
    whose = "the candidate's own" if stale.is_own else "the reference's"
    return f"{whose} weights of step {stale.step}"


def _rows(judged: Judged, limit: int) -> Iterator[str]:
    """A line for each pair that differs or was not judged, then one for each way in which others were put together."""
    telling = [
        _row(judged, place, pair)
        for place, pair in enumerate(judged.matching.pairs)
        if not pair.relation.agrees
    ]
    yield from (f"  {line}" for line in telling[:limit])
    if len(telling) > limit:
        yield f"  and {len(telling) - limit} more"
    ways: dict[str, list[Pair]] = {}
    for pair in judged.agreeing:
        told = "; ".join(filter(None, (pair.how, pair.relation.words)))
        if told:
            ways.setdefault(told, []).append(pair)
    for told, pairs in ways.items():
        yield f"  {_count(len(pairs))} {told}: {_listed([pair.name for pair in pairs], most=1)}"
    renamed = [
        pair for pair in judged.agreeing if pair.reference != pair.candidate and not pair.how
    ]
    if renamed:
        yield f"  {_count(len(renamed))} of other names: {_listed([pair.name for pair in renamed], most=1)}"


def _row(judged: Judged, place: int, pair: Pair) -> str:
    relation = pair.relation
    words = [relation.words, pair.how]
    if relation.relative is not None:
        words.insert(0, f"relative difference {_number(relation.relative)}")
    if place in judged.stale:
        words.append(f"equal to {_of(judged.stale[place])}")
    if place in judged.moved:
        words.append(f"equal to the reference's {judged.moved[place]}")
    said = "; ".join(filter(None, words))
    return f"{pair.name}: {relation.standing.value}{f' ({said})' if said else ''}"


def _shared(pairs: Sequence[Pair]) -> str:
    """What the names of all have in front, `layers.3`; the names where they have nothing."""
    names = [pair.reference[0].split(".") for pair in pairs]
    shared: list[str] = []
    for words in zip(*names, strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    if len(pairs) > 1 and shared:
        return ".".join(shared)
    return _listed([pair.reference[0] for pair in pairs])


def _number(value: float | None) -> str:
    """Two digits: a sketch tells no more.

    >>> _number(0.01234)
    'about 0.012'
    """
    if value is None or math.isnan(value):
        return "not known"
    return f"about {value:.2g}"


def _count(number: int) -> str:
    return f"{number} tensor{'' if number == 1 else 's'}"


def _listed(names: Iterable[str], most: int = _MOST_NAMES) -> str:
    known = list(names)
    more = len(known) - most
    return ", ".join(known[:most]) + (f" and {more} more" if more > 0 else "")


def json_of(judgement: Judgement) -> dict[str, Any]:
    """The answer as data."""
    return enveloped(
        {
            "verdict": judgement.exit_code.name.lower(),
            "headline": headline(judgement),
            "reference": str(judgement.reference),
            "candidate": str(judgement.candidate),
            "steps": [_json_of(one) for one in judgement.judged],
            "not_compared_steps": list(judgement.left_out),
        }
    )


def _json_of(judged: Judged) -> dict[str, Any]:
    return {
        "reference_step": judged.reference_step,
        "candidate_step": judged.candidate_step,
        "says": _said(judged),
        "equal_to_step": None if judged.whole is None else judged.whole.step,
        "missing_in_candidate": judged.matching.missing,
        "missing_in_reference": judged.matching.unexpected,
        "tensors": [
            {
                "reference": list(pair.reference),
                "candidate": list(pair.candidate),
                "standing": pair.relation.standing.value,
                "cast_to": pair.relation.dtype or None,
                "relative_difference": pair.relation.relative,
                "says": "; ".join(filter(None, (pair.relation.words, pair.how))),
                "equal_to_step": judged.stale[place].step if place in judged.stale else None,
                "equal_to_candidates_own_step": place in judged.stale
                and judged.stale[place].is_own,
                "equal_to_weight": judged.moved.get(place),
            }
            for place, pair in enumerate(judged.matching.pairs)
        ],
    }


__all__ = ["headline", "json_of", "text_of"]
