"""Local variables of running functions, and of functions at the moment they return; nothing lives longer by it.

`frame.f_locals` keeps what it has seen alive until the function returns (before Python 3.13), and a frame that somebody
refers to keeps its variables when the function has returned. So variables are read where Python keeps them, and a
return is heard of: by `sys.monitoring` from Python 3.12 on (PEP 669); in CPython 3.11 by the trace function of the
frame, which is let go of when the function has returned and its variables are still there (`_PyFrame_Clear` in
`Python/frame.c`). Elsewhere no return is heard of, and the caller is told.
"""

from __future__ import annotations

import ctypes
import inspect
import struct
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

Variables = dict[str, object]
Returned = Callable[[Variables], None]

_IS_CPYTHON = sys.implementation.name == "cpython" and struct.calcsize("P") == 8
_IS_3_11 = _IS_CPYTHON and sys.version_info[:2] == (3, 11) and not hasattr(sys, "gettotalrefcount")
_HAS_MONITORING = _IS_CPYTHON and sys.version_info >= (3, 12)
_OTHERS_THAN_FUNCTIONS = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)  # fmt: skip


class FunctionEnds:
    """Hears of returns of functions that are running.

    failures: Errors of those who were told.
    """

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self._waiting: dict[int, tuple[types.CodeType, Returned]] = {}
        self._monitor: int | None = None
        self._monitored: list[types.CodeType] = []

    def watch(self, frame: types.FrameType, returned: Returned) -> bool:
        """Tell the variables of a running function when it returns; False where that cannot be heard of."""
        code = frame.f_code
        if code.co_flags & _OTHERS_THAN_FUNCTIONS or not code.co_flags & inspect.CO_OPTIMIZED:
            return False
        if _HAS_MONITORING:
            heard = self._monitors(code)
        else:
            heard = _IS_3_11 and sys.gettrace() is None and frame.f_trace is None
            if heard:
                frame.f_trace = _AtReturn(frame, self)
        if heard:
            self._waiting[id(frame)] = code, returned
        return heard

    def waits_for(self, frame: types.FrameType) -> bool:
        """Whether the return of a function is still to come."""
        return self._waiting.get(id(frame), (None, None))[0] is frame.f_code

    @property
    def unheard(self) -> list[str]:
        """Functions that are still waited for, by name: they run, or an exception has ended them."""
        return [name_of(code) for code, _ in self._waiting.values()]

    def stop(self) -> None:
        """Wait for nothing any more."""
        monitoring, tool = getattr(sys, "monitoring", None), self._monitor
        if tool is not None and monitoring is not None:
            for code in self._monitored:
                monitoring.set_local_events(tool, code, 0)
            self._monitored.clear()
            monitoring.register_callback(tool, monitoring.events.PY_RETURN, None)
            monitoring.free_tool_id(tool)
            self._monitor = None
        self._waiting.clear()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if type(frame.f_trace) is _AtReturn:
                frame.f_trace = None
            frame = frame.f_back

    def came(self, number: int, code: types.CodeType, variables: Callable[[], Variables]) -> None:
        """A function has returned, if it is waited for."""
        waited, returned = self._waiting.get(number, (None, None))
        if returned is None or waited is not code:
            return
        del self._waiting[number]
        try:
            returned(variables())
        except Exception as error:  # it must not reach the training
            self.failures.append(error)

    def _monitors(self, code: types.CodeType) -> bool:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        if self._monitor is None:
            free = [tool for tool in (3, 4) if monitoring.get_tool(tool) is None]
            if not free:
                return False
            self._monitor = free[0]
            monitoring.use_tool_id(self._monitor, "lockstep")
            monitoring.register_callback(self._monitor, monitoring.events.PY_RETURN, self._returns)
        monitoring.set_local_events(self._monitor, code, monitoring.events.PY_RETURN)
        self._monitored.append(code)
        return True

    def _returns(self, code: types.CodeType, _offset: int, _value: object) -> None:
        frame = sys._getframe(1)
        self.came(id(frame), code, lambda: variables_of(frame))


class _AtReturn:
    """Stands as the trace function of a frame, and goes when the function has returned."""

    __slots__ = ("_address", "_code", "_ends")

    def __init__(self, frame: types.FrameType, ends: FunctionEnds) -> None:
        self._address, self._code, self._ends = id(frame), frame.f_code, ends

    def __call__(self, *_: object) -> _AtReturn:
        return self  # somebody has begun to trace

    def __del__(self) -> None:
        # Not where another trace function has replaced it: the frame is referred to then.
        is_referred_to = ctypes.c_ssize_t.from_address(self._address).value
        if not is_referred_to and _variables_at(self._address, self._code):
            variables = dict(_read_3_11(self._address, self._code))
            self._ends.came(self._address, self._code, lambda: variables)


def variables_of(frame: types.FrameType) -> Variables:
    """The variables of a running function by their names, cells as what is in them; {} where they cannot be read."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    if sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    if _HAS_MONITORING:
        return dict(_read_3_12(frame))
    return dict(_read_3_11(id(frame), code)) if _IS_3_11 else {}


def name_of(code: types.CodeType) -> str:
    """Return a function's name: its class and name, without the functions that it was made in."""
    name: str = getattr(code, "co_qualname", code.co_name)
    return name.rpartition("<locals>.")[2]


def _names_of(code: types.CodeType) -> tuple[str, ...]:
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return (*code.co_varnames, *cells, *code.co_freevars)


# Offsets in bytes: `struct _frame` and `_PyInterpreterFrame`, `Include/internal/pycore_frame.h` of CPython 3.11.
_F_FRAME, _F_CODE, _FIRST_LOCAL = 24, 32, 72


def _variables_at(address: int, code: types.CodeType) -> int:
    """Address of the variables of a frame object; 0 where the frame has let go of them."""
    inner = ctypes.c_void_p.from_address(address + _F_FRAME).value
    if not inner or ctypes.c_void_p.from_address(inner + _F_CODE).value != id(code):
        return 0
    return inner + _FIRST_LOCAL


def _read_3_11(address: int, code: types.CodeType) -> Iterator[tuple[str, object]]:
    """Names and values in a frame object."""
    first = _variables_at(address, code)
    for place, name in enumerate(_names_of(code) if first else ()):
        value = ctypes.c_void_p.from_address(first + 8 * place).value
        if value:
            yield from _named(name, ctypes.cast(value, ctypes.py_object).value)


def _read_3_12(frame: types.FrameType) -> Iterator[tuple[str, object]]:
    read = ctypes.pythonapi.PyFrame_GetVar
    read.restype, read.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.py_object]
    for name in _names_of(frame.f_code):
        try:
            value = read(frame, name)
        except NameError:
            continue
        yield from _named(name, value)


def _named(name: str, value: object) -> Iterator[tuple[str, object]]:
    if type(value) is not types.CellType:
        yield name, value
        return
    try:
        yield name, value.cell_contents
    except ValueError:  # empty
        return
