"""Find runs of which only one lets its libraries round operands to TF32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lockstep.core.finding import Kind
from lockstep.core.manifest import RankManifest
from lockstep.core.operators import Trait, operator_of
from lockstep.measure.measured_pair import Measured

DEVICES = ("cuda",)
"""How the names of devices begin whose libraries may round to TF32."""

_RUNS = {(False, True): "candidate", (True, False): "reference"}
_KINDS = {"candidate": Kind.FAULT, "reference": Kind.MORE_ACCURATE}


@dataclass(frozen=True, slots=True)
class Tf32Allowed:
    """Which run alone allows TF32, by library: "matmul" for cuBLAS, "cudnn" for convolutions and recurrent layers.

    A library that both runs allow it, or neither, has no entry. Libraries choose by shape where they use it.
    """

    alone: Mapping[str, str] = field(default_factory=dict)

    def run_at(self, op: str, measured: Measured) -> str:
        """Return the run that alone may round at an operator, "" where none may: processors do not."""
        known = operator_of(op)
        of_cudnn = known.convolves or Trait.STEPS_THROUGH in known.traits
        run = self.alone.get("cudnn" if of_cudnn else "matmul", "")
        pair = measured.pair
        record = pair.candidate if run == "candidate" else pair.reference
        return run if record is not None and record.content.device.startswith(DEVICES) else ""

    @staticmethod
    def kind_in(run: str) -> Kind | None:
        """Return the kind of a result that only this run rounds, if no set-up explains it."""
        return _KINDS.get(run)


def tf32_allowed(reference: RankManifest, candidate: RankManifest) -> Tf32Allowed:
    """Compare the notes of both runs: `matmul=False cudnn=True`."""
    left, right = _noted(reference), _noted(candidate)
    runs = {name: _RUNS.get((left[name], right[name]), "") for name in left.keys() & right.keys()}
    return Tf32Allowed({name: run for name, run in runs.items() if run})


def _noted(manifest: RankManifest) -> dict[str, bool]:
    parts = (part.partition("=") for part in manifest.numerics.get("tf32", "").split())
    values = {"True": True, "False": False}
    return {name: values[value] for name, _, value in parts if value in values}
