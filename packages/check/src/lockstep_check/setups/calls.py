"""Compare the steps of two runs: initial weights, states, micro-batches, clipping, losses, other calls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from lockstep.compare import (
    Aligned,
    AlignedStep,
    CallPair,
    ModelSetup,
    NameMap,
    SetupDifference,
    chosen_otherwise,
    would_differ,
)
from lockstep.recordings import Call, CallKind, Phase, Role, TensorRecord, canonical_name
from lockstep.terminal import listed
from lockstep_check.setups.answers import Answers

_SCALER = "torch._amp_"
_FULL = "torch.full"
_LOSSES = ("loss", "cross_entropy", "binary_cross_entropy", "kl_div", "nll")
_NORMS = ("clip_grad", "foreach_norm", "vector_norm", "foreach_mul", "clamp", "get_total_norm")
_AXES_OF_IMAGES = 4
_WEIGHS = {"mul", "multiply", "div", "divide", "add", "sub", "subtract"}
"""What weighs a loss, where it makes one number at the level of the script."""
_FROM_AN_ITEM = "__rtruediv__"
"""How `torch.nn.utils.clip_grad_norm_` divides its bound by the norm."""


def look_at_start(step: AlignedStep, setup: ModelSetup, answers: Answers) -> None:
    """Parameters and buffers as the runs begin with them, and states that the first update begins with."""
    dtypes: dict[tuple[str, str], list[str]] = defaultdict(list)
    other: list[str] = []
    count = 0
    for item in step.of_kind(CallKind.INIT):
        for pair in item.whole:
            left, right = pair.reference, pair.candidate
            if left is None or right is None:
                continue
            count += 1
            if left.dtype != right.dtype:
                dtypes[left.dtype, right.dtype].append(left.name)
            elif left.shape != right.shape and pair.layout is None:
                sides = str(list(left.shape)), str(list(right.shape))
                answers.differ("model", SetupDifference(f"shape of {left.name}", *sides))
            elif (
                not would_differ(left.content.digest, right.content.digest)
                or pair.layout is not None
            ):
                answers.not_known(["weights"], f"{left.name} could not be held against its partner")
            elif left.content.digest != right.content.digest:
                other.append(left.name)
    for sides, names in dtypes.items():
        answers.differ("weights-dtype", SetupDifference(f"dtype of {listed(names)}", *sides))
    if other:
        what = f"{len(other)} of {count} parameters and buffers"
        answers.differ("weights", SetupDifference(what, f"{listed(other)}", "others"))
    if not count:
        answers.not_known(["weights", "weights-dtype"], "no initial weights were recorded")
    if setup.optimizers is None:
        _look_at_states(step, answers)


def _look_at_states(step: AlignedStep, answers: Answers) -> None:
    other: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in step.of_kind(CallKind.OPTIMIZER):
        for pair in item.pairs:
            if pair.present.role is not Role.STATE:
                continue
            sides = [_first_number(one) for one in (pair.reference, pair.candidate)]
            digests = [
                None if one is None else one.content.digest
                for one in (pair.reference, pair.candidate)
            ]
            if digests[0] != digests[1] and "0" not in sides[:1] + sides[1:] * (None in digests):
                other[sides[0], sides[1]].append(pair.present.name)
    for shown, names in list(other.items())[:3]:
        answers.differ("optimizer-state", SetupDifference(listed(names), *shown))


def _first_number(record: TensorRecord | None) -> str:
    """What a state holds, in short."""
    if record is None:
        return "-"
    statistics = record.content.statistics
    if statistics is None:
        return "another content"
    return "0" if statistics.norm == 0.0 else f"norm {statistics.norm:.6g}"


def look_at_calls(step: AlignedStep, setup: ModelSetup, names: NameMap, answers: Answers) -> None:
    """Micro-batches, loss scale, clipping, losses and what one run alone calls."""
    _look_at_losses(step, answers)
    lone: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for pair in step.lone:
        aspect = _aspect_of(pair, setup)
        if aspect:
            side = "candidate" if pair.reference is None else "reference"
            lone[aspect, side][words_of(pair.present)] = None
    for (aspect, side), words in lone.items():
        shown = listed(list(words))
        sides = (shown, "-") if side == "reference" else ("-", shown)
        answers.differ(aspect, SetupDifference(f"calls of the {side} alone", *sides))
    for item in step.of_kind(CallKind.OPERATOR, CallKind.MODULE):
        for aspect, one in _chosen_otherwise(item, setup):
            answers.differ(aspect, one)
        if _is_another(item, names):
            where = f"call at {item.reference.site.module or 'the script'}"
            sides = words_of(item.reference), words_of(item.candidate)
            answers.differ("flow", SetupDifference(where, *sides))
        elif taken := _taken_otherwise(item):
            aspect = "loss" if _is_a_loss(item.reference) else "flow"
            answers.differ(
                aspect, SetupDifference(f"tensors that {words_of(item.reference)} takes", *taken)
            )
    _look_at_autocast(step, answers)
    _look_at_memory_formats(step, answers)


def _is_another(item: Aligned, names: NameMap) -> bool:
    """Whether two calls at one place are of two operators, and not of one that is spelled otherwise."""
    ours, theirs = item.reference.site.op, names.operator(item.candidate.site.op)
    is_operator = item.reference.kind is CallKind.OPERATOR
    return is_operator and canonical_name(ours) != canonical_name(theirs)


def _taken_otherwise(item: Aligned) -> tuple[str, str] | None:
    """The arguments that are tensors, where one run gives a number or nothing for one of them."""
    call = item.reference
    # What a module takes is told by its settings and parameters; the weights of a loss are neither.
    if call.kind is not CallKind.OPERATOR or (call.site.module and not _is_a_loss(call)):
        return None
    ours, theirs = (
        [record.name for record in one.with_role(Role.INPUT)]
        for one in (item.reference, item.candidate)
    )
    return (listed(ours), listed(theirs)) if len(ours) != len(theirs) else None


def _look_at_memory_formats(step: AlignedStep, answers: Answers) -> None:
    """Parameters of four axes or more that lie otherwise in memory, as with `channels_last`."""
    names: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for item in step.of_kind(CallKind.OPERATOR):
        for pair in item.complete(Role.INPUT):
            left, right = pair.reference, pair.candidate
            if left is None or right is None or len(left.shape) < _AXES_OF_IMAGES:
                continue
            sides = _format_of(left), _format_of(right)
            if sides[0] != sides[1] and left.shape == right.shape:
                names[sides][left.name or words_of(item.reference)] = None
    for sides, found in names.items():
        answers.differ(
            "kernels", SetupDifference(f"memory format of {listed(list(found))}", *sides)
        )


def _format_of(record: TensorRecord) -> str:
    """`contiguous`, `channels last`, or the strides."""
    if record.layout is None:
        return "contiguous"
    strides = record.layout.strides
    return "channels last" if strides[1] == 1 and strides[-1] != 1 else f"strides {list(strides)}"


def _look_at_losses(step: AlignedStep, answers: Answers) -> None:
    """How many losses a step has, and whether they differ by a power of two where they are scaled."""
    counts = [_losses(step, side) for side in (0, 1)]
    if counts[0] != counts[1]:
        words = f"{counts[0]} a step", f"{counts[1]} a step"
        answers.differ("accumulation", SetupDifference("losses that backward begins at", *words))
    scaled = any(_SCALER in pair.present.site.op for pair in step.pairs)
    for item in step.of_kind(CallKind.LOSS):
        for pair in item.complete(Role.LOSS):
            left, right = pair.reference, pair.candidate
            ratio = 0.0 if left is None or right is None else _ratio(left, right)
            if (
                scaled
                and ratio > 0
                and (power := round(math.log2(ratio)))
                and _is_power(ratio, power)
            ):
                words = "its loss", f"2^{power} times as large"
                answers.differ("loss-scale", SetupDifference("the scaled loss", *words))
                return


def _losses(step: AlignedStep, side: int) -> int:
    calls = [(pair.reference, pair.candidate)[side] for pair in step.pairs]
    return sum(call is not None and call.kind is CallKind.LOSS for call in calls)


def _ratio(left: TensorRecord, right: TensorRecord) -> float:
    norms = [
        0.0 if one.content.statistics is None else one.content.statistics.norm
        for one in (left, right)
    ]
    return norms[1] / norms[0] if min(norms) > 0 and all(map(math.isfinite, norms)) else 0.0


def _is_power(ratio: float, power: int) -> bool:
    return math.isclose(ratio, 2.0**power, rel_tol=0.05)


def _aspect_of(pair: CallPair, setup: ModelSetup) -> str:
    """What a call belongs to that one run alone makes; "" where something else tells it."""
    call = pair.present
    if call.kind in (CallKind.LOSS, CallKind.DATA, CallKind.INIT):
        return "flow" if call.kind is CallKind.DATA else ""
    if call.kind in (CallKind.GRADIENT, CallKind.OPTIMIZER):
        names = {record.name for record in call.records}
        told = bool(names & {*setup.frozen, *setup.tied}) or setup.optimizers is not None
        return "" if told or call.kind is CallKind.GRADIENT else "flow"
    if _SCALER in call.site.op:
        return "loss-scale"
    if call.site.phase is not Phase.FORWARD:
        return "clipping" if any(one in call.site.op for one in _NORMS) else "flow"
    return "flow"


def words_of(call: Call) -> str:
    """A call in words: what, in which module, from which line."""
    where = f" at {call.site.module}" if call.site.module else ""
    source = f" ({call.source})" if call.source else ""
    return f"{call.site.op}{where}{source}"


def _chosen_otherwise(item: Aligned, setup: ModelSetup) -> Iterator[tuple[str, SetupDifference]]:
    """Arguments of one call that somebody chose otherwise, where no module's settings tell of them."""
    call = item.reference
    if _is_told(call.site.module, setup) or _takes_samples(call):
        return
    for one in chosen_otherwise(item.reference, item.candidate):
        name = one.plain_name
        yield (
            _aspect_of_argument(call, name),
            SetupDifference(f"{name} of {words_of(call)}", *one.shown),
        )


def _takes_samples(call: Call) -> bool:
    """Whether a call takes a part of what a data set holds: which one, the batches tell."""
    return not call.site.module and canonical_name(call.site.op) == "getitem"


def _is_told(path: str, setup: ModelSetup) -> bool:
    return path in setup.modules or any(path == one for one in setup.modes)


def _aspect_of_argument(call: Call, name: str) -> str:
    op = call.site.op
    made = call.with_role(Role.OUTPUT)
    is_number = bool(made) and all(one.content.numel == 1 for one in made)
    at_script = call.site.phase is Phase.FORWARD and not call.site.module
    if is_number and at_script and canonical_name(op) in _WEIGHS:
        return "loss"
    if name == "training":
        return "modes"
    if _SCALER in op or (op == _FULL and not call.site.module):
        return "loss-scale"
    if call.site.phase is not Phase.FORWARD:
        return "clipping"
    return "loss" if _is_a_loss(call) else "flow"


def _is_a_loss(call: Call) -> bool:
    return any(one in call.site.op.rpartition(".")[2].lower() for one in _LOSSES)


def _look_at_autocast(step: AlignedStep, answers: Answers) -> None:
    """Calls that autocast covers in one run and not, or to another dtype, in the other."""
    other: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for item in step.of_kind(CallKind.OPERATOR):
        conditions = item.reference.conditions, item.candidate.conditions
        if conditions[0] is None or conditions[1] is None:
            answers.not_known(
                ["amp"],
                "an earlier build, or a framework other than PyTorch, does not tell which calls autocast covers",
            )
            return
        casts = [sorted({dtype for _, dtype in one.autocast}) for one in conditions if one]
        if casts[0] != casts[1]:
            words = [", ".join(one) or "off" for one in casts]
            other[words[0], words[1]][words_of(item.reference)] = None
    for sides, calls in other.items():
        answers.differ("amp", SetupDifference(f"autocast around {listed(list(calls))}", *sides))
