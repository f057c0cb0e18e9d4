"""Probabilities that are given to a loss that makes probabilities itself."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import Role, canonical_name
from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.scores import OF_CLASSES, calls_named, origin_of

_SQUASHED_BY = {
    **dict.fromkeys(OF_CLASSES, "softmax"),
    "binarycrossentropywithlogits": "sigmoid",
    "bcewithlogitsloss": "sigmoid",
}


def squashed_twice(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """A loss takes scores, or their logarithms, and is given probabilities.

    Formula: the input of a cross entropy or a negative log-likelihood is the result of a softmax, or that of a
    binary cross entropy with logits the result of a sigmoid, where a gradient comes back.

    Usual cause: a softmax or sigmoid at the end of a network whose loss has one inside.

    Cure: leave it out where the loss is taken; for `NLLLoss` take `log_softmax`.

    Source: PyTorch's documentation of `CrossEntropyLoss`, `NLLLoss` and `BCEWithLogitsLoss`.
    """
    made = {
        record.content.id: call
        for call in calls_named(step, *set(_SQUASHED_BY.values()))
        for record in call.with_role(Role.OUTPUT)
    }
    seen: set[int] = set()
    for loss in calls_named(step, *_SQUASHED_BY):
        if not loss.with_role(Role.GRAD_OUTPUT) or not loss.with_role(Role.INPUT):
            continue
        given = loss.with_role(Role.INPUT)[0].content.id
        if given in seen:
            continue  # the function that a module calls
        seen.add(given)
        before = made.get(origin_of(step, given))
        wanted = _SQUASHED_BY[canonical_name(loss.site.op)]
        holds = before is not None and canonical_name(before.site.op) == wanted
        if step.memory.in_a_row("squashed", str(loss.site), holds) >= steps:
            words = (
                f"{loss.site.op} is given the result of a {wanted}: it takes {_takes(loss.site.op)}"
            )
            yield step.hit(str(loss.site), words, call=loss)


def _takes(op: str) -> str:
    return "log-probabilities" if canonical_name(op) == "nllloss" else "scores without it"
