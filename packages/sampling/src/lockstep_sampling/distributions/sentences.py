"""What `lockstep logprobs` says, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.terminal import enveloped
from lockstep_sampling.distributions.judging import Judged, OtherToken
from lockstep_sampling.distributions.positions import Position


def text_of(judged: Judged, *, limit: int) -> str:
    """The answer: a headline, then positions."""
    return "\n".join([headline(judged), *_lines(judged, limit)])


def headline(judged: Judged) -> str:
    """The verdict, with what was not compared."""
    said = _verdict(judged)
    if judged.alone:
        more = f" and {len(judged.alone) - 1} more" if len(judged.alone) > 1 else ""
        said += f"; not compared: {judged.alone[0]}{more}"
    return said


def _verdict(judged: Judged) -> str:
    if not judged.positions and not judged.other_tokens:
        return "nothing was compared"
    parted = _parted(judged.other_tokens[0]) if judged.other_tokens else ""
    if judged.explanation is not None:
        said = f"{judged.explanation.said} (leaves {judged.explanation.rest:.2g})"
        return f"{parted}: {said}" if parted else f"differs: {said}"
    if judged.beyond:
        said = f"{len(judged.beyond)} of {_scope(judged)} are further apart than rounding"
        if judged.coarser:
            said += f": one side's scores were rounded to {judged.coarser}, which their digits tell"
        if judged.pattern is not None:
            said += f": {judged.pattern.said}"
        if judged.lacking:
            said = f"{len(judged.beyond)} of {_scope(judged)} are up to {_most(judged):.2g} apart"
            said = f"not judged: {said}; give {' and '.join(judged.lacking)} to say what rounding allows"
            return f"{parted}; {said}" if parted else said
        return f"{parted}; {said}" if parted else f"differs: {said}"
    if parted and not judged.positions:
        return f"{parted}; no probability before it is on both sides"
    if parted:
        return f"{parted}; the probabilities of {_scope(judged)} agree up to there: it was drawn otherwise"
    return f"agree: {_scope(judged)}, at most {_most(judged):.2g} apart, which rounding allows"


def _parted(other: OtherToken) -> str:
    return (
        f"token {other.place} of sequence {other.sequence} differs: {other.candidate}, in the reference"
        f" {other.reference}"
    )


def _scope(judged: Judged) -> str:
    count = len(judged.positions)
    whole = sum(one.is_whole for one in judged.positions)
    if whole == count:
        return f"{count} positions (whole vocabulary)"
    single = all(one.ids.size == 1 for one in judged.positions)
    what = "of the tokens alone" if single else "of the tokens that both sides list"
    return f"{count} positions ({what})"


def _most(judged: Judged) -> float:
    return max((one.apart for one in judged.positions), default=0.0)


def _lines(judged: Judged, limit: int) -> Iterator[str]:
    if judged.positions and not all(one.ids.size == 1 for one in judged.positions):
        each = [one.divergence for one in judged.positions]
        yield f"  KL divergence: mean {sum(each) / len(each):.2g}, largest {max(each):.2g} nats"
    yield from (f"  {_line(one, judged)}" for one in judged.beyond[:limit])
    if len(judged.beyond) > limit:
        yield f"  and {len(judged.beyond) - limit} more"
    if judged.beyond and judged.explanation is None:
        yield "  old weights give differences without a rule: compare them with `lockstep weights`"


def _line(one: Position, judged: Judged) -> str:
    allowed = judged.rounding.allowed(one)
    return (
        f"position {one.place} of sequence {one.sequence}: {one.apart:.2g} apart, rounding in"
        f" {judged.rounding.dtype} allows {allowed:.2g}"
    )


def json_of(judged: Judged) -> dict[str, Any]:
    """The answer as data."""
    explained = judged.explanation
    return enveloped(
        {
            "verdict": judged.exit_code.name.lower(),
            "headline": headline(judged),
            "explanation": None if explained is None else explained.kind,
            "left_by_explanation": None if explained is None else explained.rest,
            "pattern": None if judged.pattern is None else judged.pattern.kind,
            "rounded_to": judged.coarser or None,
            "lacking_options": list(judged.lacking),
            "not_compared": list(judged.alone),
            "other_tokens": [
                {"sequence": one.sequence, "place": one.place, "reference": one.reference, "candidate": one.candidate}
                for one in judged.other_tokens
            ],
            "positions": [
                {
                    "sequence": one.sequence,
                    "place": one.place,
                    "apart": one.apart,
                    "allowed": judged.rounding.allowed(one),
                    "kl_nats": one.divergence if one.ids.size > 1 else None,
                    "is_whole": one.is_whole,
                }
                for one in judged.positions
            ],
        }
    )  # fmt: skip


__all__ = ["headline", "json_of", "text_of"]
