"""Read the tables of one rank: every file is checked first, and chunks are found by their content.

A damaged, foreign or hostile file ends in one `CorruptError`. What a reader looks up again and again, the numbers of
calls and contents, is read once for all chunks; the rest of a chunk when something in it is asked for.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import BinaryIO, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from lockstep.core.errors import PUT_BACK, CorruptError
from lockstep.core.progress import CountedProgress
from lockstep.core.site import CallKind
from lockstep.store import schema
from lockstep.store.integrity import Files, check_tree, checked_tables
from lockstep.store.limits import Quota, check_table

_CHUNK = re.compile(r"(calls|contents|records)-(\d{5,})\.parquet")

Numbers = npt.NDArray[np.int64]
Kept = TypeVar("Kept")


class Chunks:
    """The chunked tables of one rank.

    directory: The rank's directory.
    files: What its files are held against.
    closed: Whether the recording was closed; else its last chunk may be half written.
    """

    def __init__(self, directory: Path, files: Files, *, closed: bool) -> None:
        self.directory, self.files = directory, files
        self._closed = closed
        self._quota = Quota()

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Chunks that count, in order of time: those whose records are there.

        Raises CorruptError if the records of a chunk are gone, which are written last, and something came after them.
        """
        found = [_CHUNK.fullmatch(entry.name) for entry in self.directory.iterdir()]
        every = {int(one[2]) for one in found if one}
        whole = {int(one[2]) for one in found if one and one[1] == "records"}
        last = -1 if self._closed else max(every, default=-1)
        for number in sorted(every - whole - {last}):
            raise CorruptError(
                self.directory / schema.chunk_name("records", number),
                "was written and is gone",
                advice=PUT_BACK,
            )
        return tuple(sorted(whole))

    def first(self, table: str, numbers: Sequence[int], size_bytes: int) -> Sequence[int]:
        """Those of these chunks that come first and are together no larger on disk; at least one."""
        for count, number in enumerate(numbers):
            path = self.directory / schema.chunk_name(table, number)
            size_bytes -= path.stat().st_size if path.exists() else 0
            if size_bytes < 0:
                return numbers[: max(1, count)]
        return numbers[:]

    def many(self, table: str, numbers: Sequence[int], columns: pl.Schema) -> list[pl.DataFrame]:
        """The same of several chunks; sound ones are read together, which takes a tenth of the time.

        Raises CorruptError if one of the files was changed, is damaged or lacks a column.
        """
        paths = [self.directory / schema.chunk_name(table, number) for number in numbers]
        for path in paths:
            self.files.check(path)
            self._quota.take(table, path)
        found = _read_together(paths, columns) or [_read_alone(path, columns) for path in paths]
        return checked_tables(paths, found)


class LatestChunks(Generic[Kept]):
    """The chunks of one table that were asked for lately; those that are missing are read together.

    chunks: The rank's tables.
    table, columns: Which of them, and what of it.
    made: Makes what is kept of the rows of one chunk.
    most_rows: How many rows are kept at most, if more than those that are read together.
    """

    def __init__(
        self,
        chunks: Chunks,
        table: str,
        columns: pl.Schema,
        made: Callable[[pl.DataFrame], Kept],
        most_rows: int,
    ) -> None:
        self._chunks, self._table, self._columns = chunks, table, columns
        self._made, self._most_rows = made, most_rows
        self._latest: dict[int, tuple[Kept, int]] = {}
        self._asked: tuple[set[int], set[int]] = (set(), set())

    def of(self, numbers: Sequence[int]) -> Iterator[Kept]:
        """The chunks of a step, one after the other; they are kept until the second step after it.

        Raises CorruptError if one of the files is damaged or lacks a column.
        """
        self._asked = (self._asked[1], set(numbers))
        waiting = list(numbers)
        while waiting:
            some = self._chunks.first(self._table, waiting, _BYTES_AT_ONCE)
            del waiting[: len(some)]
            yield from self._some(some)

    def one(self, number: int) -> Kept:
        """Return one chunk of the requested part."""
        self._asked[1].add(number)
        known = self._latest.get(number)
        return self._some([number])[0] if known is None else known[0]

    def _some(self, numbers: Sequence[int]) -> list[Kept]:
        missing = [number for number in numbers if number not in self._latest]
        read = self._chunks.many(self._table, missing, self._columns) if missing else []
        new = {
            number: (self._made(frame), frame.height)
            for number, frame in zip(missing, read, strict=True)
        }
        found = [new[number] if number in new else self._latest.pop(number) for number in numbers]
        if new:
            self._forget()
        self._latest.update(zip(numbers, found, strict=True))  # those asked for last stand last
        return [kept for kept, _ in found]

    def _forget(self) -> None:
        """Let go of what is of no step lately asked for, and of the oldest where there are too many rows."""
        rows = 0
        for number, (_, height) in reversed(list(self._latest.items())):
            rows += height
            if rows > self._most_rows or number not in self._asked[0] | self._asked[1]:
                del self._latest[number]


_BYTES_AT_ONCE = 32 << 20
"""Size of files that are read together: full chunks of sketches take 8 MB each, those of whole tensors far less."""


class Index:
    """Which calls each step has, which chunks hold their records, and where each content lies.

    chunks: The tables.
    progress: Told how many files are read, of how many.

    calls: One row per call, in the order of the files, but for bodies of custom functions; columns as in
        `schema.CALLS`.
    steps: Recorded step numbers.
    record_count, content_count: Number of tensor records, and of distinct contents.
    has_tensors: Whether a tensor was saved whole.
    has_bodies: Whether a custom function was seen to call something.
    """

    def __init__(self, chunks: Chunks, progress: CountedProgress | None = None) -> None:
        read = _Reader(chunks, progress)
        every, _ = read("calls", schema.CALLS)
        step, call_id = (every[name].to_numpy() for name in ("step", "call_id"))
        check_tree(chunks.directory, call_id, every["parent"].to_numpy())
        is_body = pl.col("kind") == CallKind.FUNCTION_BODY.value
        self.calls, self._bodies = every.filter(~is_body), every.filter(is_body)
        self.has_bodies = self._bodies.height > 0
        of_call = self.calls["step"].to_numpy()
        self._order = np.lexsort((self.calls["call_id"].to_numpy(), of_call))
        self._step_of_row = of_call[self._order]
        self.steps = tuple(np.unique(step).tolist())
        records, chunk = read("records", _columns(schema.RECORDS, "call_id"))
        self.record_count = records.height
        self._record_chunks: dict[int, list[int]] = {}
        for number, place in _steps_and_chunks(records["call_id"].to_numpy(), chunk, call_id, step):
            self._record_chunks.setdefault(number, []).append(place)
        contents, chunk = read("contents", _columns(schema.CONTENTS, "content", "shard"))
        self.has_tensors = contents["shard"].null_count() < contents.height
        self._contents = _Places(contents["content"].to_numpy(), chunk)
        self.content_count = contents.height

    def calls_of(self, step: int) -> pl.DataFrame:
        """Rows of one step's calls, by number."""
        start, stop = np.searchsorted(self._step_of_row, (step, step + 1))
        return self.calls[self._order[start:stop]]

    def bodies_of(self, step: int) -> pl.DataFrame:
        """Rows of what one step's custom functions call, by number."""
        return self._bodies.filter(pl.col("step") == step).sort("call_id")

    def record_chunks(self, step: int) -> Sequence[int]:
        """Chunks that hold records of a step's calls."""
        return self._record_chunks.get(step, ())

    def places(self, contents: Collection[int]) -> dict[int, tuple[list[int], list[int]]]:
        """Content numbers with their rows in the file, by chunk; those that are nowhere are left out."""
        return self._contents.of(np.fromiter(contents, np.int64, len(contents)))


class _Reader:
    """Reads one table after the other, many files at once, and tells how far it has come."""

    def __init__(self, chunks: Chunks, progress: CountedProgress | None) -> None:
        self._chunks, self._progress = chunks, progress
        self._done = 0

    def __call__(self, table: str, columns: pl.Schema) -> tuple[pl.DataFrame, Numbers]:
        """Columns of all chunks, and for each row the number of its chunk."""
        numbers = self._chunks.numbers
        frames: list[pl.DataFrame] = [pl.DataFrame(schema=columns)]
        for start in range(0, len(numbers), _FILES_AT_ONCE):
            some = numbers[start : start + _FILES_AT_ONCE]
            if self._progress is not None:
                self._progress(self._done, _TABLES * len(numbers))
            frames.extend(self._chunks.many(table, some, columns))
            self._done += len(some)
        rows = [frame.height for frame in frames[1:]]
        return pl.concat(frames, rechunk=True), np.repeat(np.asarray(numbers, np.int64), rows)


_TABLES = 3
_FILES_AT_ONCE = 64


class _Places:
    """Where contents lie: chunk and row by content number; of two rows the later one counts."""

    def __init__(self, numbers: Numbers, chunks: Numbers) -> None:
        order = np.argsort(numbers, kind="stable")
        first = np.searchsorted(chunks, chunks)  # chunks are numbered in the order of their rows
        self._numbers = numbers[order]
        self._rows = (np.arange(len(numbers)) - first)[order]
        self._chunks = chunks[order]

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, wanted: Numbers) -> dict[int, tuple[list[int], list[int]]]:
        """Numbers and rows by chunk."""
        if not len(self):
            return {}
        at = np.searchsorted(self._numbers, wanted, side="right") - 1
        found = self._numbers[at] == wanted
        at, wanted = at[found], wanted[found]
        chunks = self._chunks[at]
        return {
            int(chunk): (wanted[chunks == chunk].tolist(), self._rows[at[chunks == chunk]].tolist())
            for chunk in np.unique(chunks)
        }


def _steps_and_chunks(
    of_record: Numbers, chunk: Numbers, call_id: Numbers, step: Numbers
) -> list[tuple[int, int]]:
    """Steps with the chunks that hold records of their calls, each once, in order.

    of_record, chunk: Call number and chunk of every record.
    call_id, step: Number and step of every call.
    """
    if not len(call_id):
        return []
    by_id = np.argsort(call_id, kind="stable")
    at = np.searchsorted(call_id[by_id], of_record, side="right") - 1
    found = call_id[by_id][at] == of_record  # a record whose call was never written has no step
    steps, places = step[by_id][at[found]], chunk[found]
    # Records lie in order of time, so equal neighbours are dropped before anything is sorted.
    changes = np.ones(len(steps), np.bool_)
    changes[1:] = (steps[1:] != steps[:-1]) | (places[1:] != places[:-1])
    return sorted(set(zip(steps[changes].tolist(), places[changes].tolist(), strict=True)))


def _columns(table: pl.Schema, *names: str) -> pl.Schema:
    return pl.Schema({name: table[name] for name in names})


def read_table(path: Path, columns: pl.Schema) -> pl.DataFrame:
    """These columns of one Parquet file, with these types.

    Raises CorruptError if the file is damaged or too large, lacks a column, or has gaps where there may be none.
    """
    check_table(path)
    return checked_tables([path], [_read_alone(path, columns)])[0]


def _read_alone(path: Path, columns: pl.Schema) -> pl.DataFrame:
    frame = _read_parquet(path, columns)
    missing = [name for name in schema.ADDED if name in columns and name not in frame.columns]
    if missing:
        frame = frame.with_columns(pl.lit(schema.ADDED[name]).alias(name) for name in missing)
    absent = [name for name in columns if name not in frame.columns]
    if absent:
        raise CorruptError(path, f"lacks the column {absent[0]!r}")
    if frame.schema != columns:
        frame = _converted(path, frame, columns)
    for name in columns:
        if name not in schema.NULLABLE and frame[name].has_nulls():
            raise CorruptError(path, f"the column {name!r} has gaps")
    return frame


def _read_together(paths: Sequence[Path], columns: pl.Schema) -> list[pl.DataFrame] | None:
    """Columns of several files, one frame each; None where anything is odd, for a reader that says what."""
    names = [str(path) for path in paths]
    try:
        with unprinted_panics():
            frame = pl.read_parquet(
                names,
                columns=[*columns, _PATH],
                glob=False,
                hive_partitioning=False,
                include_file_paths=_PATH,
            )
    except Exception:
        return None
    except BaseException as error:  # polars raises PanicException, no Exception, on some files
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return None
    runs = frame.drop_in_place(_PATH).rle().to_list()
    if frame.schema != columns or any(
        frame[name].has_nulls() for name in columns if name not in schema.NULLABLE
    ):
        return None
    heights = {run["value"]: run["len"] for run in runs}
    if not heights.keys() <= set(names) or sum(heights.values()) != frame.height:
        return None
    ends = np.cumsum([heights.get(name, 0) for name in names]).tolist()
    return [frame[end - heights.get(name, 0) : end] for name, end in zip(names, ends, strict=True)]


_PATH = "file of this row"


def _converted(path: Path, frame: pl.DataFrame, columns: pl.Schema) -> pl.DataFrame:
    try:
        return frame.select(pl.col(name).cast(kind, strict=True) for name, kind in columns.items())
    except pl.exceptions.PolarsError as error:
        raise CorruptError(path, "a column has a wrong type") from error


def _read_parquet(path: Path, columns: pl.Schema) -> pl.DataFrame:
    try:
        with (
            path.open("rb") as file,
            unprinted_panics(),
        ):  # a path would be taken for a pattern where it holds a * or [
            return _chosen(file, columns)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptError(path, f"cannot be read as Parquet ({reason})") from error
    except (
        BaseException
    ) as error:  # polars raises PanicException, no Exception, on some damaged files
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise CorruptError(path, "cannot be read as Parquet") from error


def _chosen(file: BinaryIO, columns: pl.Schema) -> pl.DataFrame:
    try:
        return pl.read_parquet(file, columns=list(columns))
    except pl.exceptions.ColumnNotFoundError:
        file.seek(0)
        return pl.read_parquet(file)  # an older build's table, or a damaged one


_STANDARD_ERROR = 2
_LOCK = RLock()
"""There is one standard error for all threads."""


@contextmanager
def unprinted_panics() -> Iterator[None]:
    """Hold back the output on standard error, and print it afterwards unless a panic was raised.

    What other threads print meanwhile comes a moment later; in a panic it goes down with the library's.
    """
    with _LOCK, ExitStack() as stack:
        held = _redirected(stack)
        try:
            yield
        except BaseException as error:  # a panic is no Exception
            if isinstance(error, (Exception, KeyboardInterrupt, SystemExit)):
                _pass_on(held)
            raise
        _pass_on(held)


def _redirected(stack: ExitStack) -> tuple[BinaryIO, int] | None:
    """A file in the place of standard error until the end, and where that is meanwhile; None where it cannot be."""
    with suppress(OSError):
        file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        real = os.dup(_STANDARD_ERROR)
        stack.callback(os.close, real)
        stack.callback(os.dup2, real, _STANDARD_ERROR)
        os.dup2(file.fileno(), _STANDARD_ERROR)
        return file, real
    return None


def _pass_on(held: tuple[BinaryIO, int] | None) -> None:
    if held is None:
        return
    file, real = held
    file.seek(0)
    if text := file.read():
        os.write(real, text)
