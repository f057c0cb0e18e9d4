"""Numbers of a recording over its steps: losses, learning rates, parameters and gradients. No tensor is read."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from lockstep.core.site import CallKind, Role
from lockstep.store.reader import RankRecording, Recording

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]

PARAMETER = "parameter"
"""What a series is of: a parameter."""

GRADIENT = "gradient"
"""What a series is of: a gradient."""
"""What a `TensorSeries` is of."""

MOST_POINTS = 400_000
"""Steps of parameters and gradients that are kept together; beyond it the last parameters are left out."""

_NUMBERS = ("norm", "mean", "minimum", "maximum", "zero_count")
_OF_CALLS = ("call_id", "step", "kind", "module", "op", "call")


@dataclass(frozen=True, slots=True)
class Series:
    """One number over steps; NaN where it is not known. `steps` and `values` are of one length.

    `is_later` tells that it is of steps after the recorded ones.
    """

    quantity: str
    rank: str
    steps: Integers
    values: Floats
    is_later: bool = False

    @property
    def when(self) -> str:
        """The words after its name, if it goes on after the recorded steps."""
        return ", after the recorded steps" if self.is_later else ""


@dataclass(frozen=True, slots=True)
class TensorSeries:
    """Statistics of a parameter or of its gradient over steps.

    Parameters
    ----------
    what
        `PARAMETER` or `GRADIENT`.
    steps
        Of a gradient the step that it is of; of a parameter how many steps had ended when it held this.
    norm, mean, minimum, maximum, zeros
        As in `lockstep.core.records.Statistics`; `zeros` is the share of elements that are 0. NaN where not known.
    """

    name: str
    module: str
    what: str
    rank: str
    shape: tuple[int, ...]
    dtype: str
    steps: Integers
    norm: Floats
    mean: Floats
    minimum: Floats
    maximum: Floats
    zeros: Floats


def losses_of(recording: Recording) -> Iterator[Series]:
    """Return the loss of each rank at the recorded steps, and at later ones if they were kept.

    A step with several losses, as where gradients add up over parts of a batch, has a series for each.
    """
    for rank in recording.ranks.values():
        rows = _rows(rank, CallKind.LOSS).filter(pl.col("role") == Role.LOSS.value)
        for (call,), part in rows.partition_by("call", as_dict=True, maintain_order=True).items():
            name = f"loss #{call}" if call else "loss"
            yield Series(name, rank.name, _whole(part["step"]), _floats(part["mean"]))
        later = rank.losses
        if later:
            steps = np.array([one.step for one in later], np.int32)
            values = np.array([one.value for one in later])
            yield Series("loss", rank.name, steps, values, is_later=True)


def scalars_of(recording: Recording, tensors: Iterable[TensorSeries]) -> Iterator[Series]:
    """Hyper-parameters over steps, and the norms of all gradients and of all parameters together.

    Of hyper-parameters learning rates and what changes are there. A norm of many tensors is the root of the sum of
    their squared norms, over those that are known at every step: a frozen parameter is noted once, and would be lost.
    """
    for rank in recording.ranks.values():
        yield from _hyper_parameters(rank)
    groups: dict[tuple[str, str], list[TensorSeries]] = defaultdict(list)
    for one in tensors:
        groups[one.what, one.rank].append(one)
    for (what, name), several in groups.items():
        steps = np.unique(np.concatenate([one.steps for one in several]))
        known = [one for one in several if len(one.steps) == len(steps)]
        if known:
            all_of_them = (
                f"all {what}s"
                if len(known) == len(several)
                else f"{len(known)} of {len(several)} {what}s"
            )
            norms = np.sqrt(np.square([one.norm for one in known]).sum(axis=0))
            yield Series(f"norm of {all_of_them}", name, steps, norms)


def _hyper_parameters(rank: RankRecording) -> Iterator[Series]:
    found: dict[tuple[int, str, int, str], dict[int, float]] = defaultdict(dict)
    for noted in rank.manifest.optimizers:
        for number, group in enumerate(noted.groups):
            for key, value in group.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    found[noted.index, noted.name, number, key][noted.step] = float(value)
    groups = {(index, number) for index, _, number, _ in found}
    for (index, name, number, key), values in found.items():
        if key == "lr" or len(set(values.values())) > 1:
            several = (
                f", group {number}" if len({one for one in groups if one[0] == index}) > 1 else ""
            )
            steps = sorted(values)
            shown = np.array([values[step] for step in steps])
            title = f"{key} of {name.rpartition('.')[2]}{several}"
            yield Series(title, rank.name, np.array(steps, np.int32), shown)


def tensors_of(
    recording: Recording, most_points: int = MOST_POINTS
) -> tuple[list[TensorSeries], int]:
    """Parameters and gradients over steps, in the order of the model; and how many are left out."""
    found: list[TensorSeries] = []
    left_out = 0
    for rank in recording.ranks.values():
        parameters = list(_parameters(rank))
        places = {one.name: place for place, one in enumerate(parameters)}
        gradients = sorted(_gradients(rank), key=lambda one: places.get(one.name, len(places)))
        for series in (*parameters, *gradients):
            most_points -= len(series.steps)
            if most_points >= 0:
                found.append(series)
            else:
                left_out += 1
    return found, left_out


def _parameters(rank: RankRecording) -> Iterator[TensorSeries]:
    """What each parameter held before the first step and after each."""
    made = _rows(rank, CallKind.INIT).filter(pl.col("role") == Role.PARAM.value)
    updates = _rows(rank, CallKind.OPTIMIZER)
    before = updates.filter(pl.col("role") == Role.PARAM.value)
    after = updates.filter(pl.col("role") == Role.PARAM_AFTER.value)
    after = after.with_columns(pl.col("step") + 1)
    yield from _series(rank, PARAMETER, pl.concat([made, before, after]))


def _gradients(rank: RankRecording) -> Iterator[TensorSeries]:
    """What each gradient was when backward had ended: the last one of a step, as parts of a batch add up."""
    added_up = _rows(rank, CallKind.GRADIENT).filter(pl.col("role") == Role.PARAM_GRAD.value)
    taken = _rows(rank, CallKind.OPTIMIZER).filter(pl.col("role") == Role.PARAM_GRAD.value)
    alone = taken.join(added_up.select("name", "step"), on=["name", "step"], how="anti")
    yield from _series(rank, GRADIENT, pl.concat([added_up, alone]))


def _series(rank: RankRecording, what: str, rows: pl.DataFrame) -> Iterator[TensorSeries]:
    last = rows.sort("sequence").unique(["name", "step"], keep="last", maintain_order=True)
    first_met = last.unique("name", keep="first", maintain_order=True)["name"].to_list()
    parts = last.sort("step").partition_by("name", as_dict=True)
    for name in first_met:
        part = parts[name,]
        shape = tuple(part["shape"][0].to_list())
        yield TensorSeries(
            name,
            part["module"][0],
            what,
            rank.name,
            shape,
            part["dtype"][0],
            _whole(part["step"]),
            _floats(part["norm"]),
            _floats(part["mean"]),
            _floats(part["minimum"]),
            _floats(part["maximum"]),
            _floats(part["zero_count"]) / max(1, math.prod(shape)),
        )


def _rows(rank: RankRecording, kind: CallKind) -> pl.DataFrame:
    """Records of all calls of one kind, with what is known of the call; no other record is decoded."""
    calls = rank.call_table.filter(pl.col("kind") == kind.value)
    columns = ["role", "name", "sequence", "dtype", "shape", *_NUMBERS]
    rows = rank.record_rows(calls, columns)
    return rows.join(
        calls.select(_OF_CALLS), on="call_id", how="left", maintain_order="left"
    ).select(*columns, *_OF_CALLS)


def _whole(column: pl.Series) -> Integers:
    return column.to_numpy().astype(np.int32)


def _floats(column: pl.Series) -> Floats:
    return column.cast(pl.Float64).fill_null(math.nan).to_numpy().copy()
