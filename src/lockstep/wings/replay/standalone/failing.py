"""Whether a written test would fail on given results."""

from __future__ import annotations

from lockstep.wings.replay.standalone.checks import compare
from lockstep.wings.replay.standalone.proof import Proof, facts


def failing(proof: Proof) -> set[str]:
    """The results that the check of the written test does not let through as they were recorded."""
    limits = facts(proof)["limits"]
    found = set()
    for name, made in proof.recorded.items():
        try:
            expected = proof.expected[name]
            compare(name, made, expected, limits[name], proof.twice.get(name, expected))
        except AssertionError:
            found.add(name)
    return found
