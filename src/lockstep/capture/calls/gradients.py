"""Gradients that enter and leave a call, tapped on the autograd graph.

Hooks sit on graph nodes, not on tensors or modules: they neither change what a module returns nor
break in-place operators (pytorch#61519), and they see what *this* call sends to an input where the
input has other consumers too. The nodes a call created are those with a sequence number from its
start on; edges that leave them towards an input of the call carry the gradients that leave the call.

What arrives at an output is the whole gradient of that tensor: where the call itself uses one of its
outputs to make another, that part is in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any, cast

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from lockstep.capture.calls.leaves import NamedTensor
from lockstep.capture.calls.open_call import Edge, OpenCall, Positions
from lockstep.capture.silence import Silence
from lockstep.capture.tensors.shards import placed_alike
from lockstep.core.records import LEAF, NO_GRADIENT
from lockstep.devices.methods import add, detach, view_as


class EdgeFinder:
    """Finds where the gradient of a tensor goes; keeps leaf edges, which take microseconds to find."""

    def __init__(self) -> None:
        self._leaves: dict[int, tuple[torch.Tensor, Edge]] = {}

    def leaf_edge(self, tensor: torch.Tensor) -> Edge | None:
        """Edge of a leaf that requires a gradient."""
        known = self._leaves.get(id(tensor))
        if (
            known is None
            or known[0] is not tensor
            or (
                # Two tensors may swap what is inside of them.
                getattr(known[1][0], "variable", None) is not tensor
            )
        ):
            using = _node_using(tensor)
            node, number = using.next_functions[0] if using is not None else (None, 0)
            if node is None:  # below autograd, inside of TorchScript say
                return None
            known = self._leaves[id(tensor)] = (tensor, (node, number))
        return known[1]

    def forget(self) -> None:
        """Drop the kept edges, and with them the references to the graph."""
        self._leaves.clear()


def _node_using(tensor: torch.Tensor) -> Node | None:
    """A new node that takes a leaf, whatever its layout: sparse and nested tensors have no views."""
    with torch.enable_grad():
        if tensor.layout is torch.strided and not tensor.is_nested:
            return view_as(tensor, tensor).grad_fn
        return torch._C._functions.DelayedError("never run", 1)(tensor).grad_fn


def graph_node(tensor: torch.Tensor) -> Node | None:
    """Node that made a tensor; None for a leaf.

    Autograd makes the node of a changed view anew when it is asked for, and refuses to where the
    view was made without gradients (`weight[0].fill_(0)` under `no_grad`, as `torch.nn.init` code
    does it). Such a view has no gradient to watch.
    """
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


NUMBER = "lockstep: number of its first edge"
"""Where a graph node keeps a number, from the first recorded tensor on that it made.

It lies in the node's own dictionary, so it goes with the node, and is the same for every thread. What torch counts
(`_sequence_nr`) it counts anew in each thread.
"""

next_number = itertools.count(1 << 24, 1 << 24).__next__
"""A number for one more node, and those of its edges behind it: a node of more outputs than that fits no memory."""


def edge_number(tensor: torch.Tensor) -> int | None:
    """Where a tensor's gradient goes, as `lockstep.core.records.TensorRecord` tells it."""
    if not tensor.requires_grad:
        return NO_GRADIENT
    try:
        node: Any = tensor.grad_fn
    except RuntimeError:  # see `graph_node`
        return None
    if node is None:
        return LEAF
    number: int = node.metadata.setdefault(NUMBER, next_number())
    return number + tensor.output_nr


def changed_edge(tensor: torch.Tensor) -> int | None:
    """As `edge_number`, of what a call has written to and does not return; None for a view.

    Autograd makes the node of a changed view when it is asked for, and the order of nodes is that of backward: asked
    for here, sums of gradients might come in another order.
    """
    return None if tensor.requires_grad and tensor._is_view() else edge_number(tensor)


_ACCUMULATE = "torch::autograd::AccumulateGrad"
"""Name of a leaf's node, which has no number of its time."""

first_sequence_number = cast(Any, torch._C._autograd)._get_sequence_nr
"""Number that the next graph node of this thread will have."""


def watch(
    call: OpenCall,
    outputs: Sequence[NamedTensor],
    pending: PendingSums,
    *,
    may_be_at_once: bool,
) -> list[Node]:
    """Deliver the gradient of every output that a call made, and what the call sends to each input.

    Parameters
    ----------
    call, outputs
        The call that has ended, and what came of it.
    pending
        Where gradients are kept of which parts have yet to arrive.
    may_be_at_once
        Whether nothing else is told while the nodes run: then one hook sees what comes and what leaves.

    Returns
    -------
    list
        The nodes that made the outputs.
    """
    made: dict[Node, Positions] = {}
    for index, (_, tensor) in enumerate(outputs):
        if tensor.requires_grad:
            try:
                node = tensor.grad_fn
            except RuntimeError:  # see `graph_node`
                continue
            if node is None or node._sequence_nr() < call.since or node.name() == _ACCUMULATE:
                continue
            made[node] = (
                (*made[node], (tensor.output_nr, index))
                if node in made
                else ((tensor.output_nr, index),)
            )
    if not made:
        return []
    wanted: dict[Edge, tuple[int, ...]] = {}
    for index, edge in call.edges:
        wanted[edge] = (*wanted[edge], index) if edge in wanted else (index,)
    leaving = _edges_leaving(list(made), wanted, call.since) if wanted else []
    comes_whole = len(leaving) < 2 or len(set(map(_EDGE, leaving))) == len(leaving)
    sent: dict[Node, Positions] = {}
    for node, place, edge in leaving if comes_whole else ():
        for index in wanted[edge]:
            sent[node] = (*sent.get(node, ()), (place, index))
    if may_be_at_once and _are_of_one_node(made, sent):
        ((node, arriving),) = made.items()
        call.arriving = _kinds.setdefault(arriving, arriving)
        call.leaving = _kinds.setdefault(sent[node], sent[node])
        node.register_hook(call)
        return [node]
    session = call.session
    for node, positions in made.items():
        positions = _kinds.setdefault(positions, positions)
        node.register_prehook(partial(session.gradients_came, call, positions))
    for node, positions in sent.items():
        positions = _kinds.setdefault(positions, positions)
        node.register_hook(partial(session.gradients_left, call, positions))
    if not comes_whole:
        _watch_parts(call, leaving, wanted, pending)
    return list(made)


def _are_of_one_node(made: dict[Node, Positions], sent: dict[Node, Positions]) -> bool:
    """Whether one node of torch's own takes all that arrives and sends all that leaves.

    The backward of a custom function may write to what arrives, and what unpacks saved tensors may compute.
    """
    if len(made) != 1 or made.keys() != sent.keys():
        return False
    is_torchs = not isinstance(cast(object, next(iter(made))), BackwardCFunction)
    return is_torchs and torch._C._autograd._top_saved_tensors_default_hooks(True) is None


_kinds: dict[Positions, Positions] = {}
"""The same for all nodes that are alike: there are few kinds, and as many nodes as operators."""

_EDGE = itemgetter(2)


def _watch_parts(
    call: OpenCall,
    leaving: Sequence[tuple[Node, int, Edge]],
    wanted: dict[Edge, tuple[int, ...]],
    pending: PendingSums,
) -> None:
    """Deliver the gradient that the call sends to each input in parts, once all of them have arrived."""
    counts: dict[Edge, int] = {}
    for _, _, edge in leaving:
        counts[edge] = counts.get(edge, 0) + 1
    sums = {edge: _Sum(call, wanted[edge], count, pending) for edge, count in counts.items()}
    by_node: dict[Node, list[tuple[int, _Sum]]] = {}
    for node, position, edge in leaving:
        by_node.setdefault(node, []).append((position, sums[edge]))
    for node, positions in by_node.items():
        node.register_hook(_Leaving(positions))


def _edges_leaving(
    nodes: list[Node], wanted: dict[Edge, tuple[int, ...]], since: int
) -> list[tuple[Node, int, Edge]]:
    leaving, seen, stack = [], set(nodes), list(nodes)
    while stack:
        node = stack.pop()
        for position, (following, number) in enumerate(node.next_functions):
            if following is None:
                continue
            edge = (following, number)
            if edge in wanted:
                leaving.append((node, position, edge))
            elif (
                following not in seen
                and following._sequence_nr() >= since
                and following.name() != _ACCUMULATE
            ):
                seen.add(following)
                stack.append(following)
    return leaving


class PendingSums:
    """Sums of which some parts have come; those that backward left open are settled at its end."""

    def __init__(self) -> None:
        self._open: dict[int, _Sum] = {}

    def add(self, total: _Sum) -> None:
        """Remember a sum that waits for more parts."""
        self._open[id(total)] = total

    def remove(self, total: _Sum) -> None:
        """A sum is settled."""
        self._open.pop(id(total), None)

    def settle(self) -> None:
        """Deliver what has come: the graph has run, so the other parts are zero."""
        for total in list(self._open.values()):
            total.settle()
        self._open.clear()


class _Sum:
    """Adds up what several edges send to one input, and delivers it when all have sent theirs."""

    __slots__ = ("_apart", "_call", "_came", "_count", "_indices", "_pending", "_total")

    def __init__(
        self, call: OpenCall, indices: tuple[int, ...], count: int, pending: PendingSums
    ) -> None:
        self._call, self._indices, self._count = call, indices, count
        self._pending = pending
        self._came = 0
        self._apart = False
        self._total: torch.Tensor | None = None

    def add(self, gradient: torch.Tensor | None) -> None:
        """Take one part, None where backward had nothing to send."""
        self._came += 1
        if gradient is not None and self._total is not None:
            with Silence(self._call.session.fail):
                # Parts of distributed tensors that are placed otherwise would need the other ranks.
                self._apart = self._apart or not placed_alike(self._total, gradient)
                if not self._apart:
                    self._total = add(detach(self._total), detach(gradient))
        elif gradient is not None:
            self._total = gradient
        if self._came == self._count:
            self.settle()
            self._pending.remove(self)
        elif self._came == 1:
            self._pending.add(self)

    def settle(self) -> None:
        """Deliver the total and start anew."""
        total, self._total, self._came = self._total, None, 0
        apart, self._apart = self._apart, False
        if total is not None and not apart:
            for index in self._indices:
                self._call.session.gradient_left(self._call, index, total)


class _Leaving:
    """Hook after a node has run: adds what it sends to the sums that wait for it."""

    __slots__ = ("_positions",)

    def __init__(self, positions: list[tuple[int, _Sum]]) -> None:
        self._positions = positions

    def __call__(self, gradients: tuple[torch.Tensor | None, ...], _: Any) -> None:
        for number, total in self._positions:
            total.add(gradients[number])
