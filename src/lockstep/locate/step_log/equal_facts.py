"""The facts of two step logs that must be equal bit by bit on every device, and the first step at which one is not.

Four laws keep sound trainings silent:

- A fact counts once it was equal in the first `FIRST_STEPS` steps of both logs. What differs from the start on is a
  difference of the scripts or of the devices, and the recorded steps judge it.
- Generators are compared only where both runs train on the same types of devices: drawing on one device moves no
  generator of another.
- An overflow decides whether a gradient scaler skips an update, and rounding may decide an overflow. After the first
  skip of one run alone the loss scale is not compared, nor are settings: a schedule may wait for updates.
- A schedule that follows losses (torch's `ReduceLROnPlateau`) may be decided by their rounding, once they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from lockstep.core.step_rows import BY_LOSS, SCALER, Fact, FactDifference, StepLog, StepRow

FIRST_STEPS = 4
"""Steps in which a fact must be equal to be compared at all."""

RELATIVE = 1e-9
"""Two settings are equal up to this: the C libraries of two machines may round a cosine in different ways."""

Pairs = Sequence[tuple[StepRow, StepRow]]


def fact_differences(
    reference: StepLog, candidate: StepLog, pairs: Pairs, rank: str
) -> tuple[list[Fact], list[FactDifference]]:
    """Return the facts that could be compared, and the first difference of each, in order of steps."""
    alike = reference.devices == candidate.devices
    compared: dict[Fact, None] = {}
    found: dict[tuple[Fact, str], FactDifference] = {}
    settled: dict[tuple[Fact, str], int] = {}
    skipped_alone = losses_differ = False
    for left, right in pairs:
        for fact, name, one, two in _facts(left, right, generators=alike):
            key = fact, name
            if key in found or settled.get(key) == _NEVER:
                continue
            if skipped_alone and fact in (Fact.LOSS_SCALE, Fact.SETTING, Fact.SKIPPED):
                continue
            if _equal(one, two):
                settled[key] = settled.get(key, 0) + 1
                if settled[key] >= FIRST_STEPS:
                    compared[fact] = None
            elif settled.get(key, 0) < FIRST_STEPS:
                settled[key] = _NEVER
            else:
                found[key] = FactDifference(
                    fact, left.step, _words(fact, name), *_shown(fact, one, two), rank,
                    certain=not (
                        fact is Fact.SKIPPED or (losses_differ and _follows_losses(name, left, right))
                    ),
                )  # fmt: skip
        skipped_alone |= left.skipped != right.skipped
        losses_differ |= repr(left.loss) != repr(right.loss)
    return list(compared), sorted(found.values(), key=lambda one: (one.step, _ORDER[one.fact]))


_NEVER = -1
_ORDER = {fact: place for place, fact in enumerate(Fact)}

Value = float | str


def _facts(
    left: StepRow, right: StepRow, *, generators: bool
) -> Iterator[tuple[Fact, str, Value, Value]]:
    """Each fact of a step that both runs have: its kind, its name, and both values."""
    for name in sorted(left.batches.keys() & right.batches.keys()):
        counts = [row.batches[name].partition(":")[0] for row in (left, right)]
        # A loader that one run asks more often is one for evaluation, or one that reads ahead.
        if counts[0] == counts[1]:
            yield Fact.BATCH, name, left.batches[name], right.batches[name]
    for name, one, two in _in_both(left.settings, right.settings):
        if name.endswith(BY_LOSS):
            continue
        yield _kind_of(name), name, one, two
    yield Fact.SKIPPED, "", float(left.skipped), float(right.skipped)
    yield Fact.PASSES, "", float(left.passes), float(right.passes)
    if generators:
        for name, one, two in _in_both(left.generators, right.generators):
            yield Fact.GENERATOR, name, one, two


def _follows_losses(name: str, left: StepRow, right: StepRow) -> bool:
    """Whether a setting is a learning rate of an optimizer whose schedule asks for losses."""
    *optimizer, _, setting = ("", *name.split("."))[-3:]
    prefix = f"{optimizer[0]}." if optimizer and optimizer[0] else ""
    return setting == "lr" and any(prefix + BY_LOSS in row.settings for row in (left, right))


def _in_both(
    left: Mapping[str, Value], right: Mapping[str, Value]
) -> Iterator[tuple[str, Value, Value]]:
    for name in left:
        if name in right:
            yield name, left[name], right[name]


def _kind_of(name: str) -> Fact:
    if name == "scale":
        return Fact.LOSS_SCALE
    return Fact.TRAINED if name.endswith("trained") else Fact.SETTING


def _equal(left: Value, right: Value) -> bool:
    if isinstance(left, str) or isinstance(right, str):
        return left == right
    return math.isclose(left, right, rel_tol=RELATIVE, abs_tol=0.0)


# --- words -----------------------------------------------------------------------------------------------------------


def _words(fact: Fact, name: str) -> str:
    match fact:
        case Fact.BATCH:
            return "the batch" if name == "0" else f"the batch of data set {name}"
        case Fact.SETTING:
            return _setting_words(name)
        case Fact.TRAINED:
            return (
                f"the number of trained parameters{_optimizer_words(name.removesuffix('trained'))}"
            )
        case Fact.LOSS_SCALE:
            return "the loss scale"
        case Fact.GENERATOR:
            return f"the state of the random generator of {name}"
        case Fact.SKIPPED:
            return "the update"
        case Fact.PASSES:
            return "the number of backward passes"


def _setting_words(name: str) -> str:
    """`1.0.betas.0` as `betas[0] of parameter group 0 of optimizer 1`."""
    if name.startswith(SCALER):
        return f"{name.removeprefix(SCALER)} of the gradient scaler"
    parts = name.split(".")
    if parts[-1] == "others":
        return (
            f"a setting of a later parameter group{_optimizer_words(name.removesuffix('others'))}"
        )
    numbers = [part for part in parts[:2] if part.isdecimal()]
    setting, *places = parts[len(numbers) :]
    index = "".join(f"[{place}]" for place in places)
    optimizer = _optimizer_words(f"{numbers[0]}." if len(numbers) > 1 else "")
    return f"{setting}{index} of parameter group {numbers[-1]}{optimizer}"


def _optimizer_words(prefix: str) -> str:
    return f" of optimizer {prefix.removesuffix('.')}" if prefix else ""


def _shown(fact: Fact, reference: Value, candidate: Value) -> tuple[str, str]:
    """Both values as a user reads them."""
    if fact is Fact.SKIPPED:
        words = {0.0: "made", 1.0: "skipped by the gradient scaler"}
        return words[float(reference)], words[float(candidate)]
    if isinstance(reference, str) or isinstance(candidate, str):
        if fact is Fact.TRAINED:
            left, right = (str(one).partition(",")[0] for one in (reference, candidate))
            return (left, right) if left != right else (left, f"{right}, but not the same ones")
        return str(reference), str(candidate)
    return f"{reference:.12g}", f"{candidate:.12g}"
