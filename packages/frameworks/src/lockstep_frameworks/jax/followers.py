"""Calls that go on with what a step gave, and are not recorded themselves: averages, evaluations, other gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import jax

WITHOUT_GRADIENT = "functions under jax.jit that take no gradient"
WITHOUT_JIT = "operators outside of jax.jit that take new parameters"
OTHER_GRADIENTS = "calls of {}"


class Followers:
    """Says which calls take what earlier ones gave since the first step.

    note_gap: Takes what is not seen, and why.
    """

    def __init__(self, note_gap: Callable[[str, str], None]) -> None:
        self._note_gap = note_gap
        self._given: dict[int, weakref.ref[Any]] = {}
        self._has_begun = False
        self._updated: dict[int, weakref.ref[Any]] = {}

    def begin(self) -> None:
        """Note that a step is there: what was called before is seen by what goes into it."""
        self._has_begun = True

    def gave(self, result: Any) -> None:
        """Take the results of a call."""
        if self._has_begun:
            self._given = {number: one for number, one in self._given.items() if one() is not None}
            self._given |= {id(one): weakref.ref(one) for one in _floats(result)}

    def takes(self, name: str, leaves: Iterable[Any]) -> None:
        """Take the arguments of a call that is not recorded."""
        if any(self.is_given(one) for one in leaves):
            reason = f"{name} goes on with what a step gave; call it inside of the step's function"
            self._note_gap(WITHOUT_GRADIENT, reason)

    def updated(self, parameters: Iterable[Any]) -> None:
        """Take the new parameters of a step whose update is done."""
        self._updated = {id(one): weakref.ref(one) for one in parameters}

    def computes(self, arguments: Any) -> None:
        """Take the arguments of an operator that runs by itself between two steps."""
        if not self._updated:
            return
        for one in jax.tree_util.tree_leaves(arguments):
            known = self._updated.get(id(one))
            if known is not None and known() is one:
                self._note_gap(WITHOUT_JIT, "call them inside of the step's function")
                self._updated = {}
                return

    def is_given(self, array: Any) -> bool:
        """Return whether an array is a result of a call."""
        known = self._given.get(id(array))
        return known is not None and known() is array


def _floats(result: Any) -> list[Any]:
    return [
        one
        for one in jax.tree_util.tree_leaves(result)
        if isinstance(one, jax.Array) and jax.dtypes.issubdtype(one.dtype, jax.numpy.inexact)
    ]
