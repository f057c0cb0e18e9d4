"""Whether a compiled function gives what its program does: rounding passes, a wrong result is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def evaluated() -> Any:
    """A program, its inputs, and what it gives."""
    import jax

    from lockstep_frameworks.jax.evaluation import Evaluation, Value
    from lockstep_frameworks.jax.programs import program_of

    def ill_conditioned(x: Any) -> Any:
        return ((x + 1e4) - 1e4).sum(), jax.numpy.tanh(x @ x.T)

    x = jax.numpy.asarray(np.random.default_rng(0).normal(size=(4, 4)), "float32")
    program, inputs = program_of(jax.make_jaxpr(ill_conditioned)(x)), [Value(x)]
    return program, inputs, Evaluation().run(program, inputs), jax.jit(ill_conditioned)(x)


def test_rounding_is_no_disagreement(evaluated: Any) -> None:
    from lockstep_frameworks.jax.agreement import disagreement

    assert disagreement(*evaluated) == ""


@pytest.mark.parametrize("factor", [1.01, float("nan")])
def test_a_result_that_is_wrong_is_told(evaluated: Any, factor: float) -> None:
    from lockstep_frameworks.jax.agreement import disagreement

    program, inputs, own, (total, products) = evaluated
    assert disagreement(program, inputs, own, (total, products * factor)).startswith("result 1")
