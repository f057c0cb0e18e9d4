"""Run a script as if this machine had a device: `python machine_stand_in.py KIND SCRIPT ARGUMENT...`.

KIND is a type of device, or `none`. Tensors lie on the CPU and carry a mark; they say of themselves that they are on
the device. A device of another type is refused. At the end, standard error tells with which `CUDA_VISIBLE_DEVICES` the
driver was asked first, and whether the process was copied after that.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lockstep_migrate.names import names_of

_DEVICES = ("cuda", "xpu", "mps", "npu", "hpu")
_MARK = "_lies_on_device"


class Driver:
    """What a process knows of the device's driver."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.first = ""
        self.copied = False
        os.register_at_fork(before=self._copy)

    def ask(self) -> None:
        """Note that the driver was asked, and which devices were visible then."""
        if not self.first:
            self.first = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")

    def _copy(self) -> None:
        self.copied |= bool(self.first)

    def tell(self) -> None:
        """Tell what a test looks for."""
        print(f"asked first: {self.first or 'never'}; copied after: {self.copied}", file=sys.stderr)


class Placing(TorchFunctionMode):
    """Lets tensors lie on the CPU and say that they are on the device."""

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self._driver = driver

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device or getattr(func, "__name__", "") == "_parse_to":
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        owner = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__" and owner in ("device", "is_cuda"):
            placed = hasattr(args[0], _MARK)
            if owner == "is_cuda":
                return placed and self._driver.kind == "cuda"
            return torch.device(self._driver.kind, 0) if placed else torch.device("cpu")
        if name == "cuda":
            self._place("cuda")
            args, func = args[:1], torch.Tensor.clone
            return self._marked(func(*args), placed=True)
        given = [*args, *kwargs.values()]
        where = [one for one in map(self._place, given) if one]
        placed = "device" in where or (not where and any(hasattr(one, _MARK) for one in given))
        new = [torch.device("cpu") if self._place(one) else one for one in args]
        named = {
            key: torch.device("cpu") if self._place(one) else one for key, one in kwargs.items()
        }
        if "generator" in named:
            named["generator"] = None
        result = func(*new, **named)
        if name == "__set__" and len(args) == 2:
            self._marked(args[0], placed=hasattr(args[1], _MARK))
        if name in ("cpu", "numpy", "item"):
            placed = False
        copy = result.clone() if any(result is one for one in args) and name == "to" else result
        return self._marked(copy, placed=placed)

    def _place(self, given: Any) -> str:
        """Whether a value is a place: the CPU, or the device; another device is refused."""
        text = str(given) if isinstance(given, str | torch.device) else ""
        kind = text.partition(":")[0]
        if kind == "cpu":
            return "cpu"
        if kind not in _DEVICES:
            return ""
        if kind != self._driver.kind:
            raise RuntimeError(f"no {kind} in a machine with {self._driver.kind}")
        self._driver.ask()
        return "device"

    def _marked(self, result: Any, *, placed: bool) -> Any:
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor):
                if placed:
                    setattr(one, _MARK, True)
                elif hasattr(one, _MARK):
                    delattr(one, _MARK)
        return result


class Order:
    """A stream or an event: all is done in order."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __enter__(self) -> Order:
        return self

    def __exit__(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...
    def wait_stream(self, _: Any) -> None: ...
    def wait_event(self, _: Any) -> None: ...
    def query(self) -> bool:
        return True

    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def elapsed_time(self, _: Any) -> float:
        return 1.0


class AppleEvent:
    """An event of Apple's GPU, whose methods take no stream."""

    def __init__(self, enable_timing: bool = False) -> None: ...
    def record(self) -> None: ...
    def wait(self) -> None: ...
    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...
    def elapsed_time(self, _: Any) -> float:
        return 1.0


def functions(driver: Driver) -> dict[str, Any]:
    """The functions of a device's module that scripts call, by name."""
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 2, "current_device": 0, "get_device_name": "device",
        "memory_allocated": 512, "max_memory_allocated": 1024, "memory_reserved": 2048,
        "max_memory_reserved": 4096, "is_initialized": True, "initial_seed": 1,
        "is_bf16_supported": True, "is_current_stream_capturing": False, "synchronize": None,
        "set_device": None, "empty_cache": None, "manual_seed": None, "manual_seed_all": None,
        "reset_peak_memory_stats": None, "ipc_collect": None, "init": None,
    }  # fmt: skip

    def answering(answer: Any) -> Any:
        def function(*_: Any, **__: Any) -> Any:
            driver.ask()
            return answer

        return function

    made = {name: answering(answer) for name, answer in answers.items()}
    event = AppleEvent if driver.kind == "mps" else Order
    return made | {
        "Stream": Order, "Event": event, "stream": Order, "StreamContext": Order, "device": Order,
        "current_stream": Order, "default_stream": Order,
    }  # fmt: skip


def install(kind: str) -> Driver:
    """Give this process's torch a device."""
    driver = Driver(kind)
    real = torch.get_device_module
    module = torch.cuda if kind == "cuda" else types.ModuleType(f"torch.{kind}")
    there = names_of(kind if kind in ("xpu", "mps", "npu", "hpu") else "torch")
    for name, function in functions(driver).items() if kind != "none" else ():
        if kind == "cuda" or f"torch.{kind}.{name}" in there:
            setattr(module, name, function)
    if kind not in ("cuda", "none"):
        setattr(torch, kind, module)
        torch.get_device_module = lambda one=None: (  # type: ignore[assignment]
            module if str(one).partition(":")[0] == kind else real(one)
        )
    if kind != "none":
        accelerator = torch.accelerator
        accelerator.current_accelerator = lambda *_, **__: torch.device(kind)  # type: ignore[assignment]
        answers = {"is_available": True, "device_count": 2, "synchronize": None}
        for name in (*answers, "set_device_index", "current_device_index"):
            setattr(accelerator, name, functions(driver).get(name, lambda *_: driver.ask()))
    return driver


def main() -> None:
    """Run the script."""
    kind, script, *arguments = sys.argv[1:]
    driver = install(kind)
    atexit.register(driver.tell)
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120
    with Placing(driver):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
