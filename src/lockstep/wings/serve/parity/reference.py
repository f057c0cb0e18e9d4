"""A reference in its own process: runs what a served model was asked, and judges what it answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lockstep.core.errors import LockstepError, UsageError
from lockstep.core.text import message
from lockstep.wings.serve.neighbours import neighbours
from lockstep.wings.serve.opening import Source
from lockstep.wings.serve.parity.judging import Judged, Outcome, judged
from lockstep.wings.serve.parity.kept_request import keep
from lockstep.wings.serve.servable import BYTES, Array, Arrays, Servable, Signature, TensorSpec

SERVED = "served/"
"""Before the name of an output among what the reference is given."""

_DRAWS = 3
"""How often a reference is run with its numbers moved."""


@dataclass(frozen=True, slots=True)
class ReferenceSource(Source):
    """A reference; its settings say which file is `served`, and where a request that leaves it is `kept`, if at all."""

    kind: ClassVar[str] = "reference"

    def open(self) -> Servable:
        """Open it, and a copy whose numbers are moved, where its kind has such."""
        plain = Source(self.path, self.device, {"batches": False, "threads": 1}).open()
        moved = getattr(plain, "moved", None)
        try:
            noisy = None if moved is None else moved(seed=0)
        except (
            LockstepError,
            ImportError,
            ValueError,
        ):  # beyond protobuf's 2 GB, say: inputs alone are moved
            noisy = None
        kept = self.settings.get("kept")
        return Reference(
            plain,
            noisy,
            served=Path(self.settings["served"]),
            path=self.path,
            kept=kept and Path(kept),
        )


class Reference:
    """Takes a request's inputs and what was answered, and gives one text: the judgement as JSON."""

    platform = "lockstep"

    def __init__(
        self,
        plain: Servable,
        noisy: Servable | None,
        *,
        served: Path,
        path: Path,
        kept: Path | None,
    ) -> None:
        self._plain, self._noisy = plain, noisy
        self._served, self._path, self._kept = served, path, kept
        own = plain.signature
        answers = tuple(replace(one, name=f"{SERVED}{one.name}") for one in own.outputs)
        told = (TensorSpec("judged", BYTES, (1,)),)
        self.signature = Signature((*own.inputs, *answers), told)

    def infer(self, inputs: Arrays) -> dict[str, Array]:
        """Judge a request; see `Servable`."""
        asked = {name: one for name, one in inputs.items() if not name.startswith(SERVED)}
        served = {
            name.removeprefix(SERVED): one
            for name, one in inputs.items()
            if name.startswith(SERVED)
        }
        reference = _run(self._plain, asked)
        moved = self._moved(asked, reference)
        found = [
            judged(name, reference[name], one, asked, moved[name]) for name, one in served.items()
        ]
        told: dict[str, Any] = {"outputs": [one.told() for one in found]}
        if self._kept is not None and any(one.outcome is Outcome.DIFFER for one in found):
            told |= self._keep(asked, found)
        return {"judged": np.array([json.dumps(told).encode()], object)}

    def _moved(self, asked: Arrays, reference: Mapping[str, Array]) -> dict[str, list[Array]]:
        """What each output becomes with every number that is given and held moved; nothing where there is none to."""
        moved: dict[str, list[Array]] = {name: [] for name in reference}
        movable = any(one.dtype.kind == "f" for one in asked.values())
        if self._noisy is None and not movable:
            return moved
        model = self._noisy or self._plain
        for number in range(_DRAWS):
            draw = np.random.default_rng(number)
            given = {name: neighbours(one, draw) for name, one in asked.items()}
            for name, value in _run(model, given).items():
                if value.dtype.kind == "f" and value.shape == reference[name].shape:
                    moved[name].append(value)
        return moved

    def _keep(self, asked: Arrays, found: list[Judged]) -> dict[str, str]:
        assert self._kept is not None
        kept, self._kept = self._kept, None  # the first alone
        try:
            return keep(kept, asked, reference=self._path, served=self._served)
        except (LockstepError, OSError, ValueError) as error:
            return {"not_kept": message(str(error))}


def _run(model: Servable, inputs: Arrays) -> dict[str, Array]:
    """What a model gives that may write into its inputs, and give the same buffer each time."""
    given = model.infer({name: one.copy() for name, one in inputs.items()})
    return {name: one.copy() for name, one in given.items()}


def refuse_unlike(model: str, served: Signature, reference: Signature) -> None:
    """Refuse a reference that cannot be asked what the model is.

    Raises
    ------
    UsageError
        If its inputs are others, or it has none of the outputs.
    """
    own = {(one.name, one.dtype) for one in served.inputs}
    others = {(one.name, one.dtype) for one in reference.inputs if not one.name.startswith(SERVED)}
    if own != others:
        raise UsageError(
            f"--shadow: {model} takes {_listed(own)}, and its reference {_listed(others)}; both have to take the same"
        )
    judged_ones = {one.name.removeprefix(SERVED) for one in reference.inputs}
    missing = sorted({one.name for one in served.outputs} - judged_ones)
    if missing:
        raise UsageError(f"--shadow: {model} gives {missing[0]}, which its reference does not")


def _listed(specs: set[tuple[str, np.dtype[Any]]]) -> str:
    return ", ".join(
        f"{name} ({'BYTES' if dtype == BYTES else dtype})" for name, dtype in sorted(specs, key=str)
    )
