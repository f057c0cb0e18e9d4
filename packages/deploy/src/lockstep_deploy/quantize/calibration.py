"""Samples that a model is run on: what ranges are taken from, and what errors are measured on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.errors import UsageError
from lockstep.terminal import listed
from lockstep_deploy.inputs import checked, named, read_inputs
from lockstep_deploy.model_file import TensorSpec

Array = npt.NDArray[Any]

LABELS = "labels"
"""The name of the array that holds the right class of each sample."""

_BATCH = 32
_DRAWN = 8


@dataclass(frozen=True)
class Samples:
    """Arrays by input, samples along the first axis.

    arrays: By the model's inputs.
    labels: The right class of each sample, int64; None where none were given.
    batch: How many samples the model is run on at once.
    """

    arrays: dict[str, Array]
    labels: npt.NDArray[np.int64] | None
    batch: int

    @property
    def count(self) -> int:
        """Samples that are run; what would not fill a model's fixed batch is left out."""
        if self.is_one_call:
            return 1
        given = len(next(iter(self.arrays.values())))
        return given - given % self.batch if self.is_fixed else given

    is_fixed: bool = False
    """Whether the model takes batches of this size only."""

    is_one_call: bool = False
    """Whether the inputs have no axis in common, such as nodes and edges of a graph: they are given as they are."""

    def batches(self) -> Iterator[dict[str, Array]]:
        """The inputs of each run."""
        if self.is_one_call:
            yield self.arrays
            return
        for start in range(0, self.count, self.batch):
            yield {
                name: array[start : min(start + self.batch, self.count)]
                for name, array in self.arrays.items()
            }


def read_samples(given: Sequence[str], signature: Sequence[TensorSpec], *, option: str) -> Samples:
    """Read samples for a model and refuse what would calibrate it wrongly.

    given: Files or texts as `--inputs` takes them; an array `labels` gives the right classes.
    signature: What the model takes; the first axis of each input is that of the samples.
    option: How the user gave them, for messages.

    Raises UsageError if an array is missing, unknown, empty, constant, not finite, or of another dtype or shape.
    """
    arrays = named(given, signature)
    labels = arrays.pop(LABELS, None) if LABELS not in {spec.name for spec in signature} else None
    if not signature:
        raise UsageError(f"{option}: the model takes no inputs, and nothing can be calibrated")
    arrays = checked(arrays, signature, option=option, are_samples=True)
    for name, array in arrays.items():
        _check(array, f"{option}: {name}")
    counts = {len(arrays[spec.name]) for spec in signature}
    if len(counts) > 1 and labels is None and _is_one_call(arrays, signature):
        return Samples(checked(arrays, signature), None, 1, is_fixed=True, is_one_call=True)
    if len(counts) > 1:
        raise UsageError(
            f"{option} has {listed([str(one) for one in sorted(counts)])} samples by input; give as many of each"
        )
    count = counts.pop()
    if labels is not None and (labels.shape != (count,) or labels.dtype.kind not in "iu"):
        raise UsageError(
            f"{option}: labels are {labels.dtype}{list(labels.shape)}; give one whole number a sample, [{count}]"
        )
    fixed = {spec.shape[0] for spec in signature if spec.shape and isinstance(spec.shape[0], int)}
    batch = max(fixed) if fixed else min(_BATCH, count)
    if batch > count:
        raise UsageError(
            f"{option} has {count} samples; the model takes {batch} at once, so give as many at least"
        )
    return Samples(
        arrays, None if labels is None else labels.astype(np.int64), batch, bool(fixed),
    )  # fmt: skip


def _check(array: Array, where: str) -> None:
    if array.size == 0 or array.ndim == 0:
        raise UsageError(f"{where} is empty; give samples as the model will see them")
    if array.dtype.kind != "f":
        return
    wrong = int(array.size - np.isfinite(array).sum())
    if wrong:
        at = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
        raise UsageError(
            f"{where} has {wrong} elements that are NaN or inf, the first in sample {at}; leave these out"
        )
    if array.size > 1 and array.min() == array.max():
        raise UsageError(
            f"{where} is {array.flat[0]:g} everywhere, which gives no range; give samples as the model will see them"
        )


def _is_one_call(arrays: dict[str, Array], signature: Sequence[TensorSpec]) -> bool:
    """Whether arrays are what a model takes at once, as they are."""
    try:
        return bool(checked(arrays, signature))
    except UsageError:
        return False


def drawn_samples(signature: Sequence[TensorSpec]) -> Samples:
    """Samples drawn from the normal distribution, where nobody gave any.

    Raises UsageError if the signature does not say what to draw.
    """
    free = {
        extent: _DRAWN
        for spec in signature
        for extent in spec.shape or ()
        if isinstance(extent, str)
    }
    arrays = read_inputs((), signature, free=free)
    fixed = any(isinstance(spec.shape[0], int) for spec in signature if spec.shape)
    several = len({len(one) for one in arrays.values()}) > 1
    count = 1 if several else len(next(iter(arrays.values())))
    return Samples(arrays, None, count, is_fixed=fixed or several, is_one_call=several)
