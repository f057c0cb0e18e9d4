"""The places in torch that Lockstep taps while it records, and how each is put back.

`Taps.install` and `Taps.remove` are exact opposites. Around a compiled region all taps are removed, so
that what is compiled and run there is what runs without Lockstep.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType, FunctionType
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode, _get_overridable_functions, _pop_mode, _push_mode
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.capture.patching.callers import ASKING, Callers, wrap_warn
from lockstep.capture.patching.patches import BodyPatch, Patch
from lockstep.capture.taps.hook_taps import hook_patches
from lockstep.capture.taps.listener import EngineRun, Listener
from lockstep.capture.taps.originals import Originals, is_torchs
from lockstep.capture.taps.plumbing import is_plumbing, is_private, only_hooks, trials_of_torch
from lockstep.capture.taps.recursion_limit import STRIDE, RaisedLimit
from lockstep.devices.emulation.mode import enter_above_emulations, leave_dispatch

_TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
# fmt: off
_NEVER_TENSORS = frozenset({
    "__set__", "__delete__", "__len__", "__bool__", "__int__", "__float__", "__index__", "__repr__",
    "__format__", "__hash__", "__contains__", "backward", "grad", "_set_grad_enabled",
    "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "requires_grad_", "item",
    "tolist", "numpy", "size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset",
    "element_size", "get_device", "data_ptr", "is_contiguous", "is_floating_point", "is_complex",
    "is_signed", "is_nonzero", "is_same_size", "is_shared", "is_pinned", "untyped_storage",
    "type_as_string", "allclose", "equal", "is_tensor", "storage", "typed_storage", "is_inference",
    "result_type",
})
# fmt: on
_READ_BY_PYTHON = frozenset({"item", "tolist", "numpy", "__array__"})
_TAKEN_BY_PYTHON = frozenset(
    {"__bool__", "__int__", "__float__", "__index__", "is_nonzero", "equal", "allclose"}
)


class Taps:
    """Everything that is patched while a step is recorded.

    Modes hold for one thread: they enter the stacks of a thread with its first module call.

    listener: Records what they see.
    level: "module", "api" or "aten".
    """

    def __init__(self, listener: Listener, level: str) -> None:
        self.listener = listener
        self.installed = False
        self._wanted = False
        self._untapped = 0
        self._functions = FunctionTap(self) if level != "module" else None
        self._aten = AtenTap(self) if level == "aten" else None
        self.callers = Callers()
        self._thread = threading.local()
        self._trials: list[Patch] = []
        self._gates: list[Patch] = []
        self._patches: list[Patch | BodyPatch] = [
            Patch(torch.nn.Module, "__call__", self._module_call),
            Patch(warnings, "warn", wrap_warn),
            self._patch_of_apply(),
            Patch(torch.autograd, "_engine_run_backward", self._run_backward),
            *hook_patches(self),
            Patch(torch.utils.checkpoint._CheckpointFrame, "__init__", self._checkpoint_frame),
        ]
        if self._functions is not None and torch.distributed.is_available():
            self._patches.append(Patch(torch.distributed.Work, "wait", self._wait))

    def install(self) -> None:
        """Put every tap in place, now or as soon as compiled code is left."""
        self._wanted = True
        if self._functions is not None:
            _public_names()  # looked up before the script warns of anything
        if not self._trials:
            self._trials = [Patch(owner, name, self._trial) for owner, name in trials_of_torch()]
            self._patches.extend(self._trials)
        if not self._gates:
            self._gates = self._gates_of_trials()
            for gate in self._gates:
                gate.put()
        self._update()

    def remove(self) -> None:
        """Put everything back as it was; in other threads, modes that do nothing may stay."""
        self._wanted = False
        self._update()
        for patch in self._gates + self._patches:  # one that the script's own hid until now, too
            patch.take_back()
        self._gates = []

    def call_untapped(self, run: Callable[[], Any]) -> Any:
        """Run something, a compiled region say, as if Lockstep were not there."""
        with self._untapped_for_a_time():
            return run()

    @contextmanager
    def _untapped_for_a_time(self) -> Iterator[None]:
        mode = self._functions
        switched_off = mode is not None and not _is_on_stack(mode)
        self.enter_untapped()
        try:
            yield
        finally:
            self.leave_untapped()
            if switched_off and mode is not None:
                _take_out(mode)

    def call_tapped(self, run: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Run something within compiled code that is to be seen; where no tap is wanted, run `otherwise`."""
        if not self._wanted or not self._untapped:
            return run() if self.installed else otherwise()
        untapped, self._untapped = self._untapped, 0
        self._update()
        try:
            return run()
        finally:
            self._untapped = untapped
            self._update()

    @property
    def in_compiled_code(self) -> bool:
        """Whether the taps are out for a compiled region."""
        return self._untapped > 0

    def enter_untapped(self) -> None:
        """Take all taps out until `leave_untapped`."""
        self._untapped += 1
        self._update()

    def leave_untapped(self) -> None:
        """Put them back, if they are still wanted."""
        self._untapped -= 1
        self._update()

    def _update(self) -> None:
        install = self._wanted and not self._untapped
        if install != self.installed:
            self.installed = install
            for patch in self._patches:
                patch.put() if install else patch.take_back()
        if install:
            self._enter_thread()
        else:
            self.callers.forget()
            self._leave_thread()

    @contextmanager
    def without_function_mode(self) -> Iterator[None]:
        """Take the function mode out, for code that asks whether there is one."""
        mode = self._functions
        if mode is None or not _is_on_stack(mode):
            yield
            return
        _take_out(mode)
        try:
            yield
        finally:
            if self.installed:
                _insert_at_bottom(mode)

    @contextmanager
    def _with_function_mode(self) -> Iterator[None]:
        """Switch the function mode on again where torch has switched it off for one call."""
        mode = self._functions
        if mode is None or not self.installed or _is_on_stack(mode):
            yield
            return
        _insert_at_bottom(mode)
        try:
            yield
        finally:
            _take_out(mode)

    def _enter_thread(self) -> None:
        self._thread.entered = True
        if self._functions is not None and not _is_on_stack(self._functions):
            _insert_at_bottom(self._functions)
        if self._aten is not None:
            enter_above_emulations(self._aten)

    def _leave_thread(self) -> None:
        if not getattr(self._thread, "entered", True):
            return
        self._thread.entered = False
        if self._functions is not None:
            _take_out(self._functions)
        if self._aten is not None:
            leave_dispatch(self._aten)

    def _module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def module_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self.installed:
                return original(module, *args, **kwargs)
            if not getattr(self._thread, "entered", False):
                self._enter_thread()
            depth = getattr(self._thread, "depth", 0)
            self._thread.depth = depth + 1
            try:
                if depth % STRIDE:
                    return self.listener.module_call(original, module, args, kwargs)
                with RaisedLimit(depth):
                    return self.listener.module_call(original, module, args, kwargs)
            finally:
                self._thread.depth = depth

        return module_call

    def _patch_of_apply(self) -> Patch | BodyPatch:
        """Where functions of a script are applied, by whatever name it has given to `apply` before recording began."""
        found = getattr(torch.autograd.Function.apply, "__func__", None)
        if isinstance(found, FunctionType):
            return BodyPatch(found, self._function_apply)
        return Patch(torch.autograd.Function, "apply", self._method_of_c)  # torch 2.15

    def _method_of_c(self, original: Any) -> Any:
        return classmethod(
            self._function_apply(
                lambda kind, *args, **kwargs: original.__get__(None, kind)(*args, **kwargs)
            )
        )

    def _function_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(kind: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            run = functools.partial(original, kind)
            if not self.installed:
                return run(*args, **kwargs)
            if kind is torch.utils.checkpoint.CheckpointFunction:
                args = (self.listener.recomputed_here(args[0]), *args[1:])
            if only_hooks(kind):
                return self.listener.plumbing_call(run, args, kwargs)
            name = f"{kind.__module__}.{kind.__qualname__}"
            return self.listener.custom_function_call(name, run, args, kwargs)

        return apply

    def _checkpoint_frame(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(frame: Any, recompute_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            if self.installed:
                recompute_fn = self.listener.recomputed_here(recompute_fn)
            original(frame, recompute_fn, *args, **kwargs)

        return init

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(work, *args, **kwargs)
            if self.installed:
                self.listener.waited(work)
            return result

        return wait

    def _trial(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What torch computes for shapes alone is no part of a step."""

        @functools.wraps(original)
        def trial(*args: Any, **kwargs: Any) -> Any:
            return self.call_untapped(functools.partial(original, *args, **kwargs))

        return trial

    def _gates_of_trials(self) -> list[Patch]:
        """Where tensors without data begin and cease to be what every function makes: no tap is in between."""
        owner = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensorMode", None)
        if owner is None:
            return []
        return [
            Patch(owner, "__enter__", self._trials_begin),
            Patch(owner, "__exit__", self._trials_end),
        ]

    def _trials_begin(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def enter(mode: Any) -> Any:
            entered = original(mode)
            within: list[Any] = self._thread.__dict__.setdefault("trials", [])
            within.append(self._untapped_for_a_time())
            within[-1].__enter__()
            return entered

        return enter

    def _trials_end(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def leave(mode: Any, *error: Any) -> Any:
            try:
                return original(mode, *error)
            finally:
                if within := self._thread.__dict__.get("trials"):
                    within.pop().__exit__(*error)

        return leave

    def _run_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`backward` accumulates into `.grad`; `autograd.grad` does not."""

        @functools.wraps(original)
        def run_backward(tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            if not self.installed:
                return original(tensors, *args, **kwargs)

            def run() -> Any:
                # From Tensor.backward the mode arrives switched off; recomputation needs it.
                with self._with_function_mode():
                    return original(tensors, *args, **kwargs)

            asked = _engine_run(tensors, args, kwargs, sys._getframe(1))
            return self.listener.backward_call(asked, run)

        return run_backward


_GRAD = torch.autograd.grad.__code__


def _engine_run(
    roots: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], caller: FrameType
) -> EngineRun:
    """What the engine is asked for; no inputs where one of them is an edge of the graph rather than a tensor.

    torch puts ones for gradients that its caller was not given, which that one's own argument tells.
    """
    padded: tuple[Any, ...] = (*args, *(None,) * 4)
    gradients, _, create_graph, inputs = padded[:4]
    are_ones = caller.f_code is _GRAD and caller.f_locals.get("grad_outputs") is None
    tensors = [one for one in inputs or () if isinstance(one, torch.Tensor)]
    whole = len(tensors) == len(inputs or ())
    return EngineRun(
        [one for one in roots if isinstance(one, torch.Tensor)],
        [] if are_ones else [one for one in gradients or () if one is not None],
        tensors if whole else [],
        accumulates=bool(kwargs.get("accumulate_grad")),
        create_graph=create_graph is True,
    )


class FunctionTap(TorchFunctionMode):
    """Sees every call of the torch Python API."""

    def __init__(self, taps: Taps) -> None:
        super().__init__()
        self._taps = taps
        self._names: dict[Any, str] = {}
        self._originals = Originals()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, taps = kwargs or {}, self._taps
        if not taps.installed:
            return func(*args, **kwargs)
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = _name_of(func)
        frame = sys._getframe(1)
        if name is _WRAPPED:
            func, own_name = self._originals.of(func, frame)
            name = operator_name(func) if own_name is None else _recorded_name(own_name)
        site = taps.callers.of(frame)
        if not name:
            return site.call(func, args, kwargs)
        if name is _GIVES_GRADIENT:
            result = site.call(func, args, kwargs)
            taps.listener.gradient_given(args[0])
            return result
        if name is _READ:
            taps.listener.read_by_python(args[0])
            return self._told(site.call(func, args, kwargs), args[0])
        if name is _TAKEN:
            taps.listener.taken_by_python(args)
            return self._told(site.call(func, args, kwargs), args[0])
        if (site.is_of_torch or frame.f_code is ASKING) and is_plumbing(frame, name):
            return taps.listener.plumbing_call(func, args, kwargs)
        result, deals_in_tensors = taps.listener.operator_call(
            name, func, args, kwargs, site.call, frame
        )
        if not deals_in_tensors and self._names.get(func) is not _WRAPPED:
            self._names[func] = ""
        return result

    def _told(self, result: Any, tensor: Any) -> Any:
        """What Python was given of a tensor; the listener is told of a single number."""
        if type(result) is float:
            self._taps.listener.number_read(result, tensor)
        return result


class AtenTap(TorchDispatchMode):
    """Sees every aten operator, in backward and in optimizers too."""

    def __init__(self, taps: Taps) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._taps = taps

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if not self._taps.installed:
            return func(*args, **(kwargs or {}))
        run = self._taps.callers.of(sys._getframe(1)).call
        return self._taps.listener.aten_call(str(func), func, args, kwargs or {}, run)


_WRAPPED = "wrapped by the script"
"""Stands for the name of a function that is none of torch's own."""

_READ = "read by Python"
"""Stands for the name of one that gives numbers to Python."""

_TAKEN = "taken by Python"
"""Stands for the name of one that gives a number to Python for a decision."""

_GIVES_GRADIENT = "gives a gradient"
"""Stands for the name of `p.grad = ...`."""


def _name_of(function: Any) -> str:
    if not is_torchs(function):
        return _WRAPPED
    if function == cast(Any, torch.Tensor).grad.__set__:
        return _GIVES_GRADIENT
    plain = getattr(function, "__name__", "")
    if plain in _TAKEN_BY_PYTHON:
        return _TAKEN
    return _READ if plain in _READ_BY_PYTHON else operator_name(function)


def _recorded_name(name: str) -> str:
    return "" if name.rpartition(".")[2] in _NEVER_TENSORS else name


def operator_name(function: Any) -> str:
    """Full public name of a torch function, "" for what never makes a tensor (attribute access, hooks, settings).

    >>> operator_name(torch.nn.functional.gelu)
    'torch.nn.functional.gelu'
    """
    plain = getattr(function, "__name__", "")
    if plain == "__get__":
        name = _resolved(function)
        kept = name.removesuffix(".__get__").rpartition(".")[2] in _TENSOR_PROPERTIES
        return name.removesuffix(".__get__") if kept else ""
    if plain in _NEVER_TENSORS:
        return ""
    name = _resolved(function)
    if name:
        return "" if is_private(name) else name
    module = getattr(function, "__module__", None) or "torch"
    return f"{module}.{plain}" if plain else ""


def _resolved(function: Any) -> str:
    """As `torch.overrides.resolve_name`, which sets the filters of warnings at each call.

    Python forgets then which warnings it has shown, and shows them again.
    """
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(function)
    return _public_names().get(function, "")


@cache
def _public_names() -> dict[Any, str]:
    return dict(_get_overridable_functions()[1])


def _insert_at_bottom(mode: TorchFunctionMode) -> None:
    """Below the user's own modes, which leave in the order they came.

    Only the context of `torch.set_default_device` insists on being the very last.
    """
    above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    default_device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    if above and above[-1] is default_device:
        _push_mode(above.pop())
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


def _take_out(mode: TorchFunctionMode) -> None:
    above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    for other in reversed(above):
        if other is not mode:
            _push_mode(other)


def _is_on_stack(mode: TorchFunctionMode) -> bool:
    count = torch._C._len_torch_function_stack()
    return any(torch._C._get_function_stack_at(position) is mode for position in range(count))
