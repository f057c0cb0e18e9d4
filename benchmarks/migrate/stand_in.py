"""Runs a script on a device that is not there: it has exactly the listed names, and computes on the CPU.

python benchmarks/migrate/stand_in.py mps train.py --epochs 1
python benchmarks/migrate/stand_in.py cuda -m pytest tests/test_model.py

Tensors that a script places on the device are marked: they say the device's name when asked, refuse `.numpy()`, and on
mps double precision. The last line on standard error says how often something was placed there.
"""

from __future__ import annotations

import functools
import importlib.machinery
import random
import runpy
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from lockstep_migrate.names import names_of

PLACED = "placed on the device:"
_DOUBLE = (torch.float64, torch.complex128)
_MARK = "_stand_in"


class Context:
    """A stream, an event, a device to choose: takes anything and does nothing."""

    cuda_stream = npu_stream = sycl_queue = device_index = 0

    def __init__(self, *_: object, **__: object) -> None: ...
    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None: ...
    def elapsed_time(self, _: object) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    record = wait = synchronize = wait_stream = wait_event = record_event = __init__


def _gives(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


_PROPERTIES = types.SimpleNamespace(
    name="a stand-in", total_memory=1 << 34, major=8, minor=0, multi_processor_count=1
)
_GIVEN: Mapping[str, Any] = {
    **dict.fromkeys(("Event", "Stream", "ExternalStream", "StreamContext", "stream", "device", "device_of"), Context),
    **dict.fromkeys(("current_stream", "default_stream", "device_index"), Context),
    **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), _gives(True)),
    "is_current_stream_capturing": _gives(False),
    "device_count": _gives(1),
    "current_device": _gives(0),
    "get_device_name": _gives("a stand-in"),
    "get_device_capability": _gives((8, 0)),
    "get_device_properties": _gives(_PROPERTIES),
    "mem_get_info": _gives((1 << 33, 1 << 34)),
    "memory_stats": _gives({}),
    "memory_summary": _gives(""),
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "get_rng_state_all": lambda: [torch.get_rng_state()],
    "get_amp_supported_dtype": _gives([torch.float16, torch.bfloat16, torch.float32]),
    "initial_seed": lambda: torch.initial_seed(),
}  # fmt: skip
"""What functions of the module give, by name; those that are not here give None, or 0 where they are about memory."""


class _Generator(torch.Generator):
    """Random numbers of the device, drawn on the CPU."""

    def __new__(cls, device: object = "cpu") -> _Generator:
        return super().__new__(cls, device="cpu")


def _function(leaf: str, device: str) -> Any:
    amp = getattr(torch.amp, leaf, None)
    if isinstance(amp, type):
        return functools.partial(amp, device)
    if amp is not None:
        return functools.partial(amp, device_type=device)
    none = 0 if "memory" in leaf and "reset" not in leaf else None
    return _GIVEN.get(leaf) or (Context if leaf[0].isupper() else _gives(none))


def _put_names(device: str, root: str) -> None:
    """Give `torch.DEVICE` or a package the listed names, and no other; modules and classes of torch's own stay."""
    listed = sorted(
        name for name in names_of("torch" if device == "cuda" else device) if name.startswith(root)
    )
    folders = {name.rpartition(".")[0] for name in listed}
    for name in listed:
        above, _, leaf = name.rpartition(".")
        parent = sys.modules.get(above)
        real = getattr(parent, leaf, None)
        if (above and parent is None) or (
            isinstance(real, types.ModuleType | type) and leaf not in _GIVEN
        ):
            continue  # a method of a class, or torch's own
        if name in folders and leaf.islower():
            sys.modules[name] = one = types.ModuleType(name)
            one.__spec__ = importlib.machinery.ModuleSpec(name, None)
        else:
            one = _function(leaf, device)
        if parent is not None:
            setattr(parent, leaf, one)


class OnCpu(TorchFunctionMode):
    """Marks tensors that are placed on the device, and computes with them on the CPU."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.type = device
        self.placed = 0

    def __torch_function__(
        self, function: Any, kinds: Any, given: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        named = named or {}
        descriptor = getattr(function, "__self__", None)
        if isinstance(descriptor, types.GetSetDescriptorType):
            return self._attribute(descriptor.__name__, function, given)
        name = getattr(function, "__name__", "")
        if function is torch.device or name == "_parse_to":
            return function(*given, **named)
        if name == self.type:  # tensor.cuda(device)
            return self._computed(torch.Tensor.to, (given[0], torch.device(self.type, 0)), {})
        if name == "cpu":
            return self._computed(torch.Tensor.to, (given[0], torch.device("cpu")), {})
        if name == "get_device":
            return 0 if _marked(given[0]) else -1
        if name in ("numpy", "__array__") and _marked(given[0]):
            raise TypeError(f"can't convert {self.type}:0 device type tensor to numpy")
        if name == "to" and len(given) > 1 and type(given[1]) is int:
            given = (given[0], torch.device(self.type, given[1]), *given[2:])
        if type(named.get("device")) is int:
            named = {**named, "device": torch.device(self.type, named["device"])}
        return self._computed(function, given, named)

    def _attribute(self, name: str, function: Any, given: tuple[Any, ...]) -> Any:
        if name == "device":
            return torch.device(self.type, 0) if _marked(given[0]) else function(*given)
        if name == f"is_{self.type}":
            return _marked(given[0])
        if name == "data" and len(given) == 2:
            given[0].__dict__[_MARK] = _marked(given[1])
        return self._computed(function, given, {})

    def _computed(self, function: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        leaves, shape = tree_flatten((given, named))
        on_device = any(self._names(leaf, self.type) for leaf in leaves)
        on_cpu = any(self._names(leaf, "cpu") for leaf in leaves)
        if on_device:
            cpu = torch.device("cpu")
            leaves = [cpu if self._names(leaf, self.type) else leaf for leaf in leaves]
            given, named = tree_unflatten(leaves, shape)
        result = function(*given, **named)
        if not isinstance(result, torch.Tensor | tuple | list):
            return result
        self.placed += on_device
        marked = on_device or (not on_cpu and any(map(_marked, leaves)))
        moved = (on_device or on_cpu) and _marked(result) != marked
        if moved and any(result is leaf for leaf in leaves):
            result = result.clone()  # a tensor on another device is another tensor
            result.__dict__.pop(_MARK, None)
        made = result[0] if getattr(function, "__name__", "") == "_pack_padded_sequence" else result
        for leaf in (
            tree_leaves(made) if marked else ()
        ):  # (the lengths of a packed sequence are the CPU's)
            if isinstance(leaf, torch.Tensor) and not any(leaf is one for one in leaves):
                self._mark(leaf)
        return result

    def _mark(self, tensor: torch.Tensor) -> None:
        if self.type == "mps" and tensor.dtype in _DOUBLE:
            raise TypeError("the MPS framework doesn't support float64")
        tensor.__dict__[_MARK] = True

    @staticmethod
    def _names(one: object, device: str) -> bool:
        kind = one.type if isinstance(one, torch.device) else one
        return isinstance(kind, str) and kind.split(":")[0] == device


def _marked(one: object) -> bool:
    return isinstance(one, torch.Tensor) and bool(one.__dict__.get(_MARK))


def install(device: str) -> OnCpu:
    """Make this process one of a machine that has the device."""
    _put_names(device, f"torch.{device}")
    if device == "npu":
        _put_names(device, "torch_npu")
        torch.utils.rename_privateuse1_backend(device)
        torch.utils.generate_methods_for_privateuse1_backend()
        torch.npu._is_in_bad_fork = _gives(False)  # torch asks for it before it seeds the device
    if device == "cuda":
        for kind in ("Float", "Double", "Half", "Long", "Int", "Byte", "Bool"):
            setattr(torch.cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))
    if device == "mps":
        for name in ("is_available", "is_built", "is_macos_or_newer"):
            setattr(torch.backends.mps, name, _gives(True))
    for leaf in (
        "is_available",
        "device_count",
        "synchronize",
        "set_stream",
        "current_stream",
        "device_index",
    ):
        setattr(torch.accelerator, leaf, _function(leaf, device))
    torch.accelerator.current_accelerator = _gives(torch.device(device))
    torch.accelerator.current_device_index = _gives(0)
    torch.accelerator.set_device_index = _gives(None)
    torch.Generator = _Generator  # type: ignore[misc]
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]
    load = torch.load
    torch.load = lambda *given, **named: load(*given, **{**named, "map_location": "cpu"})
    return OnCpu(device)


def main() -> None:
    """Run the rest of the command line as Python would, with fixed seeds."""
    device, *words = sys.argv[1:]
    mode = install(device)
    random.seed(0)
    numpy.random.seed(0)
    torch.random.default_generator.manual_seed(0)
    try:
        with mode:
            if words[0] == "-m":
                sys.argv = words[1:]
                sys.path.insert(0, str(Path.cwd()))
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv = words
                sys.path.insert(0, str(Path(words[0]).resolve().parent))
                runpy.run_path(words[0], run_name="__main__")
    finally:
        print(f"{PLACED} {mode.placed}", file=sys.stderr)


if __name__ == "__main__":
    main()
