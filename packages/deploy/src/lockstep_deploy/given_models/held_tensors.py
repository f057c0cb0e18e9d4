"""Parameters, buffers and constants of two models: which of them are the same, and for what they are taken."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import numpy as np

from lockstep.terminal import listed
from lockstep_deploy.calls import Array, is_call
from lockstep_deploy.given_models.onnx_program import OnnxRun
from lockstep_deploy.node_values import Held
from lockstep_deploy.program_run import ProgramRun


def name_of(node: Any) -> str:
    """The name of a node's one value: as its ONNX graph has it, else its own."""
    names = node.meta.get("onnx_values")
    found: str = names[0] if names else node.name
    return found


def users(program: Any, run: ProgramRun | OnnxRun) -> dict[str, set[str]]:
    """The values that are computed right from each tensor that a model holds, by its full name."""
    found: dict[str, set[str]] = {}
    for node in filter(is_call, program.graph.nodes):
        for one in node.all_input_nodes:
            full = run.full_name(one) if one.op == "placeholder" else None
            if full is not None:
                found.setdefault(full, set()).add(name_of(node))
    return found


def taken_by_pairs(
    ours: Mapping[str, set[str]], theirs: Mapping[str, set[str]], pairs: Mapping[str, str]
) -> Iterator[str]:
    """Names of what both models hold, and take for values that are pairs."""
    for name, values in ours.items():
        if any(pairs.get(one) in theirs.get(name, ()) for one in values):
            yield name


def held_pairs(ours: Held, theirs: Held, alike: Container[str] | None) -> Held:
    """What the second model holds for each name of the first: the same numbers, else the same name and shape.

    `alike` are the names that count, None for all. While models are not known to differ, a weight with other numbers
    may be a part of an equal whole, as one that a normalisation was folded into; where it is taken for two values that
    are a pair, it is not, even if these inputs do not show it.
    """
    digests: dict[bytes, Callable[[], Array]] = {}
    for make in theirs.values():
        digests.setdefault(_content(make()), make)
    found: dict[str, Callable[[], Array]] = {}
    for name, make in ours.items():
        array = make()
        same = digests.get(_content(array))
        if (
            same is None
            and (alike is None or name in alike)
            and name in theirs
            and theirs[name]().shape == array.shape
        ):
            same = theirs[name]
        if same is not None:
            found[name] = same
    return found


def held_otherwise(ours: Held, theirs: Held) -> Iterator[str]:
    """Names under which both hold numbers, and not the same ones."""
    names = [
        name
        for name, make in ours.items()
        if name in theirs and _content(make()) != _content(theirs[name]())
    ]
    if names:
        yield f"both hold {listed(names)}, with other numbers; what is computed with them was compared"


def _content(array: Array) -> bytes:
    shape = f"{array.dtype}{array.shape}".encode()
    return shape + np.ascontiguousarray(array).tobytes()
