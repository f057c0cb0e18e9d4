"""Calls between ranks: names of groups and operations, and results that come later."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Generic, TypeVar

import torch

C = TypeVar("C")

_CLASSIC, _FUNCTIONAL = "torch.distributed.", "_c10d_functional"
_WRAPS = ("wrap_tensor", "wait_tensor")
_FILLS_FIRST = re.compile(
    r"torch\.distributed\..*\.(all_gather|reduce_scatter|all_to_all|scatter$|i?recv$).*"
)
"""Collectives whose first argument is what they give."""
_CHANGES_FIRST = re.compile(r"torch\.distributed\..*\.(all_reduce|reduce|broadcast)")
"""Those that change their first argument in place."""


@cache
def is_collective(name: str) -> bool:
    """Return whether a function of torch's, by its full name, may fill its arguments from other ranks."""
    return name.startswith(_CLASSIC)


def fills(name: str, argument: str) -> bool:
    """Return whether a collective gives an argument, which is named as in a recording, and takes nothing from it."""
    return argument.startswith("args.0") and _FILLS_FIRST.fullmatch(name) is not None


def writes(name: str, argument: str) -> bool:
    """Return whether a collective gives an argument, be it that every element comes out as it went in."""
    return argument.startswith("args.0") and (
        _FILLS_FIRST.fullmatch(name) is not None or _CHANGES_FIRST.fullmatch(name) is not None
    )


@cache
def is_functional(name: str) -> bool:
    """Return whether an operator, by its name in torch's library, returns what comes from other ranks."""
    return name.startswith(_FUNCTIONAL) and not any(word in name for word in _WRAPS)


def with_groups(
    name: str, arguments: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the plain arguments of a collective with its group as ranks, and its operation by name.

    `group=None` is the group of all ranks, so that it is told as that one.
    """
    told = dict(arguments)
    if not is_collective(name):
        return told
    for key, value in kwargs.items():
        if key == "group":
            told["kwargs.group"] = _ranks_of(value)
        elif key == "op":
            told["kwargs.op"] = _operation(value)
    return told


def _ranks_of(group: Any) -> str:
    with suppress(Exception):  # this rank is not in the group, or it is taken apart already
        ranks = torch.distributed.get_process_group_ranks(group)
        return f"ranks {', '.join(map(str, ranks))}"
    return "a group that this rank is not in"


def _operation(value: Any) -> str:
    name = getattr(getattr(value, "op", value), "name", None)
    return str(name).lower() if name else str(value)


def groups() -> dict[str, str]:
    """Return every process group of this process by its name: its backend, its ranks, and what it was made for.

    What it was made for is the description that torch keeps of it, where it keeps one.
    """
    found = {}
    world = getattr(torch.distributed.distributed_c10d, "_world", None)
    for group in list(getattr(world, "pg_group_ranks", ())):
        with suppress(Exception):  # one that is taken apart meanwhile
            described = getattr(group, "group_desc", "") or "undefined"
            made_for = "" if described in ("undefined", "default_pg") else f", {described}"
            backend = torch.distributed.get_backend(group)
            found[f"group {group.group_name}"] = f"{_ranks_of(group)} ({backend}{made_for})"
    return found


def is_work(result: Any) -> bool:
    """Return whether a collective returned before its results came."""
    return torch.distributed.is_available() and isinstance(result, torch.distributed.Work)


class Unwaited(Generic[C]):
    """Collectives that were begun and not waited for yet: the call of each, by what the script waits with."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[weakref.ref[Any], C]] = {}

    def begun(self, work: Any, call: C) -> None:
        """Note a call that ends once `work` is waited for."""
        key = id(work)
        self._begun[key] = (weakref.ref(work, lambda _: self._begun.pop(key, None)), call)

    def of(self, work: Any) -> C | None:
        """Return the call that ends now; None where it has ended, or is not one of the script's."""
        known = self._begun.pop(id(work), None)
        return known[1] if known is not None and known[0]() is work else None


def wait_for(result: Any) -> None:
    """Wait for what a functional collective returns, so that its elements can be read; waiting twice does no harm."""
    wait: Callable[[torch.Tensor], torch.Tensor] = torch.ops._c10d_functional.wait_tensor
    for tensor in result if isinstance(result, (tuple, list)) else [result]:
        with torch._C.DisableTorchFunction():
            wait(tensor)


__all__ = [
    "Unwaited",
    "fills",
    "groups",
    "is_collective",
    "is_functional",
    "is_work",
    "wait_for",
    "with_groups",
    "writes",
]
