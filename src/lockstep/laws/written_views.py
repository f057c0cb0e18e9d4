"""Tensors that change because a view of them is written to, `h[:, :12].clamp_(min=0)`; updates that a script writes.

No call gives the changed tensor; a later call takes it. The program then holds a call more: the tensor, with what was
written put into the same view of it. Knows no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lockstep.core.operators import Trait, operator_of, writes_in_place
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.laws.step_events import RESULTS, Link, Node, Operator, Taken, View, Written

_INDEXES = "torch.Tensor.__getitem__"
_SETS = "torch.Tensor.__setitem__"
_MAY_PART = frozenset({"chunk", "split", "tensorsplit", "unbind", "hsplit", "vsplit"})


@dataclass(frozen=True, slots=True)
class _Write:
    """A result that was written into a view of a tensor; the view by the calls that make it."""

    views: tuple[View, ...]
    result: Node
    call: Call
    record: TensorRecord


class WrittenViews:
    """Follows the views of tensors, and what is written through them."""

    def __init__(self) -> None:
        self._views: dict[Node, tuple[Link, View]] = {}
        self._same: dict[Link, Link] = {}
        self._written: dict[Link, list[_Write]] = defaultdict(list)
        self._records: dict[Link, TensorRecord] = {}

    def add(self, operator: Operator) -> None:
        """Follow one call more."""
        call, taken = operator.call, operator.taken
        if not taken:
            return
        index, first = next(iter(taken.items()))
        nodes = {Node(call.id, one.index): one for one in call.with_role(*RESULTS)}
        if _is_view(operator):
            for node in nodes:
                self._views[node] = first.link, View(call, index, node.index)
            self._records.setdefault(first.link, first.record)
        elif (writes_in_place(call.site.op) or call.site.op == _SETS) and nodes:
            node, record = next(iter(nodes.items()))
            self._write(self._same.get(first.link, first.link), node, call, record)
            self._same[node] = self._same.get(first.link, first.link)

    def _write(self, link: Link, result: Node, call: Call, record: TensorRecord) -> None:
        """Note a write for all tensors that the one which is written to is a view of."""
        views: tuple[View, ...] = ()
        while isinstance(link, Node) and link in self._views:
            link, view = self._views[link]
            views = (view, *views)
            self._written[link].append(_Write(views, result, call, record))

    def changed(self, record: TensorRecord, number: int) -> Operator | None:
        """The call that makes a tensor which no recorded call gives, of one that was written to through views.

        `number` is that of the call. None where no tensor of its shape was written to, or more than one.
        """
        fitting = [link for link in self._written if _fits(self._records[link], record)]
        return self.changed_of(fitting[0], record, number) if len(fitting) == 1 else None

    def changed_of(self, link: Link, record: TensorRecord, number: int) -> Operator | None:
        """The same, of one tensor; None where nothing was written to it through a view."""
        writes = self._written.pop(link, [])
        if not writes:
            return None
        records = [self._records[link], *(one.record for one in writes)]
        inputs = [
            replace(one, role=Role.INPUT, index=n, name=f"args.{n}", argument="")
            for n, one in enumerate(records)
        ]
        last = writes[-1].call
        output = replace(record, role=Role.OUTPUT, index=0, name="result", argument="")
        site = replace(last.site, op=_PUTS)
        call = replace(
            last, id=number, site=site, records=(*inputs, output), arguments={}, random_state=None
        )
        links = [link, *(one.result for one in writes)]
        taken = {n: Taken(one, inputs[n]) for n, one in enumerate(links)}
        node = Node(number, 0)
        self._records[node] = record
        self._move_views(link, node)
        through = tuple(Written(one.views, _has_gradients(one.call)) for one in writes)
        return Operator(call, taken, through)

    def _move_views(self, link: Link, node: Node) -> None:
        """Views of the tensor are now views of what it has become."""
        for made, (base, view) in list(self._views.items()):
            if base == link:
                self._views[made] = node, view
        if isinstance(link, Node) and link in self._views:
            self._views[node] = self._views[link]


_PUTS = "torch.Tensor.copy_"
"""What the call that Lockstep adds does to the view."""


def _is_view(operator: Operator) -> bool:
    op = operator.call.site.op
    if op == _INDEXES:
        return len(operator.taken) == 1
    known = operator_of(op)
    return Trait.VIEWS in known.traits or known.name in _MAY_PART


def _has_gradients(call: Call) -> bool:
    return call.conditions is None or call.conditions.gradients


def _fits(one: TensorRecord, two: TensorRecord) -> bool:
    return (one.shape, one.dtype) == (two.shape, two.dtype)


# Updates by optimizers of a script's own, of which each call is recorded: a part of the program like all other calls.
#
# Knows no torch.


def written_updates(calls: Sequence[Call]) -> dict[int, list[Call]]:
    """By its first call: the updates of each step of an optimizer of which all calls are recorded.

    One that has torch's own optimizers work for it is run again as a class of these.

    calls: All of one step of one rank.
    """
    updates = sorted(
        (one for one in calls if one.kind is CallKind.OPTIMIZER), key=lambda one: one.id
    )
    found: dict[int, list[Call]] = {}
    latest: list[Call] = []
    for call in updates:
        if call.body:
            latest = found[call.id] = [call]
        elif latest and call.site.op == latest[0].site.op:
            latest.append(call)
        else:
            latest = []
    return {number: group for number, group in found.items() if _is_whole(group, updates)}


def _is_whole(group: Sequence[Call], updates: Sequence[Call]) -> bool:
    """Whether the calls of a step are all that updates its parameters: no optimizer steps within."""
    body, own = group[0].body, {one.id for one in group}
    within = range(group[0].id, body[-1].id)
    nested = any(one.id in within and one.id not in own for one in updates)
    return not nested and not any("torch/optim/" in _library(one) for one in body)


def _library(call: Call) -> str:
    return call.library.replace("\\", "/")


def without_written_updates(calls: Sequence[Call]) -> list[Call] | None:
    """The calls with updates as what an optimizer's class makes; None where they are that already."""
    if not any(one.body and one.kind is CallKind.OPTIMIZER for one in calls):
        return None
    return [replace(one, body=()) if one.kind is CallKind.OPTIMIZER else one for one in calls]
