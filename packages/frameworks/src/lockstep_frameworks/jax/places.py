"""Where an equation stands: its lines in the script, the modules around it, and whether it is of the backward."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax

from lockstep.plugin import own_folders
from lockstep.recorder import frame_of, innermost_frames
from lockstep.recordings import Frame

HIDDEN = (str(Path(jax.__file__).parent) + os.sep, *own_folders(), "<frozen ", "<string>")
"""How files begin whose lines are nobody's who trains."""
_OWN_SCOPES = frozenset(
    {"checkpoint", "rematted_computation", "remat", "closed_call", "pjit", "jit"}
)
"""Names that JAX itself puts into a name stack."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an equation stands.

    stack: Lines of the code, innermost first.
    scopes: Names of the modules around it, outermost first.
    is_differentiated, is_transposed: Whether it computes inside of a function that is differentiated, and whether it is
        of the backward.
    """

    stack: tuple[Frame, ...] = ()
    scopes: tuple[str, ...] = ()
    is_differentiated: bool = False
    is_transposed: bool = False


def place_of(equation: Any, outer: Place) -> Place:
    """Return where an equation stands that is called at `outer`."""
    source = equation.source_info
    scopes, transforms = _names_in(source.name_stack)
    here = replace(
        outer,
        scopes=(*outer.scopes, *scopes),
        is_differentiated=outer.is_differentiated or "jvp" in transforms,
        is_transposed=outer.is_transposed or "transpose" in transforms,
    )
    stack = () if source.traceback is None else _frames(source.traceback)
    if all(frame.library for frame in stack):  # traced once for all calls of a jitted function
        stack = (*stack, *outer.stack)
    return replace(here, stack=stack)


def _names_in(stack: Any) -> tuple[tuple[str, ...], frozenset[str]]:
    scopes, transforms = [], set()
    for one in stack.stack:
        name = str(one.name)
        if type(one).__name__ == "Transform":
            transforms.add(name)
        elif name not in _OWN_SCOPES and not name.startswith(
            "eqx."
        ):  # by which equinox tells classes
            scopes += [part for part in name.split("/") if part]
    return tuple(scopes), frozenset(transforms)


@cache
def _frames(traceback: Any) -> tuple[Frame, ...]:
    """The frames of a traceback as JAX keeps it, without its own and Lockstep's."""
    return innermost_frames(
        [
            frame_of(one.file_name, one.line_num, one.function_name.rpartition(".")[2])
            for one in traceback.frames
            if not one.file_name.startswith(HIDDEN)
        ]
    )
