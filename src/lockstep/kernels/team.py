"""Run a compiled task on one thread, or shared out among several."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from lockstep.kernels.jit import Task

Runner = Callable[[Task, Any, int], None]
"""Runs a task with the addresses of what it is given, which holds so many shares."""


def alone(task: Task, addresses: Any, shares: int) -> None:
    """A `Runner`: all shares in the calling thread."""
    task(addresses)


def address_of(array: npt.NDArray[Any]) -> int:
    """Where an array's elements lie."""
    address: int = array.__array_interface__["data"][0]
    return address


def addresses(found: Sequence[int]) -> Any:
    """Addresses as a task is given them; the arrays have to outlive it."""
    return (ctypes.c_void_p * len(found))(*found)
