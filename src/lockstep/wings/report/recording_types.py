"""The contents of a recording's page, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from lockstep.reading.recorded_series import Series, TensorSeries
from lockstep.reading.recorded_values import ValueCounts
from lockstep.wings.report.comparison_types import Excerpt, Run


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is known of a run; `group` says what about: machine, packages, settings of torch ..."""

    group: str
    name: str
    value: str


IMAGES, TOKENS, WAVE, HEAT_MAP = "images", "tokens", "wave", "heat map"


@dataclass(frozen=True, slots=True)
class BatchTensor:
    """One tensor of the recorded batch, and what is shown of it.

    kind: "images": `values` are float32 of shape (images, height, width, channels). "tokens": int64 of shape (rows,
        columns). "wave": float32 of shape (rows, 2, bins), smallest and largest sample of each bin. "heat map": float32
        of shape (rows, columns), of each cell the element of largest magnitude. "": nothing is shown, see `without`.
    low, high: Smallest and largest finite number of `values`, by which images are scaled.
    part: What is left out, in words, or "".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    values: npt.NDArray[Any] | None
    low: float
    high: float
    part: str = ""
    without: str = ""


@dataclass(frozen=True, slots=True)
class RecordedModule:
    """One module: `parent` is the index of the one around it, -1 for the model itself.

    `parameters` counts elements of its own parameters, `parameters_inside` those of all modules inside as well;
    `training` is None where its mode was not noted. `settings` is a JSON object.
    """

    path: str
    module_class: str
    parent: int
    parameters: int
    parameters_inside: int
    training: bool | None
    settings: str


@dataclass(frozen=True, slots=True)
class RecordingData:
    """Everything that a page shows of a recording.

    run: Name, path, steps, command.
    facts, missing: The set-up; what a reader should know is not there, in sentences.
    losses, scalars: The loss, also after the recorded steps; learning rates, and the norms of all gradients and
        parameters.
    tensors: Parameters and gradients over steps, in the order of the model.
    values: How the values of `tensors` lie, of those that were saved whole.
    left_out: How many parameters are not in `tensors`, as there were too many.
    batch: What went into the first recorded step.
    modules: The module tree.
    sources: Lines around `file:line` as they were when recorded.
    records, contents, size_bytes: How many tensors were recorded, how many distinct ones, and what the recording takes
        on disk.
    """

    run: Run
    facts: tuple[Fact, ...]
    missing: tuple[str, ...]
    losses: tuple[Series, ...]
    scalars: tuple[Series, ...]
    tensors: tuple[TensorSeries, ...]
    values: tuple[ValueCounts, ...]
    left_out: int
    batch: tuple[BatchTensor, ...]
    modules: tuple[RecordedModule, ...]
    sources: dict[str, Excerpt]
    records: int
    contents: int
    size_bytes: int
