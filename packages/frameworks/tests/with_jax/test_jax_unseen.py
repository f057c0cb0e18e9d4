"""Gradients and averages beside a step that are not recorded: nothing agrees without a word of them."""

from __future__ import annotations

from typing import Any

import pytest

import lockstep
from lockstep.core.finding import Verdict
from lockstep.report.comparison.verdict_words import headline

SAID = {
    "pmap": "calls of jax.pmap",
    "inside": "steps inside of a loop of JAX or of a shard_map",
    "vjp": "calls of jax.vjp",
    "forward": "calls of jax.jacfwd",
    "average": "functions under jax.jit that take no gradient",
    "eager average": "operators outside of jax.jit that take new parameters",
}


@pytest.mark.parametrize("mode", list(SAID))
def test_what_is_not_looked_at_is_said_in_the_headline(trained_here: Any, mode: str) -> None:
    sides = trained_here("jax_unseen", mode), trained_here("jax_unseen", mode, "fault")
    assert sides[0].printed != sides[1].printed
    found = lockstep.compare_recordings(*(one.path for one in sides))
    assert f"{SAID[mode]}" in headline(found).partition("not recorded: ")[2]


@pytest.mark.parametrize("mode", [*SAID, "none"])
def test_no_bit_is_changed_where_something_is_not_looked_at(
    trained_here: Any, bare_here: Any, mode: str
) -> None:
    assert trained_here("jax_unseen", mode).printed == bare_here("jax_unseen", mode)


def test_nothing_is_said_where_all_is_seen(trained_here: Any) -> None:
    path = trained_here("jax_unseen", "none").path
    found = lockstep.compare_recordings(path, path)
    assert found.verdict is Verdict.AGREE
    assert not any(said in headline(found) for said in SAID.values())
