"""`compare` of mindstudio-probe: its table of two dumps, or recordings, and Lockstep's verdict."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import click

from lockstep.compare import Aligned, Evidence, Metrics, Pair
from lockstep.errors import ExitCode
from lockstep.recordings import (
    Call,
    Phase,
    ReadLater,
    Recording,
    Role,
    Site,
    Statistics,
    TensorRecord,
    open_recording,
    paired_steps,
)
from lockstep.terminal import Cell
from lockstep_interop_names.faces.pair_results import PairResults
from lockstep_interop_names.faces.pair_table import measured, write_table
from lockstep_interop_names.faces.probe_records import ProbeRecords, stack_lines
from lockstep_interop_names.faces.verdict import said_of

_FIRST = (
    "NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape", "NPU Requires_grad",
    "Bench Requires_grad",
)  # fmt: skip
_OF_TENSORS = (
    "Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio",
)  # fmt: skip
_OF_NUMBERS = (
    "Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr",
    "NormRelativeErr",
)  # fmt: skip
_NUMBERS = (
    "NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
)  # fmt: skip
_OF_CHECKSUMS = ("NPU MD5", "BENCH MD5")
_LAST = ("Requires_grad Consistent", "Result", "Err_message", "NPU_Stack_Info")
_UNKNOWN = "N/A"
_ENTERING = (Role.INPUT, Role.GRAD_OUTPUT)
_OF_CALLS = ("args", "kwargs", "result", "grad_fn")
_CHECKSUM = re.compile(r"crc32:([0-9a-f]{8}):")

Place = tuple[str, int, str, str, int]
"""Rank, step, module, operator and number of a call."""


class _Kind(Enum):
    """What two dumps hold of their tensors, and the columns that tell it."""

    TENSORS = (*_FIRST, *_OF_TENSORS, *_NUMBERS, *_LAST, "Data_name")
    NUMBERS = (*_FIRST, *_OF_NUMBERS, *_NUMBERS, *_LAST)
    CHECKSUMS = (*_FIRST, *_OF_CHECKSUMS, *_LAST)


@dataclass(frozen=True, slots=True)
class _Named:
    """What a call is named, and the lines of its stack."""

    name: str
    stack: tuple[str, ...]


def compare_probes(target: Path, golden: Path, folder: Path) -> ExitCode:
    """Write the table into a folder, `compare_result_TIME.csv`, and print the verdict.

    Returns
    -------
    ExitCode
        That of `lockstep compare`.

    Raises
    ------
    RecordingError
        If one cannot be read.
    UsageError
        If nothing of the two can be paired.
    OutputExistsError
        If the table cannot be written.
    """
    candidate, reference = open_recording(target), open_recording(golden)
    items = [item for step in paired_steps(reference, candidate) for item in step.calls.aligned]
    kind = _kind_of((candidate, reference), [pair for item in items for pair in item.whole])
    said = said_of(golden, target)
    table = _Table(
        (_names_in(candidate), _names_in(reference)), kind, PairResults.of(said.comparison)
    )
    rows = [row for item in items for row in table.rows(item)]
    write_table(folder, "compare_result", kind.value, rows)
    click.echo(f"{len(rows)} rows")
    click.echo(said.sentence)
    return said.code


def _kind_of(recordings: Sequence[Recording], pairs: Sequence[Pair]) -> _Kind:
    if all(rank.has_tensors for one in recordings for rank in one.ranks.values()):
        return _Kind.TENSORS
    sides = [one for pair in pairs for one in (pair.candidate, pair.reference) if one is not None]
    summed = bool(sides) and all(_checksum(one) != _UNKNOWN for one in sides)
    return _Kind.CHECKSUMS if summed else _Kind.NUMBERS


def _checksum(record: TensorRecord | None) -> str:
    found = _CHECKSUM.match(record.digest or "") if record is not None else None
    return found[1] if found else _UNKNOWN


def _names_in(recording: Recording) -> dict[Place, _Named]:
    found: dict[Place, _Named] = {}
    for rank in recording.ranks.values():
        for step in rank.steps:
            calls = rank.calls(step)
            names = ProbeRecords("mix", lambda *_: None).names(calls)
            for call in calls:
                if call.id in names:
                    lines = tuple(stack_lines(call, rank.source_lines))
                    found[(rank.name, step, *_place(call.site))] = _Named(names[call.id], lines)
    return found


def _place(site: Site) -> tuple[str, str, int]:
    return site.module, site.op, site.call


def _name(record: TensorRecord | None, names: Mapping[Place, _Named]) -> str:
    if record is None:
        return _UNKNOWN
    site, start, rest = record.site, *record.name.partition(".")[::2]
    known = names.get((record.rank, record.step, *_place(site)))
    call = f"{site.module}.{site.op}.{{}}" if known is None else known.name
    if record.role in (Role.PARAM, Role.PARAM_GRAD) and start not in _OF_CALLS:
        own = record.name.rpartition(".")[2]
        if record.role is Role.PARAM:
            return f"{call.format('forward')}.parameters.{own}"
        at = (record.rank, record.step, site.module)
        above = (
            one.name
            for place, one in names.items()
            if place[:3] == at and one.name.startswith("Module.")
        )
        return f"{next(above, call).partition('.{}')[0]}.parameters_grad.{site.call}.{own}"
    phase = Phase.BACKWARD if site.phase is Phase.BACKWARD else Phase.FORWARD
    what = "input" if record.role in _ENTERING else "output"
    return f"{call.format(phase.value)}.{what}.{rest or '0' if start in _OF_CALLS else record.name}"


@dataclass(frozen=True, slots=True)
class _Table:
    """Makes the rows: `names` of the calls of both sides, the one under test first."""

    names: tuple[Mapping[Place, _Named], Mapping[Place, _Named]]
    kind: _Kind
    results: PairResults
    told: set[Place] = field(default_factory=set)

    def rows(self, item: Aligned) -> Iterator[list[Cell]]:
        """The rows of one call: what goes in, plain arguments among it, and the rest."""
        entering = [pair for pair in item.whole if pair.present.role is Role.INPUT]
        yield from map(self._row, entering)
        yield from self._arguments(item)
        yield from (self._row(pair) for pair in item.whole if pair.present.role is not Role.INPUT)

    def _row(self, pair: Pair) -> list[Cell]:
        sides = pair.candidate, pair.reference
        metrics, missing = measured(pair)
        texts: list[Cell] = [_name(one, side) for one, side in zip(sides, self.names, strict=True)]
        texts += [_UNKNOWN if one is None else f"torch.{one.dtype}" for one in sides]
        texts += [_UNKNOWN if one is None else str(list(one.shape)) for one in sides]
        texts += [_UNKNOWN, _UNKNOWN]  # whether a gradient is asked for is not kept
        between: list[Cell] = [_checksum(one) for one in sides]
        if self.kind is not _Kind.CHECKSUMS:
            numbers = [_numbers(None if one is None else one.statistics) for one in sides]
            found = (_of_tensors if self.kind is _Kind.TENSORS else _of_numbers)(metrics, *numbers)
            between = [*found, *(_cell(one) for side in numbers for one in side)]
        result, reason = self.results.of_pair(pair)
        stack = _stack(pair.candidate, self.names[0], self.told)
        cells = [*texts, *between, _UNKNOWN, result, reason or missing, stack]
        files = str([_file(one) for one in sides])
        return [*cells, files] if self.kind is _Kind.TENSORS else cells

    def _arguments(self, item: Aligned) -> Iterator[list[Cell]]:
        """Rows of plain arguments, by position and name; a list has one for each element."""
        calls = item.candidate, item.reference
        names = [
            side.get((call.rank, call.step, *_place(call.site)))
            for call, side in zip(calls, self.names, strict=True)
        ]
        own, other = (dict(_leaves_of(call.arguments)) for call in calls)
        for key in dict.fromkeys((*other, *own)):
            values = own.get(key, _ABSENT), other.get(key, _ABSENT)
            titles = [
                _UNKNOWN
                if name is None or value is _ABSENT
                else f"{name.name.format('forward')}.input.{key}"
                for name, value in zip(names, values, strict=True)
            ]
            if titles != [_UNKNOWN] * 2:
                yield self._argument_row(item.reference, titles, values)

    def _argument_row(
        self, call: Call, titles: Sequence[str], values: tuple[object, object]
    ) -> list[Cell]:
        plain = [one is not None and one is not _ABSENT for one in values]
        kinds = [
            str(type(one)) if is_plain else _UNKNOWN
            for one, is_plain in zip(values, plain, strict=True)
        ]
        shapes = ["[]" if is_plain else _UNKNOWN for is_plain in plain]
        result, reason = self.results.of_argument(call, equal=values[0] == values[1])
        texts = [
            str(one) if is_plain else _UNKNOWN for one, is_plain in zip(values, plain, strict=True)
        ]
        if self.kind is _Kind.CHECKSUMS:
            between = [
                one if one == _UNKNOWN else f"{zlib.crc32(one.encode()):08x}" for one in texts
            ]
        else:
            measures = len(_OF_TENSORS if self.kind is _Kind.TENSORS else _OF_NUMBERS)
            empty = "unsupported" if self.kind is _Kind.TENSORS else _UNKNOWN
            between = [empty] * measures + [texts[0]] * 4 + [texts[1]] * 4
        cells: list[Cell] = [
            *titles, *kinds, *shapes, _UNKNOWN, _UNKNOWN, *between, _UNKNOWN, result, reason, _UNKNOWN,
        ]  # fmt: skip
        return [*cells, str(["-1", "-1"])] if self.kind is _Kind.TENSORS else cells


_ABSENT = object()
"""The value of an argument that one call alone was given."""


def _leaves_of(arguments: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Plain arguments as the tool numbers them: `1.0` for the first element of the second, a name for one by name."""
    for name, value in arguments.items():
        start, _, rest = name.partition(".")
        yield from _flat(rest if start in _OF_CALLS else name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _flat(f"{name}.{number}", one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _flat(f"{name}.{key}", one)
    else:
        yield name, value


def _cell(value: float) -> Cell:
    return _UNKNOWN if math.isnan(value) else value


def _of_tensors(metrics: Metrics, npu: list[float], bench: list[float]) -> list[Cell]:
    distance = 0.0 if metrics.evidence is Evidence.DIGEST else metrics.rel_l2 * bench[3]
    found = (
        metrics.cosine, distance, metrics.max_abs, metrics.max_relative, metrics.within_1e_3, metrics.within_5e_3,
    )  # fmt: skip
    return list(map(_cell, found))


def _of_numbers(metrics: Metrics, npu: list[float], bench: list[float]) -> list[Cell]:
    """Differences, and how large these are of the trusted number."""
    apart = [one - other for one, other in zip(npu, bench, strict=True)]
    shares = [_share(one, other) for one, other in zip(apart, bench, strict=True)]
    return [*map(_cell, apart), *shares]


def _share(apart: float, of: float) -> Cell:
    if math.isnan(apart):
        return _UNKNOWN
    return 0 if not apart else f"{abs(apart / of) * 100}%" if of else _UNKNOWN


def _stack(record: TensorRecord | None, names: Mapping[Place, _Named], told: set[Place]) -> str:
    """The lines of a call's stack, in the first row of the call alone."""
    if record is None:
        return _UNKNOWN
    place = (record.rank, record.step, *_place(record.site))
    known = names.get(place)
    forward = record.site.phase is Phase.FORWARD and record.role is not Role.PARAM
    if known is None or not known.stack or place in told or not forward:
        return _UNKNOWN
    told.add(place)
    return str(list(known.stack))


def _file(record: TensorRecord | None) -> str:
    """The file of another tool that a tensor lies in; -1 for none."""
    loader = None if record is None else record.content.loader
    return Path(loader.tensor.place).name if isinstance(loader, ReadLater) else "-1"


def _numbers(found: Statistics | None) -> list[float]:
    return (
        [math.nan] * 4 if found is None else [found.maximum, found.minimum, found.mean, found.norm]
    )


@click.group()
def msprobe() -> None:
    """Compare dumps by the command of mindstudio-probe."""


@msprobe.command()
@click.option(
    "-tp",
    "-t",
    "--target_path",
    type=click.Path(path_type=Path),
    required=True,
    help="The dump under test.",
)
@click.option(
    "-gp",
    "-g",
    "--golden_path",
    type=click.Path(path_type=Path),
    required=True,
    help="The trusted one.",
)
@click.option(
    "-o",
    "--output_path",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder of the table.",
)
def compare(target_path: Path, golden_path: Path, output_path: Path) -> int:
    """Write compare_result_TIME.csv, a row for each pair of tensors, and say the verdict.

    Exit code as `lockstep compare`. "Result" says of a pair what the verdict says: an origin is an error, what follows
    from it a warning, N/A what was not judged.

    \b
    lockstep msprobe compare -tp npu_dump -gp gpu_dump -o out
    """
    return compare_probes(target_path, golden_path, output_path)
