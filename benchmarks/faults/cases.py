"""Which cases there are: one site, one amount and one starting step for each architecture and kind of fault.

They are drawn by a random stream of their own, seeded with the split's seed, the architecture and the kind, so that
adding a kind or an architecture changes no other case. Table and development split share no architecture and no seed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import kinds_code  # noqa: F401 - registers its kinds
import kinds_kernel  # noqa: F401
import kinds_setup  # noqa: F401
from architectures import ARCHITECTURES, Architecture, Split
from kinds import KINDS, FaultKind, Planted, Target
from sites import OperatorCall, survey
from training import STEPS, Training

SEEDS = {Split.TABLE: 20_000, Split.DEVELOPMENT: 1}
"""First part of the seed of every case of a split."""

_LATE = 0.2
"""Share of the faults that begin with the second step, where a kind allows it."""


@dataclass(frozen=True)
class Case:
    """One fault in one architecture."""

    architecture: str
    kind: str
    planted: Planted

    @property
    def name(self) -> str:
        """`gpt2/matmul-fp16`."""
        return f"{self.architecture}/{self.kind}"

    @property
    def fault(self) -> FaultKind:
        """What kind it is."""
        return KINDS[self.kind]

    def as_json(self) -> dict[str, Any]:
        """The case as JSON values."""
        return {"case": self.name, "group": self.fault.group, **asdict(self.planted)}


def targets_of(architecture: Architecture) -> dict[str, list[Target]]:
    """All places where each kind of fault can go, from one step of the sound training."""
    found: dict[str, list[Target]] = defaultdict(list)

    def visit(call: OperatorCall) -> None:
        for name, kind in KINDS.items():
            target = kind.fit(call) if kind.fit is not None else None
            if target is not None:
                found[name].append(target)

    for name, kind in KINDS.items():
        if kind.targets is not None:
            found[name] = kind.targets(Training.of(architecture))
    survey(Training.of(architecture), visit)
    return dict(found)


def cases_of(
    architecture: str, targets: dict[str, list[Target]], *, seed: int | None = None
) -> list[Case]:
    """One case of each kind that has a place in this architecture."""
    if seed is None:
        seed = SEEDS[ARCHITECTURES[architecture].split]
    cases = []
    for name, kind in KINDS.items():
        places = targets.get(name)
        if not places:
            continue
        stream = random.Random(f"{seed}/{architecture}/{name}")
        target = stream.choice(places)
        amount = kind.amount.draw(stream)
        late = kind.may_start_late and stream.random() < _LATE
        cases.append(Case(architecture, name, Planted(target, amount, STEPS - 1 if late else 0)))
    return cases
