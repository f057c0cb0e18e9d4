"""The first tensor, in order of time, that two recordings do not share bit by bit; nothing is judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.compare import Aligned, AlignedStep, CallPair, Pair, would_differ
from lockstep.recordings import (
    Call,
    CallKind,
    Family,
    Recording,
    Role,
    Trait,
    operator_of,
    paired_steps,
)

_MADE = frozenset(
    {
        Role.OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD, Role.BUFFER, Role.PARAM_AFTER, Role.STATE_AFTER, Role.LOSS,
    }
)  # fmt: skip
_AT_INDEX = (Trait.ADDS_AT_INDEX, Trait.READS_AT_INDEX)


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two runs of one command part, bit by bit.

    kind: What it is: `init`, `data`, `state`, `random`, `index` (adding up at one index), `collective`, `operator`,
        `calls` (one run alone makes the call), or `between` (nothing that was recorded made it another one).
    site, tensor, source: Where it is, in words; "" for what is not known.
    """

    kind: str
    rank: str
    step: int
    site: str
    tensor: str
    source: str

    def __str__(self) -> str:
        what = f"{self.tensor} of {self.site}" if self.tensor else self.site
        where = f" ({self.source})" if self.source else ""
        return f"{what} at step {self.step}, {self.rank}{where}"


def first_difference(reference: Recording, candidate: Recording) -> FirstDifference | None:
    """The first one; None where every tensor of every step that both have is equal bit by bit.

    Raises UsageError if nothing of the two can be paired.
    """
    for step in paired_steps(reference, candidate):
        found = sorted(_parting(step.calls), key=lambda one: one[0])
        if found:
            _, call, pair, kind = found[0]
            tensor = "" if pair is None else pair.present.name
            return FirstDifference(
                kind, step.rank, step.number, str(call.site), tensor, call.source
            )
    return None


Parting = tuple[int, Call, Pair | None, str]


def _parting(step: AlignedStep) -> Iterator[Parting]:
    """What differs, by its place in time."""
    for lone in step.lone:
        if lone.present.kind is not CallKind.GRADIENT:
            yield lone.present.sequence, lone.present, None, _kind_of_lone(lone)
    for item in step.aligned:
        for pair in item.whole:
            left, right = pair.reference, pair.candidate
            if left is None or right is None:
                continue
            digests = left.content.digest, right.content.digest
            if would_differ(*digests) and digests[0] != digests[1]:
                yield left.sequence, item.reference, pair, _kind(item, pair)


def _kind_of_lone(lone: CallPair) -> str:
    return "data" if lone.present.kind is CallKind.DATA else "calls"


def _kind(item: Aligned, pair: Pair) -> str:
    """What a tensor that differs is, where everything before it was equal."""
    call, role = item.reference, pair.present.role
    if call.kind is CallKind.INIT:
        return "init"
    if call.kind is CallKind.DATA:
        return "data"
    if role is Role.STATE:
        return "state"
    operator = operator_of(call.site.op)
    if role not in _MADE:
        return "between"
    if operator.family in (Family.RANDOM, Family.DROPOUT):
        return "random"
    if "distributed" in call.site.op:
        return "collective"
    return "index" if operator.traits & {*_AT_INDEX} else "operator"
