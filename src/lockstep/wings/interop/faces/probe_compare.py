"""`compare` of mindstudio-probe: its table of two dumps, or recordings, and Lockstep's verdict."""

from __future__ import annotations

import math
import time
from pathlib import Path

import click

from lockstep.core.errors import OutputExistsError
from lockstep.core.exit_codes import ExitCode, code_of
from lockstep.core.finding import Evidence, Metrics, Pair
from lockstep.core.records import Statistics, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.judge.fixed_rule import accuracy_reached
from lockstep.measure.metrics import measure
from lockstep.reading import paired_records
from lockstep.report.csv_tables import Cell, write_csv_table
from lockstep.store.reader import Recording, open_recording
from lockstep.wings.interop.faces.probe_records import ProbeRecords
from lockstep.wings.interop.faces.verdict import verdict_text

_FIRST = (
    "NPU Name",
    "Bench Name",
    "NPU Dtype",
    "Bench Dtype",
    "NPU Tensor Shape",
    "Bench Tensor Shape",
)
_OF_TENSORS = (
    "Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio",
)  # fmt: skip
_OF_NUMBERS = ("Max diff", "Min diff", "Mean diff", "L2norm diff")
_LAST = (
    "NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm", "Result",
    "Err_message",
)  # fmt: skip
_UNKNOWN = "N/A"
_RESULTS = {True: "pass", False: "error", None: _UNKNOWN}
_ENTERING = (Role.INPUT, Role.GRAD_OUTPUT)

Names = dict[tuple[str, int, str, str, int], str]
"""What calls are named, by rank, step, module, operator and number."""


def compare_probes(target: Path, golden: Path, folder: Path) -> ExitCode:
    """Write the table into a folder, `compare_result_TIME.csv`, and print the verdict.

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
    whole = all(rank.has_tensors for one in (candidate, reference) for rank in one.ranks.values())
    names = _names_in(candidate), _names_in(reference)
    rows = [_row(pair, names, whole=whole) for pair in paired_records(reference, candidate)]
    table = folder / f"compare_result_{time.strftime('%Y%m%d%H%M%S')}.csv"
    titles = (*_FIRST, *(_OF_TENSORS if whole else _OF_NUMBERS), *_LAST)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_csv_table(table, titles, rows)
    except OSError as error:
        raise OutputExistsError(
            f"{table}: cannot be written ({error.strerror or error}); give another folder"
        ) from error
    click.echo(f"{table}: {len(rows)} rows")
    sentence, _ = verdict_text(golden, target)
    click.echo(sentence)
    results = {row[-2] for row in rows}
    return code_of(
        differs="error" in results or sentence.startswith("DIVERGED"),
        looked=results <= {"pass", "error"} and bool(rows),
    )


def _names_in(recording: Recording) -> Names:
    found: Names = {}
    for rank in recording.ranks.values():
        for step in rank.steps:
            calls = rank.calls(step)
            names = ProbeRecords("mix", lambda *_: None).names(calls)
            found |= {
                (rank.name, step, *_place(call.site)): names[call.id]
                for call in calls
                if call.id in names
            }
    return found


def _place(site: Site) -> tuple[str, str, int]:
    return site.module, site.op, site.call


def _name(record: TensorRecord | None, names: Names) -> str:
    if record is None:
        return _UNKNOWN
    call = names.get(
        (record.rank, record.step, *_place(record.site)),
        f"{record.site.module}.{record.site.op}.{{}}",
    )
    phase = Phase.BACKWARD if record.site.phase is Phase.BACKWARD else Phase.FORWARD
    what = "input" if record.role in _ENTERING else "output"
    start, _, rest = record.name.partition(".")
    of_call = start in ("args", "kwargs", "result", "grad_fn")
    return f"{call.format(phase.value)}.{what}.{rest or '0' if of_call else record.name}"


def _row(pair: Pair, names: tuple[Names, Names], *, whole: bool) -> list[Cell]:
    sides = pair.candidate, pair.reference
    metrics, reason = Metrics(Evidence.NONE), "no partner"
    if pair.reference is not None and pair.candidate is not None:
        metrics = measure(pair.reference.content, pair.candidate.content, read_tensors=True)
        reason = "" if metrics.evidence is not Evidence.NONE else "no numbers of both"
    numbers = [_numbers(None if one is None else one.statistics) for one in sides]
    if whole:
        norm = numbers[1][3]
        distance = 0.0 if metrics.evidence is Evidence.DIGEST else metrics.rel_l2 * norm
        between = [
            metrics.cosine, distance, metrics.max_abs, metrics.max_relative, metrics.within_1e_3, metrics.within_5e_3,
        ]  # fmt: skip
        reached = accuracy_reached(metrics)
    else:
        between = [one - other for one, other in zip(*numbers, strict=True)]
        # Equal numbers prove no equality: of such tensors nothing is said, but where their digests are equal.
        reached = (
            True
            if metrics.evidence is Evidence.DIGEST
            else False
            if any(value for value in between if not math.isnan(value))
            else None
        )
    texts: list[Cell] = [_name(one, side) for one, side in zip(sides, names, strict=True)]
    texts += [_UNKNOWN if one is None else f"torch.{one.dtype}" for one in sides]
    texts += [_UNKNOWN if one is None else str(list(one.shape)) for one in sides]
    cells = [
        _UNKNOWN if math.isnan(value) else value for value in (*between, *numbers[0], *numbers[1])
    ]
    return [*texts, *cells, _RESULTS[reached], reason]


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

    \b
    lockstep msprobe compare -tp npu_dump -gp gpu_dump -o out
    """
    return compare_probes(target_path, golden_path, output_path)
