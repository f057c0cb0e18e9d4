"""Labels that are the same in every step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set

from lockstep.recordings import (
    ARRIVED_IN,
    Call,
    CallKind,
    Family,
    Role,
    Statistics,
    TensorRecord,
    canonical_name,
    family_of,
)
from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.scores import origin_of

_LAST = ("labels-constant", "labels and batch before")
_VALUE = ("labels-constant", "number of the step before")
_MOVED = ("labels-constant", "how far batches moved")
_ANOTHER = 0.4
"""Half of the mean of |z| of a normal number, 0.798; noise of a fifth on one batch gives 0.16."""
_SEEN = 3000


def labels_constant(step: ObservedStep, *, steps: int = 10) -> Iterator[Hit]:
    """The targets of a loss are the same in every step, while the batch is not.

    Formula: all labels of a step hold one number, the same in each, and the scores come out of weights of the
    model; or they are, to the last bit, those of the watched step before, while the model gets a different batch
    (its mean moves by more than 0.4 of the standard error of two independent batches). With two classes it is a
    note until 3000 labels were seen. Not counted: `0, 1, 2 ... n - 1`, and scores that are put together from
    others, as in contrastive losses. A number that the step itself makes a target of counts where backward begins
    from that loss alone.

    Usual cause: a reader that gives one column for all, labels that are read once before the loop, a wrong index.

    Cure: look at a batch as your loader gives it; `lockstep report` shows it.

    Source: MindInsight's method for accuracy problems ("look at the input data"). 3000 labels: the rule of three,
    Hanley and Lippman-Hand, JAMA 249 (1983).
    """
    arrived = list(_labels(step))
    labels = arrived + list(_made_labels(step))
    values = {_only_value(one) for _, one in labels}
    same_value = len(values) == 1 and None not in values
    one_number = same_value and all(_is_scored_by_weights(step, call) for call, _ in labels)
    value = next(iter(values)) if one_number else None
    before = step.memory.facts.get(_VALUE)
    step.memory.facts[_VALUE] = value
    row = step.memory.in_a_row("one label", "", one_number and before in (None, value))
    again = _is_again(step, [one for _, one in arrived], is_constant=None not in values)
    if row >= steps and value is not None:
        words = f"{labels[0][1].name} has been {value:g} everywhere in {row} watched steps in a row"
        seen = row * sum(one.content.numel for _, one in labels)
        may_be_rare = seen < _SEEN and all(_has_two_classes(call) for call, _ in labels)
        yield step.hit("labels", words, value=value, is_note=may_be_rare)
    elif step.memory.in_a_row("labels again", "", again) >= steps:
        words = f"{labels[0][1].name} is the same in every step, and the batch is not"
        yield step.hit("labels", words)


def _labels(step: ObservedStep) -> Iterator[tuple[Call, TensorRecord]]:
    """The targets of losses that come from outside, each with its loss."""
    outside = {
        record.content.id: record
        for call in step.calls_of(CallKind.DATA)
        if not call.arguments.get(ARRIVED_IN)
        for record in call.with_role(Role.OUTPUT)
    }
    model = {
        record.content.id
        for call in step.calls_of(CallKind.MODULE)
        if "loss" not in call.site.op.lower()
        for record in call.with_role(Role.INPUT)
        if call.parent < 0
    }
    seen: set[int] = set()
    for call in step.calls:
        target = _target_of(call)
        if target is None or not target.shape or target.shape[0] < 2:
            continue
        origin = outside.get(origin_of(step, target.content.id))
        if origin is not None and origin.content.id not in model | seen and not _counts_up(origin):
            seen.add(origin.content.id)
            yield call, origin


def _made_labels(step: ObservedStep) -> Iterator[tuple[Call, TensorRecord]]:
    """One number that the step itself makes a target of: `torch.zeros` in the loop, or in a loss written by hand.

    Only where backward begins from that loss alone: a boundary condition beside other losses may well be zero.
    """
    computed = _computed(step)
    arrived = {one.content.id for _, one in _labels(step)}
    for call in step.calls:
        scores, target = _scores_and_target(call, computed)
        if target is None or target.content.id in computed | arrived:
            continue
        if _only_value(target) is not None and scores is not None and _is_whole_loss(step, call):
            yield call, target


def _scores_and_target(
    call: Call, computed: Set[int]
) -> tuple[TensorRecord | None, TensorRecord | None]:
    """Scores and target of a loss, or of a difference that a script takes between the two."""
    inputs = call.with_role(Role.INPUT)
    target = _target_of(call)
    if target is None and canonical_name(call.site.op) in _SUBTRACT and len(inputs) == 2:
        is_row_by_row = inputs[0].shape == inputs[1].shape
        target = inputs[inputs[0].content.id in computed] if is_row_by_row else None
    if target is None or not target.shape or target.shape[0] < 2:
        return None, None
    return next((one for one in inputs[:2] if one is not target), None), target


def _computed(step: ObservedStep) -> set[int]:
    """Contents that depend on a parameter, or on a batch that the model is given."""
    names = {one.name for one in step.updates} | set(step.gradients)
    found = {
        record.content.id
        for call in step.calls_of(CallKind.MODULE)
        if "loss" not in call.site.op.lower()
        for record in (*call.with_role(Role.INPUT), *call.with_role(Role.OUTPUT))
    }
    for call in step.operators:
        inputs = call.with_role(Role.INPUT)
        if any(one.name in names or one.content.id in found for one in inputs):
            found |= {one.content.id for one in call.with_role(Role.OUTPUT)}
    return found


def _is_whole_loss(step: ObservedStep, loss: Call) -> bool:
    """Whether backward begins from what a call gives, over operators that take nothing else."""
    reached = {one.content.id for one in loss.with_role(Role.OUTPUT)}
    for call in step.operators:
        inputs = {one.content.id for one in call.with_role(Role.INPUT) if one.content.numel > 1}
        inputs = inputs or {one.content.id for one in call.with_role(Role.INPUT)}
        if inputs and inputs <= reached:
            reached |= {one.content.id for one in call.with_role(Role.OUTPUT)}
    return bool(step.losses) and {one.content.id for one in step.losses} <= reached


def _target_of(call: Call) -> TensorRecord | None:
    inputs = call.with_role(Role.INPUT)
    if len(inputs) < 2 or call.kind not in (CallKind.OPERATOR, CallKind.MODULE):
        return None
    name = call.site.op.lower()
    is_loss = family_of(call.site.op) in (Family.CROSS_ENTROPY, Family.SQUARED_ERROR)
    return inputs[1] if is_loss or "loss" in name or "entropy" in name else None


def _has_two_classes(loss: Call) -> bool:
    name = loss.site.op.lower()
    return "binary" in name or "bce" in name


def _only_value(record: TensorRecord) -> float | None:
    numbers = record.statistics
    if numbers is None or numbers.nan_count or numbers.minimum != numbers.maximum:
        return None
    return numbers.minimum


def _counts_up(record: TensorRecord) -> bool:
    numbers, count = record.statistics, record.content.numel
    if numbers is None or record.dtype != "int64":
        return False
    return (numbers.minimum, numbers.maximum, numbers.mean) == (0, count - 1, (count - 1) / 2)


def _is_scored_by_weights(step: ObservedStep, loss: Call) -> bool:
    """Whether the scores of a loss come out of a product with a parameter, but for their shape."""
    computed = _computed(step)
    given, _ = _scores_and_target(loss, computed)
    scores = _before_softmax(
        step, origin_of(step, (given or loss.with_role(Role.INPUT)[0]).content.id)
    )
    owners = {one.name.rpartition(".")[0] for one in step.updates}
    for call in step.calls:
        if not any(one.content.id == scores for one in call.with_role(Role.OUTPUT)):
            continue
        if call.kind is CallKind.MODULE and call.site.module in owners and call.site.module:
            return True
        if call.kind is CallKind.OPERATOR and family_of(call.site.op) is Family.BILINEAR:
            names = {one.name for one in step.updates}
            return any(one.name in names for one in call.with_role(Role.INPUT))
    return False


def _before_softmax(step: ObservedStep, content: int) -> int:
    """Follow scores back through a softmax or sigmoid, which only puts them on another scale."""
    for call in reversed(step.operators):
        if any(one.content.id == content for one in call.with_role(Role.OUTPUT)):
            if canonical_name(call.site.op) not in _SCALES or not call.with_role(Role.INPUT):
                break
            content = origin_of(step, call.with_role(Role.INPUT)[0].content.id)
    return content


_SCALES = {"logsoftmax", "softmax", "sigmoid", "logsigmoid"}
_SUBTRACT = {"sub", "subtract", "rsub"}


def _is_again(step: ObservedStep, labels: list[TensorRecord], *, is_constant: bool) -> bool:
    """Whether labels are those of the step before and the batch is another; one number everywhere is told apart."""
    facts = step.memory.facts
    digests = tuple(one.digest for one in labels)
    numbers = next((one.statistics for one in step.batch), None)
    before, facts[_LAST] = facts.get(_LAST), (digests, numbers)
    if not labels or None in digests or is_constant or before is None or before[0] != digests:
        facts[_MOVED] = []
        return False
    count = max((one.content.numel for one in step.batch), default=0)
    moved: list[float] = facts.setdefault(_MOVED, [])
    moved.append(_moved(before[1], numbers, count))
    return sum(moved) > _ANOTHER * len(moved)


def _moved(before: Statistics | None, now: Statistics | None, count: int) -> float:
    """How far the mean of a batch is from that of the one before, in what two independent batches would be apart."""
    if before is None or now is None or not count:
        return 0.0
    variance = max(0.0, now.norm**2 / count - now.mean**2)
    apart = math.sqrt(2.0 * variance / count)
    return abs(now.mean - before.mean) / apart if apart else 0.0
