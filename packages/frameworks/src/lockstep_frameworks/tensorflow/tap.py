"""Listens to every operator of a TensorFlow process: in eager code as it runs, in graphs as they are built.

What is wanted of a graph is handed over by `graph_looks`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import record
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import op_callbacks, ops
from tensorflow.python.ops import resource_variable_ops

from lockstep.recorder import Patch, SharedArray, frames_here
from lockstep.recordings import CallKind, Frame, Phase, Role
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.recording import FrameworkRecording
from lockstep_frameworks.tensorflow.attributes import constant_of, settings_of
from lockstep_frameworks.tensorflow.code_places import HIDDEN, graph_stack, stack_here
from lockstep_frameworks.tensorflow.session_gradients import is_of_a_session
from lockstep_frameworks.tensorflow.tap_parts import GradientPart, GraphPart, LatePart, Part
from lockstep_frameworks.tensorflow.tensor_kinds import (
    PASSED_ON,
    SILENT,
    WITH_GRAPHS,
    is_floating,
    is_number,
)


@dataclass
class Local(threading.local):
    """Where the code of this thread is; with slots it would be the same for all threads."""

    path: list[CodeSite] = field(default_factory=list)
    phase: Phase = Phase.FORWARD
    is_between: bool = False
    updates: dict[str, CodeSite] = field(default_factory=dict)
    is_quiet: bool = False
    has_tape: bool = False
    """Whether a tape was recording when Lockstep began to look."""

    def runs(self, arguments: Any) -> bool:
        """Whether a layer computes with these, rather than that Keras looks at shapes."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if graph is not None and graph.name.startswith("scratch_graph"):
            return False
        return any(isinstance(one, tf.Tensor) for one in tf.nest.flatten(arguments))


class Tap:
    """A `lockstep_frameworks.adapter.Adapter` for TensorFlow 2.

    recording: Takes what is seen.
    """

    def __init__(self, recording: FrameworkRecording) -> None:
        self.recording = recording
        self.local = Local()
        self.made: dict[int, tuple[CodeSite | None, Any]] = {}
        self.named: dict[int, tuple[str, Any]] = {}
        self.constants: dict[int, tuple[Any, Any]] = {}
        self.inputs: dict[CodeSite, list[int]] = {}
        self.outputs: dict[CodeSite, list[int]] = {}
        self.left: dict[int, tuple[list[tuple[CodeSite, str, int]], Any]] = {}
        """By the identity of a tensor the layers that return it, by which name and in which place."""
        self._shared: dict[int, tuple[SharedArray, Any]] = {}
        """Values of eager tensors, which never change, so that each is measured once."""
        self._names: dict[int, str] = {}
        self._names_used: dict[str, int] = {}
        self._arrived: dict[int, Any] = {}
        self._patches = [
            Patch(polymorphic_function.Function, "__call__", self._wrap_function),
            Patch(resource_variable_ops.BaseResourceVariable, "_read_variable_op", self._wrap_read),
        ]

    def attach(
        self, gradients: GradientPart, graphs: GraphPart, late: Sequence[LatePart], sessions: Part
    ) -> None:
        """Take the parts that look at gradients, graphs, sessions, and (`late`) at what Keras loads later."""
        self.gradients, self.graphs, self._late, self._sessions = gradients, graphs, late, sessions

    # --- life -----------------------------------------------------------------------------------

    def install(self) -> None:
        """Begin to listen."""
        op_callbacks.add_op_callback(self._on_operator)
        for patch in self._patches:
            patch.put()
        self.gradients.install()
        self.graphs.install()
        self._sessions.install()
        if self.recording.options.compile_eager:
            tf.config.run_functions_eagerly(True)

    def remove(self) -> None:
        """Listen no more; what is in graphs by now looks once whether it is wanted."""
        for patch in self._patches:
            patch.take_back()
        for part in (self._sessions, self.gradients, self.graphs, *reversed(self._late)):
            part.remove()
        self.forget()

    def forget(self) -> None:
        """Let go of all tensors."""
        for kept in (
            self.made,
            self.named,
            self.constants,
            self.inputs,
            self.outputs,
            self.left,
            self._arrived,
            self._shared,
        ):
            kept.clear()

    def step_ended(self) -> None:
        """Let go of eager tensors; those of graphs stay, as a graph may still be built."""
        for kept in (self.made, self.named, self.constants, self.left):
            for key in [key for key, one in kept.items() if isinstance(one[1], ops.EagerTensor)]:
                del kept[key]
        self._arrived.clear()
        self._shared.clear()

    # --- where we are ---------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Whether nothing is looked at now."""
        return self.local.is_quiet or self.recording.is_done

    def place(self) -> CodeSite | None:
        """The module call that this code runs in."""
        return self.local.path[-1] if self.local.path else None

    def rank(self) -> int:
        """The replica that this code runs for."""
        if not distribute_lib.has_strategy():
            return 0
        context = distribute_lib.get_replica_context()
        self.recording.world_size = self.replicas()
        if context is None:
            return 0
        number = tf.get_static_value(context.replica_id_in_sync_group)
        return 0 if number is None else int(number)

    def replicas(self) -> int:
        """How many replicas train in step."""
        if not distribute_lib.has_strategy():
            return 1
        return int(distribute_lib.get_strategy().num_replicas_in_sync)

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Look at nothing of what Lockstep itself computes, and keep it off the tapes."""
        before, self.local.is_quiet = self.local.is_quiet, True
        try:
            with record.stop_recording():
                yield
        finally:
            self.local.is_quiet = before

    def silenced(self, look: Callable[[], None]) -> None:
        """Look at something; an error of ours ends the recording alone."""
        if self.is_idle():
            return
        try:
            self.local.has_tape = record.could_possibly_record()
            with self.quietly():
                for part in self._late:
                    part.install_once()
                look()
        except Exception as error:
            self.recording.fail(error)

    # --- tensors --------------------------------------------------------------------------------

    def values(self, tensor: Any) -> Any:
        """The elements of an eager tensor, or of what a graph has handed over."""
        return tensor.numpy() if hasattr(tensor, "numpy") else np.asarray(tensor)

    def settings(self, op: str, attributes: Sequence[Any]) -> dict[str, Any]:
        """The plain settings of an operator."""
        return settings_of(attributes or ())

    def see(
        self,
        site: CodeSite,
        role: Role,
        name: str,
        tensor: Any,
        index: int,
        *,
        phase: Phase | None = None,
        argument: str = "",
    ) -> None:
        """Record a tensor of a site: now in eager code, whenever it runs in a graph."""
        tensor = (
            getattr(tensor, "values", tensor) if isinstance(tensor, tf.IndexedSlices) else tensor
        )
        if is_number(tensor):
            self.then(
                tensor,
                lambda array: self.recording.add(
                    site, role, name, array, index=index, phase=phase, argument=argument
                ),
            )

    def then(self, tensor: Any, act: Callable[[Any], None]) -> None:
        """Do something with the value of a tensor; with None, something at this place of the code."""
        if tensor is not None and hasattr(tensor, "numpy"):
            act(self._shared_value(tensor))
        elif tensor is None and tf.executing_eagerly():
            act(None)
        elif not self.graphs.add(tensor, act):
            self.recording.note_gap(
                "a graph that was not built by tf.function", "its end is not known"
            )

    def _shared_value(self, tensor: Any) -> SharedArray:
        known = self._shared.get(id(tensor))
        if known is None:
            known = self._shared[id(tensor)] = (SharedArray(self.values(tensor)), tensor)
        return known[0]

    def passes_on(self, tensor: Any, source: Any) -> None:
        """A tensor is another one under a new name."""
        for kept in (self.made, self.named, self.constants):
            if id(source) in kept:
                kept[id(tensor)] = (kept[id(source)][0], tensor)  # type: ignore[assignment]

    def layers_that_return(self, site: CodeSite, index: int) -> Sequence[tuple[CodeSite, str, int]]:
        """Calls of layers that return a result of a call, each with its name and place there."""
        results = self.outputs.get(site, ())
        return self.left.get(results[index], ((), None))[0] if index < len(results) else ()

    # --- variables ------------------------------------------------------------------------------

    def note_variable(self, variable: Any, name: str) -> None:
        """A variable has a name from its layer; each of its copies in replicas has it too."""
        for one in (variable, *(getattr(variable, "_values", None) or ())):
            if id(one) not in self._names:
                self._names[id(one)] = name

    def name_of(self, variable: Any) -> str:
        """The full name of a variable, with dots; one of another variable gets a number."""
        known = self._names.get(id(variable))
        if known is None:
            bare = str(variable.name).split(":")[0].replace("/", ".")
            count = self._names_used[bare] = self._names_used.get(bare, -1) + 1
            known = bare if not count else f"{bare}_{count}"
            self._names[id(variable)] = known
        return known

    def parameters(self) -> Mapping[str, Any]:
        """Nothing here: optimizers tell the parameters."""
        return {}

    def stack(self) -> tuple[Frame, ...]:
        """Where this code stands."""
        return stack_here()

    def read(self, variable: Any) -> Any:
        """The value of a variable as it is here."""
        return variable.read_value()

    def _wrap_read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def read(variable: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(variable, *args, **kwargs)
            if not self.is_idle() and variable.dtype.is_floating:
                self.named[id(result)] = (self.name_of(variable), result)
            return result

        return read

    # --- operators ------------------------------------------------------------------------------

    def _on_operator(
        self,
        op_type: Any,
        inputs: Sequence[Any],
        attrs: Sequence[Any],
        outputs: Sequence[Any],
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        op = op_type.decode() if isinstance(op_type, bytes) else op_type
        if is_of_a_session(graph) or (graph is not None and graph.name.startswith("scratch_graph")):
            return  # a session is looked at as it runs; a graph that Keras looks at shapes by never does
        self.silenced(lambda: self._operator(op, inputs, attrs, outputs, graph))

    def _operator(
        self,
        op: str,
        inputs: Sequence[Any],
        attrs: Sequence[Any],
        outputs: Sequence[Any],
        graph: Any,
    ) -> None:
        if op in PASSED_ON:
            self.gradients.passed_on(inputs, outputs)
            for source, tensor in zip(inputs, outputs, strict=False):
                self.passes_on(tensor, source)
        if op == "Const" and outputs:
            value = tf.get_static_value(outputs[0])
            self.constants[id(outputs[0])] = (
                None if value is None else constant_of(value),
                outputs[0],
            )
        if op in WITH_GRAPHS and graph is not None:
            self.graphs.keep_order(outputs, graph)
        if op.startswith("__") or not self.is_of_training():
            return
        if op in SILENT or not any(is_floating(one) for one in outputs):
            for tensor in outputs:  # made of whole numbers alone, it did not arrive from outside
                self.made.setdefault(id(tensor), (None, tensor))
            return
        site = self._site(op, inputs, attrs, outputs, graph)
        self._see_inputs(site, inputs)
        self.outputs[site] = [id(tensor) for tensor in outputs]
        for index, tensor in enumerate(outputs):
            self.made[id(tensor)] = (site, tensor)
            name = "result" if len(outputs) == 1 else f"result.{index}"
            self.see(site, Role.OUTPUT, name, tensor, index)

    def is_of_training(self) -> bool:
        """Whether operators here are those of a step: under a tape, or between gradients and their update."""
        if self.local.phase is not Phase.FORWARD:
            return False
        return self.local.is_between or self.local.has_tape

    def _site(
        self,
        op: str,
        inputs: Sequence[Any],
        attrs: Sequence[Any],
        outputs: Sequence[Any],
        graph: Any,
    ) -> CodeSite:
        arguments = self.settings(op, attrs)
        for index, tensor in enumerate(inputs):
            constant = self._constant(tensor)
            if constant is not None:
                arguments[f"args.{index}"] = constant
        place = self.place()
        phase = Phase.BACKWARD if self.local.is_between else Phase.FORWARD
        module, kind = ("", "") if place is None else (place.module, place.op)
        stack = frames_here(HIDDEN) if graph is None else graph_stack(outputs[0].op.traceback)
        return CodeSite(
            self.rank(), module, f"tf.{op}", CallKind.OPERATOR, phase, arguments, stack, place, kind
        )

    def _constant(self, tensor: Any) -> Any:
        known = self.constants.get(id(tensor))
        if known is not None:
            return known[0]
        is_known = id(tensor) in self.made or id(tensor) in self.named
        if (
            is_known
            or not hasattr(tensor, "numpy")
            or tensor.dtype in (tf.resource, tf.variant, tf.string)
        ):
            return None
        return constant_of(tensor.numpy())

    def _see_inputs(self, site: CodeSite, inputs: Sequence[Any]) -> None:
        self.inputs[site] = [id(tensor) for tensor in inputs]
        for index, tensor in enumerate(inputs):
            if f"args.{index}" in site.arguments:
                continue
            named = self.named.get(id(tensor))
            name = f"args.{index}" if named is None else named[0]
            argument = "" if named is None else f"args.{index}"
            if named is None and id(tensor) not in self.made:
                self._arrives(site, tensor, name)
            self.see(site, Role.INPUT, name, tensor, index, argument=argument)

    def _arrives(self, site: CodeSite, tensor: Any, name: str) -> None:
        """A tensor comes from outside of the step: it is data."""
        if not is_number(tensor) or id(tensor) in self._arrived:
            return
        self._arrived[id(tensor)] = tensor
        data = CodeSite(site.rank, "", "batch", CallKind.DATA, Phase.DATA, {})
        self.see(data, Role.OUTPUT, f"{name} of {site.op.removeprefix('tf.')}", tensor, 0)

    def _wrap_function(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(function, *args, **kwargs)
            if tf.executing_eagerly():
                self.recording.end_process_if_asked()
            return result

        return call

    def link(
        self, op: str, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]
    ) -> CodeSite | None:
        """The forward call that a gradient is of."""
        return self.gradients.link(op, inputs, outputs, gradients)
