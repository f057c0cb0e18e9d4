"""The contract of a model that can be served: named arrays in, named arrays out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import UsageError

Array = NDArray[Any]
Arrays = Mapping[str, Array]

BYTES = np.dtype(object)
"""The dtype of what the protocol calls BYTES: texts and blobs, each element a `bytes`."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    Parameters
    ----------
    name
        By which requests name it.
    dtype
        Its element type; `BYTES` for texts.
    shape
        Its extents with the batch axis, -1 where one is free.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model.

    Parameters
    ----------
    inputs, outputs
        Its tensors, in order.
    batches
        Whether the first axis counts instances that do not know of each other, so that requests may be run together.
    without_batch_axis
        Inputs that have no such axis, though the others do: a threshold, a table. Requests are run together where these
        are bitwise equal.
    batching
        Whether requests are run together, and by whose word, in a sentence; empty until that is decided.
    most
        How many instances a run may have by the model's own limit; None where it has none.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batches: bool = False
    without_batch_axis: frozenset[str] = frozenset()
    batching: str = ""
    most: int | None = None

    @property
    def batched_inputs(self) -> tuple[TensorSpec, ...]:
        """Those whose first axis counts instances; none where requests are never run together."""
        if not self.batches:
            return ()
        return tuple(one for one in self.inputs if one.name not in self.without_batch_axis)

    @property
    def fixed_batch(self) -> int | None:
        """How many instances each run has, where the model is of one size only."""
        extents = {one.shape[0] for one in self.batched_inputs} - {-1}
        return extents.pop() if len(extents) == 1 else None


def fits(shape: Sequence[int], spec: Sequence[int]) -> bool:
    """Whether a shape is one that a tensor's spec allows, where -1 is a free extent."""
    return len(shape) == len(spec) and all(
        wanted in (-1, extent) for wanted, extent in zip(spec, shape, strict=True)
    )


def unserved(path: Path, name: str, dtype: object) -> UsageError:
    """The refusal of a model one of whose tensors is of an element type that is not served."""
    return UsageError(
        f"{path}: {name} is {dtype}, which is not served; have the model itself convert it, from or to float32"
    )


class Servable(Protocol):
    """A model of any engine. It is asked from one thread at a time.

    A `servable.py` in a model's folder gives one of one's own by `def load(version_dir): ...`.
    """

    platform: str
    """What runs it, as the protocol's metadata say: `onnxruntime`, `pytorch`, `python`."""

    signature: Signature

    def infer(self, inputs: Arrays) -> dict[str, Array]:
        """Compute the outputs.

        Parameters
        ----------
        inputs
            Every input of the signature, of its dtype and of a shape that fits.

        Returns
        -------
        dict
            Every output of the signature.
        """


@runtime_checkable
class HasGraph(Protocol):
    """A servable whose graph can be looked into."""

    def mixing(self, without: Collection[str]) -> str:
        """Why the instances of a batch are not shown to be independent; empty where they are.

        Parameters
        ----------
        without
            Inputs that have no batch axis.
        """


class Opener(Protocol):
    """Opens one kind of file."""

    def __call__(self, path: Path, device: str, threads: int) -> Servable:
        """Open a file to be run on a device, by so many threads; 0 for as many as its runtime takes.

        Raises
        ------
        UsageError
            If it cannot be served.
        """
