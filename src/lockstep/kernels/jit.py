"""Compiling the loops that have to run at memory speed, with Numba (https://numba.pydata.org).

The machine code is kept beside the source, or in the user's cache where that is read-only, so that only the first
process after an installation compiles. Where Numba cannot be used (a NumPy newer than it knows, `NUMBA_DISABLE_JIT`)
`available` is false, and callers take their general path: slower, the same numbers up to rounding.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def available() -> bool:
    """Whether loops can be compiled here; loads Numba, which takes a quarter of a second."""
    try:
        numba = import_module("numba")
    except ImportError:
        return False
    return not numba.config.DISABLE_JIT


def load_without_blas() -> None:
    """Load Numba, but not SciPy's BLAS, which it looks for then and no loop here calls: that takes half a second.

    For processes of Lockstep's own alone: functions that other code compiles there cannot multiply matrices.
    """
    if not available() or _ARRAYS in sys.modules:
        return
    linalg = import_module("numba.np.linalg")
    # Numba asks this function as it loads `_ARRAYS`; a version that asks another one looks for SciPy as ever.
    looked_for = getattr(linalg, "ensure_blas", None)
    if looked_for is None:
        return
    linalg.ensure_blas = _no_blas  # type: ignore[attr-defined]
    try:
        import_module(_ARRAYS)
    finally:
        linalg.ensure_blas = looked_for  # type: ignore[attr-defined]


_ARRAYS = "numba.np.arraymath"


def _no_blas() -> None:
    raise ImportError("Lockstep's loops multiply no matrices")


WAIT = (
    "compiles its loops, which takes half a minute once after an installation; `python -m"
    " lockstep.kernels.every_loop` does so before"
)
"""What is said of the wait."""

_say: Callable[[str], None] | None = None


def say_before_compiling(say: Callable[[str], None] | None) -> None:
    """Have `say` called with `WAIT`, once, before a loop is compiled of which nothing is kept; None for nobody."""
    global _say
    _say = say


def _announce(dispatcher: Any) -> None:
    """Say that a loop is about to be compiled, if it is the first."""
    global _say
    if _say is None or _is_kept(dispatcher):
        return
    say, _say = _say, None
    if say is not None:  # another thread may have taken it meanwhile
        say(WAIT)


def _is_kept(dispatcher: Any) -> bool:
    """Whether there is machine code of a function that is as old as its source at least."""
    function, folder = dispatcher.py_func, dispatcher.stats.cache_path
    if folder is None:
        return False
    made_s = Path(function.__code__.co_filename).stat().st_mtime
    name = function.__qualname__.rpartition(".")[2]
    return any(found.stat().st_mtime >= made_s for found in Path(folder).glob(f"*.{name}-*.nbi"))


_EXACT: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",  # a division by zero gives infinity, as in NumPy
}
# Sums may be reordered to use vector registers; NaN and infinities keep their meaning.
_OPTIONS = _EXACT | {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}


@dataclass(frozen=True, slots=True)
class _Part:
    """A function that waits to be compiled into others."""

    function: Callable[..., Any]
    options: dict[str, Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


@dataclass(frozen=True, slots=True)
class _FromNumba:
    """What compiled code calls and only Numba can make."""

    make: Callable[[Any], Any]


def from_numba(make: Callable[[Any], Any]) -> Any:
    """Return an object that compiled functions call and only Numba can make; `make` runs once Numba is loaded."""
    return _FromNumba(make)


def _counter(numba: Any) -> Any:
    """Add one to the first of some 64-bit integers, for all threads to see; the number that it had before."""

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def taken(_: Any, numbers: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            one = context.get_constant(numba.types.int64, 1)
            return builder.atomic_rmw("add", pointer, one, "seq_cst")

        return numba.types.int64(numbers), generate

    return taken


array_at = from_numba(lambda numba: numba.carray)
"""In compiled code: `array_at(address, shape, dtype)`, the array that lies there."""

taken = from_numba(_counter)
"""In compiled code: `taken(numbers)`, what one of several threads takes next; counts up the first of some int64."""


def part(function: Function) -> Function:
    """A loop that compiled functions are made of, of the same file and of those that import it."""
    return cast(Function, _Part(function, _OPTIONS))


def inlined(function: Function) -> Function:
    """Compile as `part`, inlined into its callers: sums are taken in the same order in each.

    Where the compiler chooses, that depends on what was compiled before.
    """
    return cast(Function, _Part(function, _OPTIONS | {"forceinline": True}))


def exactly_part(function: Function) -> Function:
    """As `part`, for `exactly`."""
    return cast(Function, _Part(function, _EXACT))


def compiled(signature: str) -> Callable[[Function], Function]:
    """Compile a function for one signature in Numba's notation, the first time it is called.

    It takes and returns contiguous arrays and numbers, and lets other threads run.

    Examples
    --------
    >>> @compiled("float64(float64[::1])")
    ... def total(values):
    ...     result = 0.0
    ...     for position in range(values.size):
    ...         result += values[position]
    ...     return result
    """
    return _decorator(signature, _OPTIONS)


class Task:
    """A compiled function that threads of any kind may run at once, by its address.

    It takes the address of a list of addresses, whose arrays it makes with `array_at`, and gives nothing back; with
    `taken` those who run it share the work out. Made by `task`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__module__ = function.__module__
        self._function = function
        self._compiled: Any = None

    @property
    def address(self) -> int:
        """Where its machine code is, a C function `void (*)(void **)`; it is compiled the first time."""
        if self._compiled is None:
            self._compiled = _compile_task(self._function)
        return int(self._compiled.address)

    def __call__(self, addresses: Any) -> None:
        """Run it in this thread alone; others run meanwhile."""
        _ = self.address
        self._compiled.ctypes(addresses)


def task(function: Callable[..., Any]) -> Task:
    """Compile a function as a `Task`, the first time it is run."""
    return Task(function)


def exactly(signature: str) -> Callable[[Function], Function]:
    """As `compiled`, with every operation rounded as it is written."""
    return _decorator(signature, _EXACT)


def _decorator(signature: str, options: dict[str, Any]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        @cache
        def made() -> Callable[..., Any]:
            return _compile(function, signature, options) if available() else function

        def call(*arguments: Any) -> Any:
            return made()(*arguments)

        call.__doc__, call.__name__ = function.__doc__, function.__name__
        call.__module__ = function.__module__
        call.__dict__["made"] = made
        return cast(Function, call)

    return decorate


def ready(function: Function) -> Function:
    """Return a compiled function without the lookup at each call, for calls that take less time than the lookup."""
    return cast(Function, function.__dict__["made"]())


def loops(module: ModuleType) -> list[str]:
    """The names of the functions of a module that are compiled the first time they are called."""
    own = (
        name
        for name, value in vars(module).items()
        if isinstance(value, Task) or "made" in getattr(value, "__dict__", ())
    )
    return [name for name in own if getattr(module, name).__module__ == module.__name__]


def compile_now(module: str, name: str) -> None:
    """Compile a function of a module, or load its cached code."""
    loop = getattr(import_module(module), name)
    _ = loop.address if isinstance(loop, Task) else loop.__dict__["made"]()


def _compile(
    function: Callable[..., Any], signature: str, options: dict[str, Any]
) -> Callable[..., Any]:
    import numba  # late: what measures no tensor should start without it

    _complete(function)
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no place to keep it: neither beside the source nor in a home
        dispatcher = numba.njit(**options)(function)
    _announce(dispatcher)
    with suppress(OSError):  # a full disk: compiled all the same, but not kept
        dispatcher.compile(signature)
    dispatcher.disable_compile()
    return cast(Callable[..., Any], dispatcher)


def _compile_task(function: Callable[..., Any]) -> Any:
    import numba

    _complete(function)
    types: Any = numba.types
    signature = types.void(types.CPointer(types.voidptr))
    options = {name: value for name, value in _OPTIONS.items() if name != "nogil"}
    with suppress(RuntimeError):  # no place to keep it: nobody can tell whether it was kept
        _announce(numba.njit(cache=True)(function))
    try:
        return numba.cfunc(signature, cache=True, **options)(function)
    except (RuntimeError, OSError):  # no place to keep it, or a full one
        return numba.cfunc(signature, **options)(function)


def _complete(function: Callable[..., Any]) -> None:
    """Put what Numba made where it looks for what a function calls: among the names of its file.

    What is kept of it has a stamp of the other files whose parts it calls in its name: Numba looks at its own alone.
    """
    others = _complete_file(function.__globals__)
    if others:
        stamp = zlib.crc32(b"".join(Path(file).read_bytes() for file in sorted(others)))
        function.__qualname__ = f"{function.__name__}_{stamp:08x}"


def _complete_file(names: dict[str, Any]) -> set[str]:
    """Have Numba make what a file's loops call; returns the other files that it comes from, near and far.

    They are the same whatever was compiled before, so that there is one name for what is kept.
    """
    import numba

    others = set()
    for name, value in list(names.items()):
        if isinstance(value, _Part):
            names[name] = numba.njit(**value.options)(value.function)
        elif isinstance(value, _FromNumba):
            names[name] = value.make(numba)
        called = getattr(names[name], "py_func", None)
        if called is not None and called.__globals__ is not names:
            others |= {called.__code__.co_filename, *_complete_file(called.__globals__)}
    return others
