"""`hist`: how the elements of one tensor are spread, as text; of two recordings on the same edges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click
import numpy as np
import numpy.typing as npt

from lockstep.compare import Comparison, Finding, command_for_tensors, tensor_name, tensor_role
from lockstep.errors import UsageError
from lockstep.recordings import (
    PIECE,
    Array,
    Call,
    Recording,
    Role,
    TensorRecord,
    calls_matching,
    check_choice,
    every_call,
    is_chosen,
)
from lockstep.terminal import Column, figure, printable, table_text
from lockstep_shell import places
from lockstep_shell.places import Place
from lockstep_shell.session import SIDES, Opened, Session

_WIDTH = 30
_SHOWN = 12


@click.command("hist")
@places.argument()
@click.option("--bins", type=click.IntRange(1, 200), default=16, show_default=True, help="Bars.")
@click.pass_obj
def hist(session: Session, site: tuple[str, ...], bins: int) -> None:
    """Draw the histogram of one tensor of SITE.

    It is the first output, or what is named: `hist fc1 / torch.nn.functional.linear #0, backward, grad_input.0`.

    It takes whole tensors (`record --save tensors`); of others the numbers are told that were kept.
    """
    found, notes = _found(places.place_of(site, session), session)
    for one, record in found:
        side = f"{one.side}: " if len(found) > 1 else ""
        click.echo(
            "\n".join(map(printable, [f"{side}{_heading(record)}", f"  {_numbers(record)}"]))
        )
    drawn = [(one.side, record) for one, record in found if record.content.loader is not None]
    if drawn:
        click.echo(_drawn(drawn, bins))
    for one, record in found:
        if record.content.loader is None:
            click.echo(_why_not(one.recording, record))
    click.echo("\n".join(map(printable, notes)))


_Found = list[tuple[Opened, TensorRecord]]


def _found(place: Place, session: Session) -> tuple[_Found, list[str]]:
    """The record of each side, once both are compared that of a pair, and what is to be said of them."""
    found: _Found = []
    notes: list[str] = []
    failures: list[UsageError] = []
    for one in session.chosen():
        try:
            check_choice(one.recording, step=session.step, rank=place.rank or session.rank)
            record, others = _tensor(one.recording, place, session)
            found.append((one, record))
            notes = [f"also there: {'; '.join(others[:_SHOWN]) or 'nothing'}"]
        except UsageError as error:
            failures.append(error)
    if not found:
        raise failures[0]
    if session.kept is not None and session.side is None:
        pair = _pair(session.kept, *found[0])
        if pair is not None:
            both = zip(session.opened, (pair.pair.reference, pair.pair.candidate), strict=True)
            found = [(one, record) for one, record in both if record is not None]
            far = f"cosine {figure(pair.metrics.cosine)}, rel {figure(pair.metrics.rel_l2)}"
            return found, [f"{pair.outcome.value}: {far}; {pair.reason}", *notes]
    if len(found) > 1:
        notes.insert(0, "elements of the same spread need not be the same; `list SITE` compares")
    compared = "; once both are compared, a partner of another name is found"
    return found, [*(f"{failure}{compared}" for failure in failures), *notes]


def _pair(comparison: Comparison, one: Opened, record: TensorRecord) -> Finding | None:
    """The finding about a record."""
    for finding in comparison.findings:
        mine = dict(zip(SIDES, (finding.pair.reference, finding.pair.candidate), strict=True))
        known = mine[one.side]
        if known is not None and _key(known) == _key(record):
            return finding
    return None


def _key(record: TensorRecord) -> tuple[object, ...]:
    return record.rank, record.step, record.sequence, record.role, record.index


def _tensor(recording: Recording, place: Place, session: Session) -> tuple[TensorRecord, list[str]]:
    """The record that is asked for, the first output where none is named, and the names of the others at its call."""
    rank = place.rank or session.rank
    chosen: tuple[Call, TensorRecord] | None = None
    has_output = False
    for call in every_call(recording, step=session.step, rank=rank):
        if chosen is not None and call.step != chosen[0].step:
            break  # what a later step has is not read
        for record in call.records if is_chosen(place.pattern, call.site) else ():
            if (chosen is None or (record.role is Role.OUTPUT and not has_output)) and place.is_of(
                record
            ):
                chosen, has_output = (call, record), record.role is Role.OUTPUT
    if chosen is None:
        calls = calls_matching(recording, place.pattern, step=session.step, rank=rank)
        known = dict.fromkeys(_name(record) for call in calls for record in call.records)
        wanted = ", ".join(filter(None, (place.phase, place.tensor)))
        names = "; ".join(list(known)[:_SHOWN]) or "none"
        raise UsageError(f"{recording.path}: {place.pattern} has no {wanted}; it has {names}")
    return chosen[1], [_name(one) for one in chosen[0].records if one is not chosen[1]]


def _name(record: TensorRecord) -> str:
    return f"{record.site.phase.value}, {tensor_role(record)}"


def _heading(record: TensorRecord) -> str:
    where = f"{record.rank} step {record.step}: {tensor_name(record)}"
    return f"{where}, {record.dtype}{list(record.shape)}"


def _numbers(record: TensorRecord) -> str:
    """What is known of a tensor without reading it."""
    known = record.statistics
    if known is None:
        return record.content.note or "no numbers were kept"
    numbers = {"min": known.minimum, "max": known.maximum, "mean": known.mean, "norm": known.norm}
    counts = {"NaN": known.nan_count, "infinite": known.inf_count, "zero": known.zero_count}
    words = [f"{name} {figure(value)}" for name, value in numbers.items()]
    return ", ".join([*words, *(f"{count} {name}" for name, count in counts.items() if count)])


def _why_not(recording: Recording, record: TensorRecord) -> str:
    kept = "statistics" if record.content.sketch_loader is None else "statistics and a sketch"
    call = str(record.site).rpartition(", ")[0]
    calls = calls_matching(recording, call, step=record.step, rank=record.rank)
    command = printable(command_for_tensors(recording, calls))
    return f"no histogram: of this tensor {kept} were kept; whole tensors are recorded with\n  {command}"


@dataclass(frozen=True, slots=True)
class _Spread:
    """How many elements are in each bin, and how many are not finite."""

    counts: npt.NDArray[np.int64]
    not_finite: int


def _drawn(records: list[tuple[str, TensorRecord]], bins: int) -> str:
    ends = [end for _, record in records for part in _parts(record) for end in _ends(part)]
    if not ends:
        return "no element is finite" if any(r.content.numel for _, r in records) else "no elements"
    low, high = min(ends), max(ends)
    along = np.linspace(0, 1, bins + 1 if high > low else 2)
    edges = low * (1 - along) + high * along  # high - low may be more than a double holds
    edges[-1] = high
    spreads = [_spread(record, edges) for _, record in records]
    most = max(1, *(int(spread.counts.max()) for spread in spreads))
    rows = [
        [figure(edges[at]), figure(edges[at + 1])]
        + [cell for one in spreads for cell in (one.counts[at], _bar(int(one.counts[at]), most))]
        for at in range(len(edges) - 1)
    ]
    titles = [side if len(records) > 1 else "" for side, _ in records]
    columns = [Column("from", right=True), Column("to", right=True)]
    for title in titles:
        columns += [Column("count", right=True), Column(title, least=_WIDTH)]
    lost = [f"{one.not_finite} not finite" for one in spreads if one.not_finite]
    return "\n".join([table_text(columns, rows), *lost])


def _bar(count: int, most: int) -> str:
    """A bar; what there is any of has one sign at least."""
    return "#" * -(-count * _WIDTH // most)


def _spread(record: TensorRecord, edges: npt.NDArray[np.float64]) -> _Spread:
    counts, not_finite = np.zeros(len(edges) - 1, np.int64), 0
    for part in _parts(record):
        finite = part[np.isfinite(part)]
        counts += np.histogram(finite, bins=edges)[0]
        not_finite += part.size - finite.size
    return _Spread(counts, not_finite)


def _ends(part: Array) -> list[float]:
    finite = part[np.isfinite(part)]
    return [float(finite.min()), float(finite.max())] if finite.size else []


def _parts(record: TensorRecord) -> Iterator[npt.NDArray[np.float64]]:
    """The elements in double precision, complex ones by magnitude, so many at a time."""
    opened = record.content.opened()
    size = record.content.numel
    flat = opened.reshape(-1) if isinstance(opened, np.ndarray) else None
    for start in range(0, size, 32 * PIECE):
        stop = min(start + 32 * PIECE, size)
        if flat is not None:
            part = flat[start:stop]
        else:
            part = opened.part(start, stop)  # type: ignore[union-attr]
        yield (np.abs(part) if part.dtype.kind == "c" else part).astype(np.float64)
        if flat is None:
            opened.release(start, stop)  # type: ignore[union-attr]
