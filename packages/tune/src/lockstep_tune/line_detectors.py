"""Find what slows a training by the lines of the script: Python that torch waits for, validation, recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from lockstep_tune.call_tree import LOOP, Node, call_tree
from lockstep_tune.found import Found
from lockstep_tune.places import short_place
from lockstep_tune.profile import Profile, time_text

_MOST = 0.5
"""A line below that has this share of the Python of a call is named in its place."""
_GOOD_PART = 0.1
"""Lines with this share of the Python of a call are named beside the first."""


def usual_us(by_step: Sequence[float]) -> float:
    """Return the mean over all steps of what recurs: in each step that has any, the lower median of those.

    Other processes take time from single steps; what is done once in several steps counts by its share.
    """
    there = sorted(one for one in by_step if one > 0)
    if not there:
        return 0.0
    return there[(len(there) - 1) // 2] * len(there) / len(by_step)


def python(profile: Profile) -> Iterator[Found]:
    """Python that torch waits for, at the line whose call holds the interpreter."""
    tree = call_tree(profile.pieces)
    for unit in tree.untrained():
        if not any(unit.evaluates_us):
            yield from _python_of(unit, unit.python_us, unit.us)
    for line in tree.mixed():
        yield from _python_of(line, line.own_python_us, line.own_python_us, is_own=True)


def _python_of(
    unit: Node, python_us: Sequence[float], all_us: Sequence[float], *, is_own: bool = False
) -> Iterator[Found]:
    took_us, whole_us = usual_us(python_us), usual_us(all_us)
    if not took_us:
        return
    line, way = (unit, []) if is_own else _hottest(unit)
    calls = next((name for name, _ in line.calls.most_common(1)), "")
    cost_us = whole_us if took_us >= _MOST * whole_us else took_us
    looped = next((one for one in way if one.kind == LOOP), None)
    waits = f"torch waits for {'Python' if looped is not None or not calls else calls}"
    evidence = f"{time_text(took_us)} of each step go by in Python"
    if looped is not None and looped.place != line.place:
        evidence += f", in the loop at {short_place(looped.place)}"
    elif unit.place != line.place:
        evidence += f", reached from {short_place(unit.place)}"
    if others := _others(unit, line):
        evidence += f"; further at {others}"
    yield Found(
        waits, line.place, cost_us, evidence,
        "do it once in many steps, in a thread or process beside the training, or on whole tensors",
    )  # fmt: skip


def _others(unit: Node, line: Node) -> str:
    """Say which other lines of a call have a good part of its Python."""
    rows = [one for one in _lines(unit) if one.place != line.place]
    least_us = _GOOD_PART * sum(unit.python_us)
    rows = [one for one in rows if sum(one.own_python_us) >= least_us]
    rows.sort(key=lambda one: -sum(one.own_python_us))
    return ", ".join(dict.fromkeys(short_place(one.place) for one in rows[:3]))


def _lines(unit: Node) -> Iterator[Node]:
    yield unit
    for one in unit.below.values():
        yield from _lines(one)


def _hottest(unit: Node) -> tuple[Node, list[Node]]:
    """Return the line that has most of the Python of a call, and the nodes on the way to it."""
    way, node = [unit], unit
    while node.below:
        most = max(node.below.values(), key=lambda one: sum(one.python_us))
        if not node.is_block and sum(most.python_us) < _MOST * sum(node.python_us):
            break
        if sum(most.python_us) <= 0:
            break
        node = most
        way.append(node)
    return node, way


def validation(profile: Profile) -> Iterator[Found]:
    """Forwards without gradients of the model that is trained, with all that is done for them."""
    for unit in call_tree(profile.pieces).untrained():
        if not any(unit.evaluates_us):
            continue
        forwards_us, cost_us, line = fmean(unit.evaluates_us), fmean(unit.us), unit
        while any(any(one.evaluates_us) for one in line.below.values()):
            below = max(line.below.values(), key=lambda one: sum(one.evaluates_us))
            if below.kind.endswith(
                " forward"
            ):  # the line that calls the model is named, not one of its layers
                break
            line = below
        reached = f", reached from {short_place(unit.place)}" if unit.place != line.place else ""
        yield Found(
            "the model is validated between updates", line.place, cost_us,
            f"{time_text(cost_us)} of each step, of which forwards without gradients take"
            f" {time_text(forwards_us)}{reached}",
            "validate once in many steps, on a part of the set, or in larger batches",
        )  # fmt: skip


def recomputation(profile: Profile) -> Iterator[Found]:
    """Forwards that activation checkpointing computes again in backward."""
    for one in profile.recomputations:
        yield Found(
            "activations are computed again", one.place, one.us,
            f"{one.calls:.3g} checkpoints compute again for {time_text(one.us)} of each step, and keep at most"
            f" {one.allocated_bytes / 1e6:.1f} MB of activations out of memory",
            "leave torch.utils.checkpoint out where that fits into memory, or checkpoint fewer layers",
        )  # fmt: skip
