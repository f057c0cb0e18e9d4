"""What the values of a step are told to be: new parameters, gradients that come out, and states, in any order."""

from __future__ import annotations

from typing import Any

import pytest

jax = pytest.importorskip("jax")
TREE = jax.tree.map


def gradients(params: Any, x: Any) -> Any:
    """Of two layers."""
    return jax.grad(lambda p: (jax.numpy.tanh(x @ p["a"]) @ p["b"]).sum())(params)


def decayed(params: Any, x: Any) -> Any:
    """Gradients with a part of the parameters."""
    return TREE(lambda g, p: g + 0.01 * p, gradients(params, x), params)


def with_momentum(params: Any, kept: Any, x: Any) -> Any:
    """New parameters and their momentum."""
    kept = TREE(lambda m, g: 0.9 * m + g, kept, decayed(params, x))
    return TREE(lambda p, m: p - 0.1 * m, params, kept), kept


def momentum_first(params: Any, kept: Any, x: Any) -> Any:
    """The same in the other order."""
    new, kept = with_momentum(params, kept, x)
    return kept, new


def average_first(kept: Any, params: Any, x: Any) -> Any:
    """An average that takes over more than it keeps, and new parameters."""
    new = TREE(lambda p, g: p - 0.1 * g, params, gradients(params, x))
    return TREE(lambda e, n: 0.3 * e + 0.7 * n, kept, new), new


def roles(function: Any, *trees: str) -> Any:
    """The roles of a function of such trees and data."""
    from lockstep_frameworks.jax.known import KnownPrograms

    ones = jax.numpy.ones((3, 3))
    traced = jax.jit(function).trace(*({"a": ones, "b": ones} for _ in trees), ones)
    known = KnownPrograms().of(traced)
    return known.program, known.labels.roles


@pytest.mark.parametrize(
    ("function", "trees", "parameter", "result", "state"),
    [
        (with_momentum, ("params", "kept"), 0, 0, (2, 2)),
        (momentum_first, ("params", "kept"), 0, 2, (2, 0)),
        (average_first, ("kept", "params"), 2, 2, (0, 0)),
    ],
)
def test_a_new_parameter_is_told_from_a_state(
    function: Any, trees: tuple[str, ...], parameter: int, result: int, state: tuple[int, int]
) -> None:
    program, found = roles(function, *trees)
    first = found.parameters[0]
    assert (first.name, first.value) == ("a", program.inputs[parameter])
    assert first.updated == program.outputs[result]
    assert list(first.states.values()) == [(program.inputs[state[0]], program.outputs[state[1]])]


def test_a_gradient_with_a_part_of_its_parameter_is_no_new_parameter() -> None:
    program, found = roles(decayed, "params")
    assert not found.updates
    assert [one.gradient for one in found.parameters] == list(program.outputs)
