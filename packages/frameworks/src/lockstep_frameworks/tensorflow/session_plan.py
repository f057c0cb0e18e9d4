"""What a run of a TensorFlow 1 session is to show: operators, gradients and updates, and the tensors that tell them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tensorflow as tf

from lockstep.recordings import CallKind, Phase, Role
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.tensorflow.attributes import constant_of, settings_of
from lockstep_frameworks.tensorflow.code_places import graph_stack
from lockstep_frameworks.tensorflow.session_gradients import SessionGradients
from lockstep_frameworks.tensorflow.tensor_kinds import SILENT, is_floating, is_number

_UPDATE = re.compile(r"(Resource)?(Sparse)?Apply(?P<rule>\w+)")
_BY_HAND = frozenset(
    """
    Assign AssignAdd AssignSub AssignVariableOp AssignAddVariableOp AssignSubVariableOp ScatterAdd ScatterSub
    ResourceScatterAdd ResourceScatterSub
    """.split()  # noqa: SIM905
)
_SWITCHES = frozenset({"Switch", "RefSwitch"})
_MERGES = frozenset({"Merge", "RefMerge"})
_VARIABLES = frozenset({"VariableV2", "Variable", "VarHandleOp"})
_PASSING = frozenset({"Identity", "ReadVariableOp", "Enter", "RefEnter"})
_HANDLES = (tf.resource, tf.variant, tf.string)


@dataclass(frozen=True, slots=True)
class Look:
    """One record that a run gives: a tensor of the graph, or a variable before or after the run."""

    site: CodeSite
    role: Role
    name: str
    source: Any
    index: int = 0
    phase: Phase | None = None
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Update:
    """One variable that a run updates, and by which rule with which settings."""

    site: CodeSite
    name: str


@dataclass
class Plan:
    """A run of a session.

    looks: What is recorded of the tensors that it computes, in order.
    before, after: What is recorded of variables before it and after it.
    losses: What gradients were taken of.
    updates: Which variables it updates; without any it ends no step.
    """

    looks: list[Look] = field(default_factory=list)
    before: list[Look] = field(default_factory=list)
    after: list[Look] = field(default_factory=list)
    losses: list[Any] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    has_loops: bool = False

    @cached_property
    def tensors(self) -> list[Any]:
        """All tensors that are wanted, each once."""
        wanted = (one.source for one in self.looks if isinstance(one.source, tf.Tensor))
        return list({id(one): one for one in (*wanted, *self.losses)}.values())

    @cached_property
    def variables(self) -> list[Any]:
        """All variables whose values before the run are wanted, each once."""
        looks = (*self.looks, *self.before)
        wanted = (one.source for one in looks if not isinstance(one.source, tf.Tensor))
        return list({id(one): one for one in wanted}.values())


class Planner:
    """Plans one run.

    graph, fetched, fed: The graph, the operators that the run is asked for, and identities of the tensors that it is
        given.
    gradients: What was noted while the graph was built.
    has_slots: Whether states of optimizers are recorded.
    """

    def __init__(
        self, graph: Any, fetched: Iterable[Any], fed: frozenset[int], gradients: SessionGradients,
        *, has_slots: bool,
    ) -> None:  # fmt: skip
        self._fed, self._gradients, self._has_slots = fed, gradients, has_slots
        self._ops = _ancestors(graph, fetched, fed)
        self._variables = {one.op.name: one for one in _variables_of(graph)}
        self._sites: dict[Any, CodeSite] = {}
        self._dead: set[Any] = set()
        self._later: set[Any] = set()
        """Operators that are computed of gradients."""
        self._arrived: set[int] = set()
        self._plan = Plan()

    def plan(self) -> Plan | None:
        """The plan; None for a run that neither takes gradients nor updates anything."""
        for op in self._ops:
            self._sort(op)
        updates = [op for op in self._ops if self._updated(op) is not None]
        if not updates and not any(map(self._gradients.is_gradient, self._ops)):
            return None
        for op in self._ops:
            if self._is_shown(op) and op not in self._later:
                self._operator(op, Phase.FORWARD)
        self._losses()
        self._backward()
        for op in self._ops:
            if self._is_shown(op) and op in self._later:
                self._operator(op, Phase.BACKWARD)
        for op in updates:
            self._update(op)
        return self._plan

    # --- which operators ------------------------------------------------------------------------

    def _sort(self, op: Any) -> None:
        """Note an operator that may give nothing, as in a branch not taken, and one that is made of gradients."""
        made_of = {one.op for one in op.inputs if id(one) not in self._fed}
        inside = op._get_control_flow_context() is not None
        if inside or op.type in _SWITCHES or (self._dead & made_of and op.type not in _MERGES):
            self._dead.add(op)
            self._plan.has_loops = self._plan.has_loops or inside
        if any(self._gradients.is_gradient(one) or one in self._later for one in made_of):
            self._later.add(op)

    def _is_shown(self, op: Any) -> bool:
        return not (
            op in self._dead
            or (op.type in SILENT and not has_own_gradient(op))
            or op.type in _VARIABLES
            or op.type in _BY_HAND
            or _UPDATE.fullmatch(op.type)
            or self._gradients.is_gradient(op)
            or self._is_of_an_update(op)
            or not any(is_floating(one) and self._can_be_fetched(one) for one in op.outputs)
        )

    def _is_of_an_update(self, op: Any) -> bool:
        """Whether it reads what an update has written, such as the powers of Adam's betas."""
        reads = (one.op for one in op.inputs if one.op.type == "ReadVariableOp")
        before = (one for reader in (op, *reads) for one in reader.control_inputs)
        return any(_UPDATE.fullmatch(one.type) for one in before)

    def _can_be_fetched(self, tensor: Any) -> bool:
        return (
            is_number(tensor)
            and not tensor.dtype._is_ref_dtype
            and tensor.op not in self._dead
            and tensor.op.graph.is_fetchable(tensor.op)
        )

    def _updated(self, op: Any) -> Any:
        """The variable that an operator updates; None for an operator that updates none."""
        by_hand = op.type in _BY_HAND and op in self._later
        if not (by_hand or _UPDATE.fullmatch(op.type)) or not op.inputs:
            return None
        variable = self._variable(op.inputs[0])
        return variable if not by_hand or getattr(variable, "trainable", False) else None

    def _variable(self, tensor: Any) -> Any:
        """The variable that a tensor is read of, or the handle of."""
        op = tensor.op
        while op.type in _PASSING and op.inputs:
            op = op.inputs[0].op
        return self._variables.get(op.name) if op.type in _VARIABLES else None

    # --- operators ------------------------------------------------------------------------------

    def _operator(self, op: Any, phase: Phase) -> None:
        arguments = settings_of([part for pair in op.node_def.attr.items() for part in pair])
        for index, tensor in enumerate(op.inputs):
            if tensor.op.type == "Const":
                value = tf.get_static_value(tensor)
                plain = None if value is None else constant_of(value)
                if plain is not None:
                    arguments[f"args.{index}"] = plain
        scope = op.name.rpartition("/")[0].replace("/", ".")
        site = self._sites[op] = CodeSite(
            0, scope, f"tf.{op.type}", CallKind.OPERATOR, phase, arguments, graph_stack(op.traceback)
        )  # fmt: skip
        for index, tensor in enumerate(op.inputs):
            if f"args.{index}" not in arguments:
                self._input(site, index, tensor)
        for index, tensor in enumerate(op.outputs):
            name = "result" if len(op.outputs) == 1 else f"result.{index}"
            self._look(site, Role.OUTPUT, name, tensor, index)

    def _input(self, site: CodeSite, index: int, tensor: Any) -> None:
        variable = self._variable(tensor)
        if variable is not None:
            name = name_of(variable)
            look = Look(site, Role.INPUT, name, variable, index, argument=f"args.{index}")
            self._plan.looks.append(look)
            return
        if self._is_data(tensor) and id(tensor) not in self._arrived:
            self._arrived.add(id(tensor))
            data = CodeSite(0, "", "batch", CallKind.DATA, Phase.DATA, {})
            self._look(data, Role.OUTPUT, tensor.name.split(":")[0], tensor, 0)
        self._look(site, Role.INPUT, f"args.{index}", tensor, index)

    def _is_data(self, tensor: Any) -> bool:
        """Whether a tensor comes from outside: it is given to the run, or read of something that is no number."""
        op = tensor.op
        return id(tensor) in self._fed or (
            op.type != "Const" and all(one.dtype.base_dtype in _HANDLES for one in op.inputs)
        )

    def _look(
        self, site: CodeSite, role: Role, name: str, tensor: Any, index: int,
        phase: Phase | None = None,
    ) -> None:  # fmt: skip
        tensor = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
        if isinstance(tensor, tf.Tensor) and self._can_be_fetched(tensor):
            self._plan.looks.append(Look(site, role, name, tensor, index, phase))

    # --- gradients ------------------------------------------------------------------------------

    def _losses(self) -> None:
        ran = set(self._ops)
        self._plan.losses = [
            one for one in self._gradients.losses
            if one.op in ran and one.shape.rank == 0 and self._can_be_fetched(one)
        ]  # fmt: skip

    def _backward(self) -> None:
        ran = set(self._ops)
        for link in self._gradients.links:
            site = self._sites.get(link.op)
            if site is None:
                continue
            for index, tensor in enumerate(link.entering):
                name = "result" if len(link.op.outputs) == 1 else f"result.{index}"
                if _made_by(tensor) in ran:
                    self._look(site, Role.GRAD_OUTPUT, name, tensor, index, Phase.BACKWARD)
            for index, tensor in enumerate(link.leaving):
                if _made_by(tensor) not in ran:
                    continue
                variable = self._variable(link.op.inputs[index])
                role = Role.GRAD_INPUT if variable is None else Role.PARAM_GRAD
                name = f"args.{index}" if variable is None else name_of(variable)
                self._look(site, role, name, tensor, index, Phase.BACKWARD)
        for source, tensor in self._gradients.sums:
            variable = self._variable(getattr(source, "handle", source))
            if variable is None or _made_by(tensor) not in ran:
                continue
            name = name_of(variable)
            site = CodeSite(
                0, name.rpartition(".")[0], "accumulate_grad", CallKind.GRADIENT, Phase.BACKWARD, {},
                graph_stack(_made_by(tensor).traceback),
            )  # fmt: skip
            self._look(site, Role.PARAM_GRAD, name, tensor, 0)

    # --- updates --------------------------------------------------------------------------------

    def _update(self, op: Any) -> None:
        variable = self._updated(op)
        name, rule = name_of(variable), _UPDATE.fullmatch(op.type)
        called = [str(one.name) for one in op.op_def.input_arg]
        given = dict(zip(called, op.inputs, strict=False))
        settings = settings_of([part for pair in op.node_def.attr.items() for part in pair])
        for argument, tensor in given.items():
            value = tf.get_static_value(tensor) if tensor.op.type == "Const" else None
            if value is not None and value.ndim == 0:
                settings[argument] = constant_of(value)
        kind = f"tf.train.{rule['rule']}" if rule else f"tf.{op.type}"
        site = CodeSite(
            0, name.rpartition(".")[0], kind, CallKind.OPTIMIZER, Phase.OPTIMIZER, settings,
            graph_stack(op.traceback),
        )  # fmt: skip
        self._plan.updates.append(Update(site, name))
        self._variable_looks(site, Role.PARAM, Role.PARAM_AFTER, name, variable, 0)
        gradient = given.get("grad")
        if gradient is not None:
            self._look(site, Role.PARAM_GRAD, name, gradient, 0)
        slots = [(argument, self._variable(tensor)) for argument, tensor in list(given.items())[1:]]
        named = [(argument, slot) for argument, slot in slots if slot is not None]
        for index, (argument, slot) in enumerate(named if self._has_slots else ()):
            label = f"{name}|{argument}"
            self._variable_looks(site, Role.STATE, Role.STATE_AFTER, label, slot, index)

    def _variable_looks(
        self, site: CodeSite, before: Role, after: Role, name: str, variable: Any, index: int
    ) -> None:
        self._plan.before.append(Look(site, before, name, variable, index))
        self._plan.after.append(Look(site, after, name, variable, index))


def name_of(variable: Any) -> str:
    """The full name of a variable, with dots."""
    return str(variable.op.name).replace("/", ".")


def has_own_gradient(op: Any) -> bool:
    """Whether an operator stands for a function with a gradient of its own."""
    return "_gradient_op_type" in op.node_def.attr


def _made_by(tensor: Any) -> Any:
    tensor = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    return tensor.op if isinstance(tensor, tf.Tensor) else None


def _variables_of(graph: Any) -> Sequence[Any]:
    """All variables of a graph, whichever collections they are in."""
    names = tf.compat.v1.GraphKeys
    found: list[Any] = []
    for collection in (names.GLOBAL_VARIABLES, names.LOCAL_VARIABLES, names.TRAINABLE_VARIABLES):
        found.extend(graph.get_collection(collection))
    return found


def _ancestors(graph: Any, fetched: Iterable[Any], fed: frozenset[int]) -> list[Any]:
    """All operators that a run computes, in the order in which they were made."""
    seen: set[Any] = set()
    waiting = list(fetched)
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        waiting.extend(one.op for one in op.inputs if id(one) not in fed)
        waiting.extend(op.control_inputs)
    return [op for op in graph.get_operations() if op in seen]
