"""Listens to every operator of a MindSpore process in PyNative mode, forward and backward, to Cells and optimizers.

Operators come by `MsDispatchMode`, in the backward too; those that run as a Primitive (Conv2D, MaxPool, BiasAdd) have
no backward there, and a hook on their results gives the gradients that enter it. Graphs, of graph mode and of `@jit`,
hand nothing over: that is noted.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, context, nn
from mindspore.experimental.optim.optimizer import Optimizer
from mindspore.graph import api
from mindspore.ops.composite import base
from mindspore.utils.ms_dispatch import MsDispatchMode

from lockstep.recorder import Patch, frames_here
from lockstep.recordings import CallKind, Phase, Role
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.mindspore.cells import class_name, paths_of, settings_of, states_of
from lockstep_frameworks.recording import FrameworkRecording
from lockstep_frameworks.tensorflow.attributes import constant_of, plain_settings

_HIDDEN = (str(Path(mindspore.__file__).parent) + os.sep,)
_SILENT = frozenset({"typeof", "Depend", "Load", "StopGradient", "Shape"})
_UNWRITTEN = {"ms.BatchNorm": (1, 2)}
"""Results that the kernels for CPUs leave as memory was."""
GRAPHS = "graph mode"
JITTED = "functions under @jit"
_GRAPHS_REASON = "a graph hands no tensor over; run with mode=PYNATIVE_MODE"
_JITTED_REASON = (
    "a graph hands no tensor over; MS_JIT=0 in the environment runs them operator by operator"
)


class _Dispatch(MsDispatchMode):  # type: ignore[misc]
    """Hands every operator to a function, which runs it."""

    def __init__(self, act: Callable[..., Any]) -> None:
        super().__init__()
        self._act = act

    def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
        return self._act(func, args, kwargs or {})


class Tap:
    """A `lockstep_frameworks.adapter.Adapter` for MindSpore.

    recording: Takes what is seen.
    """

    def __init__(self, recording: FrameworkRecording) -> None:
        self.recording = recording
        self._path: list[CodeSite] = []
        self._operators = 0
        self._paths: dict[int, str] = {}
        self._phase: Phase | None = None
        self._made: dict[int, Any] = {}
        """Results by the address of their elements: an operator is given another object than the last one returned."""
        self._names: dict[tuple[int, tuple[int, ...]], str] = {}
        self._kept: dict[int, tuple[Any, str, dict[str, Any]]] = {}
        self._dispatch = _Dispatch(self._on_operator)
        self._patches = [
            Patch(nn.Cell, "__call__", self._wrap_call),
            Patch(base, "_pynative_forward_run", self._wrap_forward),
            Patch(base, "_pynative_func_grad_backward", self._wrap_backward),
            Patch(api._JitExecutor, "__call__", self._wrap_jit),
        ]

    # --- life -----------------------------------------------------------------------------------

    def install(self) -> None:
        """Begin to listen."""
        for patch in self._patches:
            patch.put()

    def remove(self) -> None:
        """Listen no more."""
        for patch in self._patches:
            patch.take_back()
        self._made.clear()

    def step_ended(self) -> None:
        """Let go of the tensors of the step, and of an exception that was printed: it did not end the training.

        MindSpore prints one where NumPy is newer than the one that it was built with.
        """
        self._made.clear()
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)

    def place(self) -> CodeSite | None:
        """The Cell that this code runs in."""
        return self._path[-1] if self._path else None

    def parameters(self) -> Mapping[str, Any]:
        """Nothing here: optimizers tell the parameters."""
        return {}

    def link(
        self, op: str, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]
    ) -> CodeSite | None:
        """Nothing here: operators of the backward are calls of their own."""
        return None

    def settings(self, op: str, attributes: Sequence[Any]) -> dict[str, Any]:
        """The plain settings of an operator, by its arguments' places."""
        return plain_settings({f"args.{index}": one for index, one in enumerate(attributes)})

    def values(self, tensor: Any) -> Any:
        """The elements of a tensor; of bfloat16, which NumPy does not have, as `ml_dtypes` has them."""
        if tensor.dtype != mindspore.bfloat16:
            return np.array(tensor.asnumpy())
        import ml_dtypes

        with self._looking():
            return tensor.astype(mindspore.float32).asnumpy().astype(ml_dtypes.bfloat16)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Compute something of Lockstep's own: outside of the training's gradients and of what is seen."""
        before, self._phase = self._phase, None
        try:
            with api._no_grad():
                yield
        finally:
            self._phase = before

    def _silenced(self, look: Callable[[], None]) -> None:
        """Look at something; an error of ours ends the recording alone."""
        if self.recording.is_done:
            return
        try:
            look()
        except Exception as error:
            self.recording.fail(error)

    def _see(
        self, site: CodeSite, role: Role, name: str, tensor: Any, index: int, **more: Any
    ) -> None:
        self.recording.add(site, role, name, self.values(tensor), index=index, **more)

    # --- operators ------------------------------------------------------------------------------

    def _on_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        op = str(func.name)
        if self._phase is None or self.recording.is_done or op in _SILENT:
            return func(*args, **kwargs)
        sites: list[CodeSite] = []
        primitive = args[0] if args and isinstance(args[0], mindspore.ops.Primitive) else None
        given = list(args[2]) if primitive is not None else [*args, *kwargs.values()]
        self._silenced(lambda: sites.append(self._begin_operator(op, given, primitive)))
        result = func(*args, **kwargs)
        for site in sites:
            self._silenced(functools.partial(self._end_operator, site, result, primitive))
        return result

    def _begin_operator(self, op: str, given: Sequence[Any], primitive: Any) -> CodeSite:
        """What goes in is looked at first: an operator may write into it."""
        self._operators += 1
        site = self._site(op, given, primitive)
        number = 0
        for index, value in enumerate(given):
            for tensor in tensors_in(value):
                if f"args.{index}" not in site.arguments:
                    self._input(site, tensor, index, number)
                number += 1
        return site

    def _end_operator(self, site: CodeSite, result: Any, primitive: Any) -> None:
        outputs = tensors_in(result)
        for index, tensor in enumerate(outputs):
            self._made[tensor.data_ptr()] = tensor
            if index in _UNWRITTEN.get(site.op, ()):
                continue
            name = "result" if len(outputs) == 1 else f"result.{index}"
            self._see(site, Role.OUTPUT, name, tensor, index)
            if primitive is not None and site.phase is Phase.FORWARD:
                self._await_gradient(site, name, tensor, index)

    def _site(self, op: str, given: Sequence[Any], primitive: Any) -> CodeSite:
        settings = self.settings(op, given)
        for index, value in enumerate(given):
            is_number = isinstance(value, Tensor) and value.ndim == 0
            if is_number and value.data_ptr() not in self._made and not self._name_of(value):
                settings[f"args.{index}"] = constant_of(self.values(value))
        if primitive is not None:
            attributes = {
                k: v for k, v in primitive.attrs.items() if k not in ("input_names", "output_names")
            }
            settings |= plain_settings(attributes)
        place, phase = self.place(), self._phase or Phase.FORWARD
        module, kind = ("", "") if place is None else (place.module, place.op)
        return CodeSite(
            0, module, f"ms.{op}", CallKind.OPERATOR, phase, settings, frames_here(_HIDDEN), place, kind
        )  # fmt: skip

    def _input(self, site: CodeSite, tensor: Any, index: int, number: int) -> None:
        name = self._name_of(tensor)
        argument = f"args.{index}" if name else ""
        self._see(site, Role.INPUT, name or f"args.{index}", tensor, number, argument=argument)

    def _name_of(self, tensor: Any) -> str:
        return self._names.get((tensor.data_ptr(), tensor.shape), "")

    def _arrived(self, given: Any) -> None:
        """What a step is called with is data."""
        for index, tensor in enumerate(tensors_in(given)):
            if not isinstance(tensor, Parameter):
                self._made[tensor.data_ptr()] = tensor
                data = CodeSite(0, "", "batch", CallKind.DATA, Phase.DATA, {})
                self._see(data, Role.OUTPUT, f"args.{index}", tensor, 0)

    def _await_gradient(self, site: CodeSite, name: str, tensor: Any, index: int) -> None:
        """Record the gradient that enters a call by a result of it, once it is there."""

        def arrived(gradient: Any) -> None:
            if gradient is not None:
                self._silenced(
                    lambda: self._see(
                        site, Role.GRAD_OUTPUT, name, gradient, index, phase=Phase.BACKWARD
                    )
                )

        if tensor.dtype.is_floating_point:
            tensor.register_hook(arrived)

    # --- phases ---------------------------------------------------------------------------------

    @contextmanager
    def _in_phase(self, phase: Phase) -> Iterator[None]:
        before, self._phase = self._phase, phase
        try:
            with self._dispatch:
                yield
        finally:
            self._phase = before

    def _wrap_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(fn: Any, sens: Any, *args: Any, **kwargs: Any) -> Any:
            if self._phase is not None or self.recording.is_done:
                return original(fn, sens, *args, **kwargs)
            before = self._operators
            self._silenced(lambda: self._arrived(args))
            with self._in_phase(Phase.FORWARD):
                found = original(fn, sens, *args, **kwargs)
            if self._operators > before:  # else it ran before, outside of this
                self._silenced(lambda: self._loss(found[1]))
            return found

        return forward

    def _loss(self, result: Any) -> None:
        losses = [one for one in tensors_in(result)[:1] if one.ndim == 0]
        for loss in losses:
            self.recording.loss(0, self.values(loss))

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(fn: Any, grad_op: Any, weights: Any, *args: Any, **kwargs: Any) -> Any:
            if self._phase is not None or self.recording.is_done:
                return original(fn, grad_op, weights, *args, **kwargs)
            with self._in_phase(Phase.BACKWARD):
                found = original(fn, grad_op, weights, *args, **kwargs)
            self._silenced(lambda: self._gradients(weights, found))
            return found

        return backward

    def _gradients(self, weights: Any, found: Any) -> None:
        """Gradients of weights come alone, or after those of inputs."""
        parameters = [one for one in (weights or ()) if isinstance(one, Parameter)]
        gradients = tensors_in(found)
        for parameter, gradient in zip(parameters, gradients[-len(parameters) :], strict=False):
            module = parameter.name.rpartition(".")[0]
            site = CodeSite(
                0,
                module,
                "accumulate_grad",
                CallKind.GRADIENT,
                Phase.BACKWARD,
                {},
                frames_here(_HIDDEN),
            )
            self._see(site, Role.PARAM_GRAD, parameter.name, gradient, 0)

    def _wrap_jit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._phase is not None and self._phase is not Phase.OPTIMIZER:
                self.recording.note_gap(JITTED, _JITTED_REASON)
            return original(*args, **kwargs)

        return call

    # --- Cells ----------------------------------------------------------------------------------

    def _wrap_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(cell: Any, *args: Any, **kwargs: Any) -> Any:
            if self.recording.is_done:
                return original(cell, *args, **kwargs)
            if (
                context.get_context("mode") == context.GRAPH_MODE
                and os.environ.get("MS_JIT") != "0"
            ):
                self.recording.note_gap(GRAPHS, _GRAPHS_REASON)
                return original(cell, *args, **kwargs)
            if isinstance(cell, (nn.Optimizer, Optimizer)):
                return self._update(original, cell, args, kwargs)
            if self._phase is None and cell.requires_grad:
                self._silenced(lambda: self._arrived(args))
                with self._in_phase(Phase.FORWARD):
                    found = self._call(original, cell, args, kwargs)
                self._silenced(lambda: self._loss(found))
                return found
            return self._call(original, cell, args, kwargs)

        return call

    def _call(self, original: Callable[..., Any], cell: Any, args: Any, kwargs: Any) -> Any:
        if self._phase is not Phase.FORWARD or not getattr(cell, "_auto_prefix", True):
            return original(cell, *args, **kwargs)
        sites: list[CodeSite] = []
        self._silenced(lambda: sites.append(self._begin(cell, args)))
        if not sites:
            return original(cell, *args, **kwargs)
        self._path.append(sites[0])
        try:
            result = original(cell, *args, **kwargs)
        finally:
            self._path.pop()
        self._silenced(lambda: self._end(cell, sites[0], result))
        return result

    def _begin(self, cell: Any, args: Any) -> CodeSite:
        if id(cell) not in self._kept:
            learns = next(iter(cell.get_parameters()), None) is not None
            known = self._paths.get(id(cell), "" if learns else type(cell).__name__)
            for number, path in paths_of(cell, known):
                self._paths.setdefault(number, path)
            self._kept[id(cell)] = (cell, class_name(cell), settings_of(cell))
        if not self._path:
            self._names |= {(one.data_ptr(), one.shape): one.name for one in cell.get_parameters()}
        _, kind, settings = self._kept[id(cell)]
        path, place = self._paths[id(cell)], self.place()
        site = CodeSite(
            0, path, kind, CallKind.MODULE, Phase.FORWARD, settings, frames_here(_HIDDEN), place, kind
        )  # fmt: skip
        for index, tensor in enumerate(tensors_in(args)):
            self._see(site, Role.INPUT, f"args.{index}", tensor, index)
        return site

    def _end(self, cell: Any, site: CodeSite, result: Any) -> None:
        count = sum(int(one.size) for one in cell.get_parameters())
        self.recording.module(0, site.module, site.op, count, site.arguments)
        outputs = tensors_in(result)
        for index, tensor in enumerate(outputs):
            name = "result" if len(outputs) == 1 else f"result.{index}"
            self._see(site, Role.OUTPUT, name, tensor, index)
            self._await_gradient(site, name, tensor, index)

    # --- optimizers -----------------------------------------------------------------------------

    def _update(self, original: Callable[..., Any], optimizer: Any, args: Any, kwargs: Any) -> Any:
        """An update ends the step."""
        updates: list[tuple[CodeSite, Any, dict[str, Any]]] = []
        self._silenced(lambda: updates.extend(self._before(optimizer, tensors_in(args))))
        before, self._phase = self._phase, Phase.OPTIMIZER
        try:
            result = original(optimizer, *args, **kwargs)
        finally:
            self._phase = before
        self._silenced(lambda: self._after(updates))
        self.recording.end_process_if_asked()
        return result

    def _before(
        self, optimizer: Any, gradients: Sequence[Any]
    ) -> Iterator[tuple[CodeSite, Any, dict[str, Any]]]:
        parameters = list(optimizer.parameters)
        states = states_of(optimizer, parameters) if self.recording.options.optimizer_state else {}
        op, settings, stack = class_name(optimizer), settings_of(optimizer), frames_here(_HIDDEN)
        for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=False)):
            name = parameter.name
            site = CodeSite(
                0, name.rpartition(".")[0], op, CallKind.OPTIMIZER, Phase.OPTIMIZER, settings, stack
            )  # fmt: skip
            own = {f"{name}|{kind}": kept[number] for kind, kept in states.items()}
            self._see(site, Role.PARAM, name, parameter, 0)
            self._see(site, Role.PARAM_GRAD, name, gradient, 0)
            for index, (state, kept) in enumerate(own.items()):
                self._see(site, Role.STATE, state, kept, index)
            yield site, parameter, own
        self.recording.optimizer(0, op, settings, [one.name for one in parameters])

    def _after(self, updates: Sequence[tuple[CodeSite, Any, dict[str, Any]]]) -> None:
        for site, parameter, own in updates:
            self._see(site, Role.PARAM_AFTER, parameter.name, parameter, 0)
            for index, (state, kept) in enumerate(own.items()):
                self._see(site, Role.STATE_AFTER, state, kept, index)
        self.recording.end_step(0)


def tensors_in(value: Any) -> list[Any]:
    """The tensors of a value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for one in value for tensor in tensors_in(one)]
    return []
