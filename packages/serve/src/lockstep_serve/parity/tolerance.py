"""How far a quantised model may be from the one that it was made of, by the user's word or by `quantize`'s report."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lgamma
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.judging import LOCAL_MARGIN

CHANCE = 1e-9
"""Below this probability, errors above the worst that was measured are no accident. A request is judged after each
that was compared: a million of them raise a false alarm in one of a thousand servers."""

_FACTS = "lockstep.quantized"
"""The entry among an ONNX file's metadata in which `lockstep quantize` says what it measured."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Relative Euclidean distances that outputs may have.

    each: Of all outputs that `outputs` does not name; None where nothing is said of these.
    outputs: By the output's name.
    source: Who says so.
    worst, samples: By the output's name, the error of the worst sample that was measured, and of how many it is the
        worst; nothing where the tolerance is the user's word.
    """

    each: float | None
    outputs: Mapping[str, float]
    source: str
    worst: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0

    def of(self, output: str) -> float | None:
        """Return the allowed distance of an output; None if nobody has set one."""
        return self.outputs.get(output, self.each)


def tolerance_from(text: str) -> Tolerance:
    """Return the user's tolerance: a distance as in `0.02`, decibels as in `30dB`, or the file of a report.

    An SQNR of d dB is a relative distance of 10^(-d/20).

    Raises UsageError if it is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?(?:e-?\d+)?)\s*(dB)?", text.strip(), re.IGNORECASE)
    if match is not None:
        number = float(match[1])
        return Tolerance(10 ** (-number / 20) if match[2] else number, {}, "--tolerance")
    path = Path(text)
    if not path.is_file():
        raise UsageError(
            f"--tolerance {text}: give a distance as in 0.02, a ratio as in 30dB, or a file of `quantize --json`"
        )
    try:
        told = json.loads(path.read_text())
        worst, samples = told["outcome"]["worst_error"], told["outcome"]["samples"]
        found = _measured(
            worst, samples, f"{path.name}: lockstep quantize, on {told['measured_on']}"
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--tolerance {text}: is not a report of `lockstep quantize --json`"
        ) from error
    if found is None:
        raise UsageError(
            f"--tolerance {text}: was measured on no data of yours; give `quantize --inputs FILE`"
        )
    return found


def tolerance_of(file: Path) -> Tolerance | None:
    """Return the tolerance that `lockstep quantize` wrote into a model; None if it did not make it."""
    if file.suffix != ".onnx":
        return None
    import onnx

    held = {one.key: one.value for one in onnx.load(file, load_external_data=False).metadata_props}
    try:
        facts: dict[str, Any] = json.loads(held[_FACTS])
        source = f"lockstep quantize, on {facts['measured_on']}"
        return _measured(facts["worst_error"], facts["measured_samples"], source)
    except (KeyError, ValueError, TypeError, AttributeError):
        return None


def _measured(worst: Mapping[str, float], samples: int, source: str) -> Tolerance | None:
    """One request may be off by `LOCAL_MARGIN` times the error of the worst sample; see `Exceeding` for many."""
    seen = {name: float(one) for name, one in worst.items() if math.isfinite(one)}
    most = {name: LOCAL_MARGIN * one for name, one in seen.items()}
    return Tolerance(None, most, source, seen, samples) if seen and samples else None


class Exceeding:
    """Counts errors of one output that are above the worst of the samples that were measured.

    If requests were drawn as the samples were, every order of all their errors would be as likely: the `j` largest of
    `n` samples and `k` requests are all of requests with probability `k! (n + k - j)! / ((k - j)! (n + k)!)`, whatever
    the distribution. Where it is below `CHANCE`, the model or its data are others than those that were measured.

    worst, samples: The largest error of so many samples.
    """

    def __init__(self, worst: float, samples: int) -> None:
        self._worst, self._samples = worst, samples
        self.seen = self.above = 0

    def add(self, error: float) -> bool:
        """Count an error; whether there are now too many above the worst."""
        self.seen += 1
        self.above += error > self._worst
        n, k, j = self._samples, self.seen, self.above
        logarithm = lgamma(k + 1) + lgamma(n + k - j + 1) - lgamma(k - j + 1) - lgamma(n + k + 1)
        return error > self._worst and logarithm < math.log(CHANCE)

    def __str__(self) -> str:
        """What was counted, in words."""
        return (
            f"{self.above} of {self.seen} requests are above {self._worst:.3g}, the worst of"
            f" {self._samples} samples that lockstep quantize measured"
        )
