"""A run's own program on its own numbers: in double precision, and with the rounding that a correct run has.

Where a recording holds sketches of what updates left, the updates are run too, and the next step takes what they left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, family_of
from lockstep.core.site import Role
from lockstep.laws.distances import distance, size
from lockstep.laws.double_run import Run
from lockstep.laws.double_updates import Updated, states_of, updated
from lockstep.laws.more_draws import MoreDraws
from lockstep.laws.one_program import SEED
from lockstep.laws.own_numbers import OwnNumbers
from lockstep.laws.random_rounding import Rounding
from lockstep.laws.recorded_decisions import decides
from lockstep.laws.step_events import Node, NotApplicable, Update, is_whole
from lockstep.laws.step_sides import Side
from lockstep.replay.calls.optimizer_update import UpdateRerun
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.recorded_tensors import widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision

MARGIN = 6.0
"""How many times the largest of so many a sound kernel's error may be: a run with rounding at every operator was 0.9 to
4.4 times the actual error in single precision, and 0.74 to 0.90 in 16 bit, on a 12-layer transformer."""

CANCELS = 2.0**-10
ROUNDINGS_ALONE = 64.0
"""A gradient below 2^-10 roundings of the largest one is zero but for rounding: errors that a kernel makes alike in all
elements add up in it, and it may be so many roundings of the largest."""

Numbers = Mapping[int, torch.Tensor]
"""By number of a content: what was run again of it."""


@dataclass(frozen=True)
class Carried:
    """What steps have left that the next one takes, by each way of running them."""

    exact: Numbers = field(default_factory=dict)
    rounded: Numbers = field(default_factory=dict)
    of_this_machine: Numbers = field(default_factory=dict)


@dataclass(frozen=True)
class OwnRun:
    """One run of a program, and what its updates made, by number of their call.

    off: How far its results are from those of the run in double precision, by Euclidean distance; they are not kept.
    """

    run: Run
    updates: Mapping[int, Updated] = field(default_factory=dict)
    off: dict[Node, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OwnRuns:
    """Runs of one program on its own numbers.

    exact: In double precision.
    draws: With rounding at random, and in the recorded dtypes by this machine's kernels, which round inside: by
        oneDNN's where there are such; and without, in the dtypes of inputs that autocast widens.
    at_kinks: Where elements lie at a kink but for rounding: with these on its other side.
    off_by_element: How far each element that a decision is made of is off in any of these runs.
    left: What the step leaves to the next one.
    more: Further runs with rounding, for what has few numbers, as long as the results of `exact` are kept.
    """

    exact: OwnRun
    draws: list[OwnRun]
    at_kinks: list[OwnRun]
    left: Carried
    more: MoreDraws
    off_by_element: Mapping[Node, torch.Tensor] = field(default_factory=dict)

    @property
    def moved(self) -> list[OwnRun]:
        """All runs that a sound kernel may be as far off as."""
        return [*self.draws, *self.at_kinks]


def own_runs(side: Side, before: Carried, begun: Run | None = None) -> OwnRuns:
    """Run a program on its own numbers; `begun` is a run of it in double precision that there is already.

    Of every other run no results are kept, but how far they are off.
    """
    base = begun or side.base
    exact = _with_updates(side, side.numbers, base, base.entering, _as_made)
    watch = _Watch(base, _taken_by_decisions(side))
    rounded, turned = _rounded(side, before.rounded, watch)
    draws, left_own = [rounded], before.of_this_machine
    for with_onednn in (True, False):  # its kernels sum in another order
        with torch.backends.mkldnn.flags(enabled=with_onednn):
            own = _of_this_machine(side, before.of_this_machine, watch, widens=with_onednn)
        if own is None:
            left_own = {} if with_onednn else left_own
            break
        if with_onednn:
            left_own = _left(side, own, before.of_this_machine, torch.Tensor.detach)
        draws.append(own)
    left = Carried(
        _left(side, exact, before.exact, widened),
        _left(side, rounded, before.rounded, widened),
        left_own,
    )
    more = MoreDraws(side, before.exact, before.rounded, base)
    at_kinks = [_at_kinks(side, turned, watch)] if turned else []
    return OwnRuns(exact, draws, at_kinks, left, more, watch.by_element)


@dataclass(frozen=True)
class _Watch:
    """What of the results of runs is measured.

    base: The run in double precision.
    deciding: Results that are measured by element.
    by_element: How far each element of these was off in any run so far.
    """

    base: Run
    deciding: frozenset[Node]
    by_element: dict[Node, torch.Tensor] = field(default_factory=dict)


@dataclass
class _Off:
    """Measures how far results are from those of a run in double precision, as they come."""

    watch: _Watch
    found: dict[Node, float] = field(default_factory=dict)

    def __call__(self, node: Node, value: torch.Tensor) -> None:
        if value.dtype.is_floating_point or value.is_complex():
            self.found[node] = distance(value, self.watch.base.values[node])
            if node in self.watch.deciding:
                self._by_element(node, value)

    def _by_element(self, node: Node, value: torch.Tensor) -> None:
        off = (widened(value) - self.watch.base.values[node].detach()).abs().nan_to_num(0.0, 0.0)
        before = self.watch.by_element.get(node)
        self.watch.by_element[node] = off if before is None else off.maximum(before)


def _taken_by_decisions(side: Side) -> frozenset[Node]:
    links = (
        taken.link
        for one in filter(decides, side.program.operators)
        for taken in one.taken.values()
    )
    return frozenset(one for one in links if isinstance(one, Node))


def _rounded(
    side: Side, before: Numbers, watch: _Watch
) -> tuple[OwnRun, Mapping[Node, torch.Tensor]]:
    """The run with rounding at random, and what lies at a kink in it."""
    base, numbers = watch.base, replace(side.numbers, carried=before)
    off, kinks = _Off(watch), _AtKinks(base, _taken_by_kinks(side))

    def seen(node: Node, value: torch.Tensor) -> None:
        off(node, value)
        kinks(node, value)

    run = side.double.run(
        lambda _, record: widened(numbers.of(record)),
        rounding=Rounding(torch.Generator().manual_seed(SEED)),
        decided=True,
        keep=False,
        seen=seen,
    )
    turned = _turned(side, base, run)
    if side.has_written_updates:
        _turn_updates(side, base, run, turned, off)
    made = _with_updates(side, numbers, run, turned, _as_recorded)
    return replace(made, off=off.found), kinks.turned


def _turn_updates(
    side: Side, base: Run, run: Run, turned: Mapping[str, torch.Tensor], off: _Off
) -> None:
    """Have calls that update parameters take the turned gradients, as updates by a class do."""
    rounding = Rounding(torch.Generator().manual_seed(SEED))
    for node, value in side.double.updates_of(run, side.own, turned, rounding).items():
        run.values[node] = value
        if value.dtype.is_floating_point and node in base.values:
            off.found[node] = max(off.found.get(node, 0.0), distance(value, base.values[node]))


def _at_kinks(side: Side, turned: Mapping[Node, torch.Tensor], watch: _Watch) -> OwnRun:
    """The run in double precision, in which elements go the other way at a kink."""
    off = _Off(watch)
    run = side.double.run(side.own, instead=turned, decided=True, keep=False, seen=off)
    made = _with_updates(side, side.numbers, run, run.entering, _as_made)
    return replace(made, off=off.found)


def _taken_by_kinks(side: Side) -> frozenset[Node]:
    kinked = (one for one in side.program.operators if family_of(one.call.site.op) is Family.KINKED)
    links = (taken.link for one in kinked for taken in one.taken.values())
    return frozenset(one for one in links if isinstance(one, Node))


@dataclass
class _AtKinks:
    """Finds results with elements that rounding may send to the other side of a kink.

    An element that is zero but for rounding is let through by one sound run and not by another, and its whole gradient
    with it; a few runs with rounding may turn none.

    turned: Those results, with such elements on the other side.
    """

    base: Run
    nodes: frozenset[Node]
    turned: dict[Node, torch.Tensor] = field(default_factory=dict)

    def __call__(self, node: Node, drawn: torch.Tensor) -> None:
        if node not in self.nodes:
            return
        value = self.base.values[node]
        if not value.dtype.is_floating_point:
            return
        off = (drawn - value).abs()
        near = value.abs() <= MARGIN * off.maximum(off.square().mean().sqrt())
        near &= value != 0
        if bool(near.any()):
            self.turned[node] = torch.where(near, -value, value)


def _of_this_machine(side: Side, carried: Numbers, watch: _Watch, *, widens: bool) -> OwnRun | None:
    """The program in its recorded dtypes, where this machine has a kernel for each call of it."""
    numbers, off = replace(side.numbers, carried=carried), _Off(watch)
    try:
        run = side.double.run(
            lambda _, record: numbers.of(record),
            precision=Precision.OWN,
            decided=True,
            keep=False,
            seen=off,
            widens=widens,
        )
    except NotApplicable:
        return None
    made = _with_updates(side, numbers, run, run.entering, _as_recorded)
    return replace(made, off=off.found)


Finish = Callable[[Update, Updated], Updated]


def _with_updates(
    side: Side,
    numbers: OwnNumbers,
    run: Run,
    gradients: Mapping[str, torch.Tensor],
    finish: Finish,
) -> OwnRun:
    """A run with the updates after it; without, where all that updates left was saved whole."""
    made = {}
    for update in side.program.updates if side.is_sketched else ():
        try:
            states = {key: numbers.of(record) for key, record in states_of(update).items()}
            found = updated(
                update, side.program, run, lambda _, record: widened(numbers.of(record)),
                gradients.get(update.name), states, side.classes,
            )  # fmt: skip
        except CannotReplay:
            continue  # which law P says
        made[update.call.id] = finish(update, found)
    return OwnRun(run, made)


def _as_made(update: Update, made: Updated) -> Updated:
    return made


def _as_recorded(update: Update, made: Updated) -> Updated:
    """What an update made, rounded to the dtypes that it is kept in."""
    dtypes = {
        UpdateRerun.key_of(one): torch_dtype(one.dtype)
        for one in update.call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER)
    }
    return replace(
        made,
        after={key: one.to(dtypes.get(key, one.dtype)) for key, one in made.after.items()},
    )


def _turned(side: Side, base: Run, draw: Run) -> dict[str, torch.Tensor]:
    """The gradients of a run with rounding, in which those elements have turned their sign that rounding may turn.

    An update by the sign, as the first of Adam is, makes a whole step of each of them; a few runs may turn none.
    """
    scale = max((size(one) for one in base.entering.values()), default=0.0)
    found = dict(draw.entering)
    for name, truth in base.entering.items():
        drawn, record = draw.entering.get(name), side.program.gradients.get(name)
        if drawn is None or drawn.shape != truth.shape or record is None:
            continue
        off = (drawn - truth).abs()
        moved = off != 0
        typical = off.norm() / moved.sum().clamp(min=1).sqrt()
        reach = MARGIN * torch.where(moved, off.maximum(typical), off)
        alone = unit_roundoff(record.dtype) * scale
        if size(truth) <= CANCELS * alone:
            reach = reach.clamp(min=ROUNDINGS_ALONE * alone / max(1, truth.numel()) ** 0.5)
        found[name] = torch.where(truth.abs() <= reach, -torch.copysign(reach, truth), drawn)
    return found


def _left(
    side: Side, made: OwnRun, before: Numbers, kept: Callable[[torch.Tensor], torch.Tensor]
) -> Numbers:
    """What the next step may take: parameters and states after their updates, and what calls have written to."""
    found = dict(before)
    for update in side.program.updates:
        for record in update.call.with_role(Role.PARAM, Role.STATE):
            found.pop(record.content.id, None)
    for update in side.program.updates:
        after = made.updates[update.call.id].after if update.call.id in made.updates else {}
        for record in update.call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER):
            value = after.get(UpdateRerun.key_of(record))
            if value is not None and not is_whole(record) and tuple(value.shape) == record.shape:
                found[record.content.id] = kept(value)
    for node in (*side.program.buffers.values(), *side.program.made_of_gradients):
        record = side.program.results[node]
        if not is_whole(record):
            found[record.content.id] = kept(made.run.values[node].detach())
    return found
