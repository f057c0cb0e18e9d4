"""An exported training step run by the runtime, step after step, its state kept between them and in checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.errors import OutputExistsError, UsageError
from lockstep.files import replacing
from lockstep_deploy.inputs import checked, read_inputs
from lockstep_deploy.large_models import array_of_tensor
from lockstep_deploy.model_file import ModelFile
from lockstep_deploy.runtime import Session, Settings

Array = npt.NDArray[Any]

FACT = "training"
"""Under which name a file says that it is a training step: its optimizer, its loss."""

LOSS, NEXT, STEPS = "loss", "next.", "lockstep.steps"
"""Names of outputs: the loss, and what a state's name begins with as it comes out. In a checkpoint, the steps done."""


@dataclass
class Training:
    """A training that goes on in the runtime.

    session: The step.
    state: What goes into the next one, by name.
    done: How many steps there were.
    """

    session: Session
    state: dict[str, Array]
    done: int = 0

    def step(self, batch: Mapping[str, Array]) -> float:
        """Train on a batch; returns its loss, measured before the update."""
        returned = self.session.run({**batch, **self.state})
        self.state = {name: returned[f"{NEXT}{name}"] for name in self.state}
        self.done += 1
        return float(returned[LOSS])

    def save(self, path: Path) -> None:
        """Write a checkpoint, aside first. Raises OutputExistsError if it cannot be written."""
        try:
            with replacing(path) as aside, aside.open("xb") as file:
                np.savez(file, **{STEPS: np.array(self.done)}, **self.state)  # type: ignore[arg-type]
        except OSError as error:
            raise OutputExistsError(
                f"{path}: cannot be written ({error.strerror or error}); give another place"
            ) from error

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint. Raises UsageError if it cannot be read, or is of another training."""
        found = read_inputs([str(path)], ())
        steps = found.pop(STEPS, None)
        forms = {name: (one.dtype, one.shape) for name, one in self.state.items()}
        other = [
            name
            for name in {**forms, **found}
            if name not in found or (found[name].dtype, found[name].shape) != forms.get(name)
        ]
        if steps is None or steps.shape or other:
            what = f"differs at {other[0]}" if other else "does not say how many steps were done"
            raise UsageError(
                f"{path}: is not a checkpoint of this training: it {what}; give one that `lockstep run --train` wrote"
            )
        self.state, self.done = found, int(steps)


def training_of(file: ModelFile, settings: Settings) -> Training:
    """The training that a file holds the step of, at its beginning.

    Raises UsageError if the file is no training step.
    """
    if FACT not in file.facts:
        raise UsageError(
            f"{file.path}: is not a training step; export one with `lockstep export MODEL --train-step sgd:lr=0.1`"
        )
    named = {one.name for one in file.proto.graph.input}
    state = {
        one.name: np.array(array_of_tensor(one))
        for one in file.proto.graph.initializer
        if one.name in named
    }
    return Training(Session(file.proto, settings, name=str(file.path)), state)


def batches_of(
    arrays: Mapping[str, Array], file: ModelFile, first: int
) -> Iterator[dict[str, Array]]:
    """Batches as the file takes them out of samples, in order and from the beginning again, without end.

    arrays: Samples along the first axis, as many in each array; at least a batch of them.
    file: The training step.
    first: How many batches were taken before.

    Raises UsageError if samples have other shapes than the step takes, or are too few.
    """
    count = _count(arrays, file)
    size = _batch_size(file)
    number = first
    while True:
        rows = np.arange(number * size, (number + 1) * size) % count
        yield {spec.name: np.ascontiguousarray(arrays[spec.name][rows]) for spec in file.inputs}
        number += 1


def _batch_size(file: ModelFile) -> int:
    for spec in file.inputs:
        if spec.shape and isinstance(spec.shape[0], int):
            return spec.shape[0]
    return 1


def _count(arrays: Mapping[str, Array], file: ModelFile) -> int:
    own = {spec.name: arrays[spec.name] for spec in file.inputs if spec.name in arrays}
    size = _batch_size(file)
    counts = {len(one) for one in checked(own, file.inputs, are_samples=True).values()}
    if len(counts) != 1 or min(counts) < size:
        raise UsageError(
            f"--inputs has {sorted(counts)} samples; give as many of each, and at least the {size} of a batch"
        )
    return int(counts.pop())
