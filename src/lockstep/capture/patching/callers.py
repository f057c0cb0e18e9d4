"""Warnings of a recorded script point where they point without Lockstep, and come as often.

A warning belongs to a frame of the stack: it names its line, and Python remembers in its globals what was said. Torch
warns in the name of the innermost frame of Python, and code in Python in the name of one so many frames further out; so
a function of torch that is called by a tap is called from a frame that stands in for its caller, and
`warnings.warn` counts frames without those of Lockstep.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, Protocol, cast

import torch.overrides
from torch.jit import _builtins

from lockstep.core.members import own_folders

STAND_IN = "<lockstep>"
"""Name of the code of every frame that stands in for a caller."""

_MOST = 4096
"""Stand-ins that are kept; code that is made anew and anew would fill the memory."""

_OURS = own_folders()
ASKING = torch.overrides.handle_torch_function.__code__
"""Code through which a function of torch's in Python asks a mode."""

# Of one line, so that its only line is the caller's.
_CODE = (lambda function, args, kwargs: function(*args, **kwargs)).__code__


class Caller(Protocol):
    """Calls a function in the name of somebody."""

    def __call__(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], /
    ) -> Any: ...


class CallSite(NamedTuple):
    """A place in code that calls functions of torch.

    call: Calls in its name.
    is_of_torch: Whether its module is called as torch's are, so that the call may be work of torch's own.
    code: Is kept with it, so that its identity is no other's.
    """

    call: Caller
    is_of_torch: bool
    code: CodeType


class Callers:
    """Makes frames that stand in for callers, one for each place in their code."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], CallSite] = {}

    def of(self, frame: FrameType) -> CallSite:
        """Return the function that calls on behalf of the code in a frame, and what is known of the place.

        frame: That called a tap; where it asked in the name of a function of torch, what called that function.
        """
        if frame.f_code is ASKING and frame.f_back is not None:
            frame = frame.f_back.f_back or frame.f_back
        code, names = frame.f_code, frame.f_globals
        place = (id(code), frame.f_lasti, id(names))
        found = self._made.get(place)
        if found is None:
            if len(self._made) >= _MOST:
                self._made.clear()
            call = _standing_in(code, frame.f_lineno or 0, names)
            is_of_torch = str(names.get("__name__")).startswith("torch")
            found = self._made[place] = CallSite(call, is_of_torch, code)
        return found

    def forget(self) -> None:
        """Let go of all code."""
        self._made.clear()


def _standing_in(code: CodeType, line: int, names: dict[str, Any]) -> Caller:
    made = _CODE.replace(co_filename=code.co_filename, co_firstlineno=line, co_name=STAND_IN)
    return cast(Caller, FunctionType(made, names))


def passed_over(code: CodeType) -> CodeType:
    """Code whose frames Python passes over where it counts them for a warning, as it does with those of imports."""
    return code.replace(co_filename=f"{code.co_filename} importlib._bootstrap")


def is_unseen(code: CodeType) -> bool:
    """Whether a frame of this code is there for Lockstep alone."""
    return code.co_name == STAND_IN or code.co_filename.startswith(_OURS)


def without_us(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those around it that are there without Lockstep.

    Where a function of torch in Python asked a tap, it runs once more within that: its first frame is left out.
    """
    within_ours = False
    while frame is not None:
        code = frame.f_code
        if is_unseen(code):
            within_ours = True
        elif within_ours and code is ASKING and frame.f_back is not None:
            frame, within_ours = frame.f_back, False
        else:
            within_ours = False
            yield frame
        frame = frame.f_back


@cache  # what a compiler knows by its identity must not make room for another object
def wrap_warn(original: Callable[..., None]) -> Callable[..., None]:
    """`warnings.warn` that leaves Lockstep's frames out where it counts them."""

    @functools.wraps(original)
    def warn(
        message: Any,
        category: Any = None,
        stacklevel: int = 1,
        source: Any = None,
        **options: Any,
    ) -> None:
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        skipped = options.pop("skip_file_prefixes", ())
        if options or not (isinstance(kind, type) and issubclass(kind, Warning)):
            original(message, category, stacklevel, source, **options)  # which says what is wrong
            return
        names, file, line = _place(
            sys._getframe(1), max(stacklevel, 2) if skipped else stacklevel, skipped
        )
        registry = names.setdefault("__warningregistry__", {})
        module = names.get("__name__")
        if not isinstance(module, str):
            module = "<string>"
        warnings.warn_explicit(message, kind, file, line, module, registry, None, source)

    if operator := _builtins._find_builtin(original):
        _builtins._register_builtin(warn, operator)  # torch.jit.script compiles what warns
    return warn


def _place(
    frame: FrameType, level: int, skipped: tuple[str, ...]
) -> tuple[dict[str, Any], str, int]:
    """Globals, file and line that a warning belongs to, as Python finds them."""
    frames = without_us(frame)
    found = next(frames, None)
    counts_all = level <= 0 or found is None or _is_of_imports(found)
    for _ in range(level - 1):
        found = next(frames, None)
        while found is not None and not counts_all and _is_passed(found, skipped):
            found = next(frames, None)
    if found is None:
        return vars(sys), "sys", 1
    return found.f_globals, found.f_code.co_filename, found.f_lineno


def _is_passed(frame: FrameType, skipped: tuple[str, ...]) -> bool:
    return _is_of_imports(frame) or bool(
        skipped and frame.f_code.co_filename.startswith(tuple(skipped))
    )


def _is_of_imports(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return "importlib" in file and "_bootstrap" in file
