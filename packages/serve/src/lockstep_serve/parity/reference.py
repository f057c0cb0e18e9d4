"""A reference in its own process: runs what a served model was asked, and judges what it answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lockstep.errors import LockstepError
from lockstep.terminal import message
from lockstep_serve.neighbours import neighbours
from lockstep_serve.opening import Source
from lockstep_serve.parity.judging import Judged, Outcome, judged, judged_within
from lockstep_serve.parity.kept_request import keep, keep_layers
from lockstep_serve.parity.matching import matched
from lockstep_serve.parity.quantised import quantising_node
from lockstep_serve.parity.tolerance import Exceeding, Tolerance, tolerance_of
from lockstep_serve.protocol.tensors import dtype_of
from lockstep_serve.servable import BYTES, Array, Arrays, Servable, Signature, TensorSpec
from lockstep_serve.servables.kinds import file_of

SERVED = "served/"
"""Before the name of an output among what the reference is given."""

_DRAWS = 3
"""How often a reference is run with its numbers moved."""


@dataclass(frozen=True, slots=True)
class ReferenceSource(Source):
    """A reference; its settings say which file is `served` with which `inputs` and `outputs`, what `tolerance` the user
    has given, and where a request that leaves it is `kept`, if at all."""

    kind: ClassVar[str] = "reference"

    def open(self) -> Servable:
        """Open it, and a copy whose numbers are moved, where its kind has such and rounding is what is asked after.

        Raises UsageError if it takes or gives something else than the served model.
        """
        plain = Source(self.path, self.device, {"batches": False, "threads": 1}).open()
        served = Path(self.settings["served"])
        inputs, outputs = (
            tuple(
                TensorSpec(name, dtype_of(kind, name), tuple(shape)) for name, kind, shape in told
            )
            for told in (self.settings["inputs"], self.settings["outputs"])
        )
        names = Names(
            matched("takes", inputs, plain.signature.inputs),
            matched("gives", outputs, plain.signature.outputs),
        )
        files = [file_of(one) if one.is_dir() else one for one in (served, self.path)]
        allowed = _allowed(files[0], files[1], self.settings.get("tolerance"))
        noisy = None if allowed is not None else _moved(plain)
        kept = self.settings.get("kept")
        reference = Reference(
            plain, noisy, names, allowed, served=files[0], path=files[1], kept=kept and Path(kept)
        )
        reference.signature = Signature(
            (*inputs, *(replace(one, name=f"{SERVED}{one.name}") for one in outputs)),
            (TensorSpec("judged", BYTES, (1,)),),
        )
        return reference


@dataclass(frozen=True, slots=True)
class Names:
    """The reference's names by those of the served model."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def _allowed(served: Path, reference: Path, told: Mapping[str, Any] | None) -> Tolerance | None:
    """What a model that is not the reference's own computation may be off; None where rounding alone may be."""
    if told is not None:
        return Tolerance(**told)
    measured = tolerance_of(served)
    if measured is not None:
        return measured
    node = quantising_node(served)
    if not node or quantising_node(reference):
        return None
    return Tolerance(None, {}, f"nobody: it quantises at {node}, and --tolerance was not given")


def _moved(plain: Servable) -> Servable | None:
    moved = getattr(plain, "moved", None)
    try:
        found: Servable | None = None if moved is None else moved(seed=0)
    except (
        LockstepError,
        ImportError,
        ValueError,
    ):  # beyond protobuf's 2 GB, say: inputs alone are moved
        return None
    return found


class Reference:
    """Takes a request's inputs and what was answered, and gives one text: the judgement as JSON.

    plain, noisy: The reference, and a copy with its numbers moved.
    names: Of its tensors, by those of the served model.
    allowed: What outputs may be off; None for what rounding makes.
    served, path: The two files.
    kept: The folder of the first request that differs; None where none is kept.
    """

    platform = "lockstep"
    signature: Signature

    def __init__(
        self, plain: Servable, noisy: Servable | None, names: Names, allowed: Tolerance | None, *, served: Path,
        path: Path, kept: Path | None,
    ) -> None:  # fmt: skip
        self._plain, self._noisy, self._names, self._allowed = plain, noisy, names, allowed
        self._served, self._path, self._kept = served, path, kept
        measured = {} if allowed is None else allowed.worst
        samples = 0 if allowed is None else allowed.samples
        self._exceeding = {name: Exceeding(one, samples) for name, one in measured.items()}

    def infer(self, inputs: Arrays) -> dict[str, Array]:
        """Judge a request; see `Servable`."""
        own = {name: one for name, one in inputs.items() if not name.startswith(SERVED)}
        asked = {self._names.inputs[name]: one for name, one in own.items()}
        reference = _run(self._plain, asked)
        moved = self._moved(asked, reference) if self._allowed is None else {}
        found = []
        for name, one in inputs.items():
            if name.startswith(SERVED):
                output = name.removeprefix(SERVED)
                theirs = self._names.outputs[output]
                found.append(
                    self._judged(output, reference[theirs], one, asked, moved.get(theirs, []))
                )
        told: dict[str, Any] = {"outputs": [one.told() for one in found]}
        if self._allowed is not None:
            told["tolerance_from"] = self._allowed.source
        if self._kept is not None and any(one.outcome is Outcome.DIFFER for one in found):
            told |= self._keep(own, asked)
        return {"judged": np.array([json.dumps(told).encode()], object)}

    def _judged(
        self, output: str, reference: Array, served: Array, asked: Arrays, moved: list[Array]
    ) -> Judged:
        if self._allowed is not None:
            found = judged_within(output, reference, served, self._allowed.of(output))
            exceeding = self._exceeding.get(output)
            if exceeding is not None and np.isfinite(found.difference):
                many = exceeding.add(found.difference)
                if many and found.outcome is Outcome.AGREE:
                    return replace(found, outcome=Outcome.DIFFER, words=str(exceeding))
            return found
        return judged(output, reference, served, asked, moved)

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

    def _keep(self, own: Arrays, asked: Arrays) -> dict[str, Any]:
        assert self._kept is not None
        kept, self._kept = self._kept, None  # the first alone
        try:
            if self._allowed is not None and {self._path.suffix, self._served.suffix} == {".onnx"}:
                return keep_layers(kept, own, asked, reference=self._path, served=self._served)
            return keep(kept, own, asked, reference=self._path, served=self._served)
        except (LockstepError, OSError, ValueError) as error:
            return {"not_kept": message(str(error))}


def _run(model: Servable, inputs: Arrays) -> dict[str, Array]:
    """What a model gives that may write into its inputs, and give the same buffer each time."""
    given = model.infer({name: one.copy() for name, one in inputs.items()})
    return {name: one.copy() for name, one in given.items()}
