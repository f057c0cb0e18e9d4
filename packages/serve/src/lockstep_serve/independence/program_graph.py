"""A program of `torch.export`, node by node: what its operators do with the batch axis."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from lockstep_serve.independence import rules
from lockstep_serve.independence.extents import INSTANCES, Extent, dependent, named, product
from lockstep_serve.independence.flow import applied, verdict
from lockstep_serve.independence.program_operators import (
    OPERATORS,
    SIZES,
    Operator,
    row_numbers,
)
from lockstep_serve.independence.values import (
    Call,
    Mixes,
    NotListed,
    Place,
    Shape,
    Value,
    placed,
)

_INLINE = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
"""Graphs within a graph that are run once, as they stand."""


def mixing(program: Any, without: Collection[str] = ()) -> str:
    """Why the instances of a program's batch are not shown to be independent; empty where they are.

    Operators that are in no table are taken apart into those of torch's core, and looked at again.

    program: A `torch.export.ExportedProgram`.
    without: Inputs that have no batch axis.
    """
    found = ""
    tables: list[Any] = [None, {}, torch.export.default_decompositions()]
    for decompositions in tables:
        try:
            if decompositions is not None:
                program = program.run_decompositions(decompositions)
            return _Program(program, without).verdict()
        except NotListed as error:
            found = str(error)
        except Mixes as error:
            return str(error)
    return found


class _Program:
    def __init__(self, program: Any, without: Collection[str]) -> None:
        self._program, self._without = program, without
        self._instances = self._symbol()

    def _symbol(self) -> Any:
        """The symbol of the number of instances, which all inputs have to share."""
        signature = self._program.graph_signature
        found = {}
        for node in self._program.graph.nodes:
            if node.op == "placeholder" and node.name in signature.user_inputs:
                value = node.meta.get("val")
                if node.name in self._without:
                    continue
                if not isinstance(value, torch.Tensor):
                    raise Mixes(f"input {node.name} is not a tensor")
                first = value.shape[0] if value.ndim else None
                expression = getattr(getattr(first, "node", None), "expr", None)
                if expression is None or not expression.is_Symbol:
                    extent = "is missing" if first is None else f"is {first} for ever"
                    raise Mixes(f"the first axis of input {node.name} {extent}")
                found[expression] = node.name
        if len(found) != 1:
            raise Mixes(f"inputs have first axes of their own each: {', '.join(found.values())}")
        return next(iter(found))

    def verdict(self) -> str:
        given = {}
        inputs = self._program.graph_signature.user_inputs
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                shape = self._shape(node.meta.get("val"))
                own = node.name in inputs and node.name not in self._without
                given[node.name] = placed(shape, Place(0) if own else None)
        flow = _Flow(self, self._program.graph_module, given)
        user = self._program.graph_signature.user_outputs
        named_results = [one for one in flow.results() if one[0] in user]
        results = [one for _, one in named_results]
        if flow.not_listed and any(one.mixed in flow.not_listed for one in results):
            raise NotListed(next(one.mixed for one in results if one.mixed in flow.not_listed))
        found = verdict(named_results)
        if not found and flow.in_place:
            raise NotListed(flow.in_place)
        return found or self._state()

    def _state(self) -> str:
        signature = self._program.graph_signature
        changed = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
        for name in changed.values():
            return f"a run writes to {name}, which the next one reads"
        return ""

    def _shape(self, value: Any) -> Shape | None:
        return tuple(map(self.extent, value.shape)) if isinstance(value, torch.Tensor) else None

    def extent(self, size: Any) -> Extent:
        """A size of torch as an extent."""
        expression = getattr(getattr(size, "node", None), "expr", None)
        return Extent(int(size)) if expression is None else self._of(expression)

    def _of(self, expression: Any) -> Extent:
        if expression.is_Integer:
            return Extent(int(expression))
        if expression == self._instances:
            return INSTANCES
        if expression.is_Mul:
            return product(map(self._of, expression.args))
        if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
            return product([self._of(expression.base)] * int(expression.exp))
        names = [str(one) for one in expression.free_symbols]
        free = self._instances in expression.free_symbols or any(one[0] != "s" for one in names)
        return dependent(str(expression)) if free else named(str(expression))


class _Flow:
    """One graph, with what its inputs are."""

    def __init__(self, program: _Program, module: Any, given: dict[str, Value]) -> None:
        self._program, self._module = program, module
        self._values: dict[str, Any] = dict(given)
        self.not_listed: set[str] = set()
        self.in_place = ""

    def results(self) -> list[tuple[str, Value]]:
        """Return the outputs of the graph, by the nodes that compute them."""
        for node in self._module.graph.nodes:
            if node.op == "output":
                flat = torch.utils._pytree.tree_leaves(node.args[0])
                nodes = [one for one in flat if isinstance(one, fx.Node)]
                return [(one.name, self._values[one.name]) for one in nodes]
            if node.op == "get_attr":
                held = getattr(self._module, node.target, None)
                value = Value(self._program._shape(held))
                self._values[node.name] = value if isinstance(held, torch.Tensor) else held
            elif node.op == "call_function":
                self._values[node.name] = self._called(node)
        raise Mixes("has no results")

    def _called(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            source, at = node.args
            assert isinstance(source, fx.Node)
            return self._values[source.name][at]
        if getattr(node.target, "__name__", "") in _INLINE:
            return self._inline(node)
        value = node.meta.get("val")
        if isinstance(value, (int, torch.SymInt)):
            return self._size(node, value)
        label = f"node {node.name} ({_kind(node)})"
        shapes = [
            self._program._shape(one)
            for one in (value if isinstance(value, (tuple, list)) else [value])
        ]
        call = self._call(node, shapes)
        kind = _kind(node)
        row = _operator(node, kind)
        try:
            index = row_numbers(_kind(node), call)
            if index is not None:
                return index
            if row is not None and row.prepare is not None:
                call = row.prepare(call)
        except Mixes as error:
            row = Operator(rules.refused(str(error)))
        if getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            self.in_place = f"{label} {NotListed('writes in place').told()}"
            row = None
        found = applied(label, call, None if row is None else row.rule, len(shapes))
        if row is None:
            self.not_listed.update(one.mixed for one in found if one.mixed.startswith(label))
        return found if isinstance(value, (tuple, list)) else found[0]

    def _size(self, node: fx.Node, value: Any) -> Value:
        """A number that a shape gives; of a number that elements give, `item` say, nothing is known."""
        if _kind(node) not in SIZES:
            label = f"node {node.name} ({_kind(node)})"
            return Value((), mixed=f"{label} {Mixes('makes a size of what instances hold').told()}")
        numbers = np.empty((), object)
        numbers[()] = self._program.extent(value)
        given = [self._values[one.name] for one in node.all_input_nodes]
        mixed = (
            ""
            if _kind(node).startswith("aten.")
            else next((one.mixed for one in given if one.mixed), "")
        )
        return Value((), numbers=numbers, mixed=mixed)

    def _inline(self, node: fx.Node) -> Any:
        held, *given = [self._values[one.name] for one in node.args if isinstance(one, fx.Node)]
        module: Any = held
        names = [one.name for one in module.graph.nodes if one.op == "placeholder"]
        inner = _Flow(self._program, module, dict(zip(names, given, strict=True)))
        found = [one for _, one in inner.results()]
        self.not_listed |= inner.not_listed
        self.in_place = self.in_place or inner.in_place
        return found

    def _call(self, node: fx.Node, shapes: Sequence[Shape | None]) -> Call:
        """Operands by the operator's schema: tensors in order, everything else by its name."""
        tensors: list[Value | None] = []
        options: dict[str, Any] = {}
        schema = getattr(node.target, "_schema", None)
        names = [one.name for one in schema.arguments] if schema is not None else []
        told = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        told = {name: told[name] for name in names if name in told}
        if schema is None:
            told = {str(at): one for at, one in enumerate(node.args)}
        for name, value in told.items():
            kind = str(schema.arguments[names.index(name)].type) if schema is not None else ""
            if "Tensor" in kind and "List" in kind:
                parts = [self._operand(one) for one in value or ()]
                options[name] = [at for at, one in enumerate(parts) if one is not None]
                tensors += [one for one in parts if one is not None]
            elif "Tensor" in kind:
                tensors.append(self._operand(value))
            else:
                options[name] = self._option(value)
        for one in schema.arguments if schema is not None else ():
            if one.name not in told and one.has_default_value() and "Tensor" not in str(one.type):
                options[one.name] = one.default_value
        return Call(tensors, options, shapes)

    def _operand(self, one: Any) -> Value | None:
        if isinstance(one, fx.Node):
            found = self._values[one.name]
            assert isinstance(found, Value)
            return found
        return None if one is None else Value(())

    def _option(self, one: Any) -> Any:
        if isinstance(one, fx.Node):
            return self._values[one.name]
        if isinstance(one, (tuple, list)):
            return [self._option(each) for each in one]
        return one


def _kind(node: fx.Node) -> str:
    return (
        str(node.target)
        if hasattr(node.target, "_schema")
        else getattr(node.target, "__name__", str(node.target))
    )


def _operator(node: fx.Node, kind: str) -> Operator | None:
    """The table's row, or what torch itself says: that it goes element by element, or draws random numbers."""
    target = node.target
    tags = target.tags if isinstance(target, torch._ops.OpOverload) else ()
    found = OPERATORS.get(kind)
    if (
        found is None
        and torch.Tag.pointwise in tags
        and torch.Tag.nondeterministic_seeded not in tags
    ):
        found = Operator(rules.pointwise)
    found = found or OPERATORS.get(kind.rpartition(".")[0])
    if found is None and torch.Tag.nondeterministic_seeded in tags:
        found = Operator(rules.random)
    return found
