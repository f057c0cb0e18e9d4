"""What may be switched between two trainings, each as a ladder of states from the safest to that of the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class State:
    """One state of a switch.

    Parameters
    ----------
    name
        As it is printed.
    environment
        Variables that are set for the command; None takes one away.
    """

    name: str
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ladder:
    """States in a row: if one of them makes the numbers differ, those behind it do too.

    Parameters
    ----------
    name
        What is switched.
    states
        The first one is expected to agree, the last one is as the command runs by itself.
    """

    name: str
    states: tuple[State, ...]


BACKENDS = Ladder(
    "torch.compile",
    (
        State("no compiler", {"TORCHDYNAMO_DISABLE": "1"}),
        State("backend eager", {"TORCH_BISECT_BACKEND": "eager"}),
        State("backend aot_eager", {"TORCH_BISECT_BACKEND": "aot_eager"}),
        State(
            "backend aot_eager_decomp_partition",
            {"TORCH_BISECT_BACKEND": "aot_eager_decomp_partition"},
        ),
        State("as it is"),
    ),
)
"""What torch.compile runs: Dynamo's graphs, with autograd traced ahead, decomposed, and with inductor's own kernels.

torch reads the variable itself (`torch._inductor.compiler_bisector`).
"""

ADDS = {
    "no compiler": "",
    "backend eager": "Dynamo, which captures graphs",
    "backend aot_eager": "AOTAutograd, which traces backward ahead",
    "backend aot_eager_decomp_partition": "decompositions, and what the partitioner computes again in backward",
    "as it is": "inductor, which fuses operators and generates their kernels",
}
"""What each state of `BACKENDS` adds to the one before."""
