"""Open a recording: typed records, tables and tensors. Nothing in it is executed.

Everything is read lazily and checked on the way in: a damaged, foreign or hostile file ends in one `RecordingError`.
"""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from lockstep.core.arguments import path_of
from lockstep.core.errors import (
    NotARecordingError,
    RecordingError,
    UsageError,
)
from lockstep.core.manifest import (
    BY_TOKENS,
    LEFT_OUT,
    OTHER_TRAININGS,
    PART,
    PUT_TOGETHER,
)
from lockstep.core.progress import CountedProgress
from lockstep.core.records import Call, Frame, TensorRecord
from lockstep.core.site import CallKind
from lockstep.core.states import HeldSetting, LaterLoss, StateRecord
from lockstep.store import later_tensors, schema
from lockstep.store.call_decoder import CallDecoder, frames_in
from lockstep.store.integrity import GROWING, Files
from lockstep.store.limits import check_directory
from lockstep.store.manifest_files import (
    RANK,
    absent_ranks,
    rank_order,
    read_rank_manifest,
    read_run_manifest,
)
from lockstep.store.record_columns import record_rows
from lockstep.store.state_tables import held_settings_in, losses_in, states_in
from lockstep.store.stored_contents import StoredContents
from lockstep.store.tables import Chunks, Index, LatestChunks, read_table
from lockstep.store.urls import UrlPath, url_of


def open_recording(
    path: str | os.PathLike[str],
    *,
    read_sketches: bool = True,
    form: str = "",
    ranks: Collection[str] | None = None,
) -> Recording:
    """Open a recording directory for reading, or a different tool's files that a plug-in reads (`lockstep_readers`).

    Parameters
    ----------
    path
        The directory, or that tool's file; or a URL of object storage, from which it is fetched into a cache.
    read_sketches
        Whether sketches are read; without them it is as if recorded with `--save stats`, tensors that were saved
        whole apart.
    form
        The form in which another tool wrote it, by its name, or `NAME:TEXT` where TEXT says how its names are built;
        "" to look which. A recording of Lockstep's own is none.
    ranks
        Open these alone, by the names of their directories; None for all.

    Raises
    ------
    UsageError
        If it is no path at all, or there is no such form.
    NotARecordingError
        If the path is missing, empty or not a recording.
    VersionError
        If a newer Lockstep wrote it.
    CorruptError
        If a file is damaged.
    StorageError
        If object storage cannot be read.

    Examples
    --------
    >>> recording = open_recording("ref")                                               # doctest: +SKIP
    >>> recording.ranks["rank0"].calls(step=0)[0].site                                  # doctest: +SKIP
    """
    given = path_of("path", path)
    if url := url_of(given):
        from lockstep.store.storage import cached

        recording = Recording(cached(url), read_sketches=read_sketches, ranks=ranks)
        recording.path = recording.new_beside = UrlPath(given)
        return recording
    try:
        return Recording(given, read_sketches=read_sketches, ranks=ranks)
    except NotARecordingError as error:
        from lockstep.store.other_tools import recording_of, to_be_read  # loads the writer

        made = recording_of(given, form)
        if made is None:
            raise to_be_read(error, given) from None
        recording = Recording(made, read_sketches=read_sketches, ranks=ranks)
        recording.path = given
        return recording


def _framework_of(rank: RankRecording) -> str:
    """The framework other than PyTorch that trained in a process; "" for none."""
    packages = rank.manifest.packages
    return next(iter(packages)) if packages and "torch" not in packages else ""


class Recording:
    """A recording: a manifest, and per rank the calls with their tensor records.

    Attributes
    ----------
    path, manifest
        Its directory, and the facts of its run.
    new_beside
        The path beside which, with its name at first, a recording of the same training is put; `path` itself unless
        it lies inside of something that is kept as a whole.
    ranks
        By directory name: `rank0`, `rank1` ...; a second process of the same rank is `rank0-1`.
    is_of_another_tool
        Whether another tool wrote the files: Lockstep knows no command that makes it.
    put_together_of
        The recording of several ranks that this one of a single rank was made of; None for one that was recorded so.
    """

    def __init__(
        self, path: Path, *, read_sketches: bool = True, ranks: Collection[str] | None = None
    ) -> None:
        self.path = self.new_beside = path
        self.put_together_of: Recording | None = None
        self.manifest = read_run_manifest(path)
        self.is_of_another_tool = any(
            gap.what in (LEFT_OUT, PUT_TOGETHER) for gap in self.manifest.not_seen
        )
        names = sorted(
            (
                entry.name
                for entry in path.iterdir()
                if RANK.fullmatch(entry.name) and (ranks is None or entry.name in ranks)
            ),
            key=rank_order,
        )
        for name in names:
            check_directory(path / name)
        self.ranks: dict[str, RankRecording] = {}
        for name in names:
            before = next(reversed(self.ranks.values()), None)
            self.ranks[name] = RankRecording(path / name, read_sketches=read_sketches)
            if before is not None:
                self.ranks[name].hold_once(before)

    def __repr__(self) -> str:
        return f"Recording({str(self.path)!r}, ranks={list(self.ranks)})"

    def _repr_html_(self) -> str:
        """A small table in a notebook, once `lockstep.report` is loaded: see `show_recordings_as`."""
        return _shown_by(self)

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """Sentences about missing parts: a run that was cut short, or nothing recorded at all."""
        if not self.ranks:
            part = [gap.reason for gap in self.manifest.not_seen if gap.what == PART]
            nothing = "no process of the command reached a training step, so nothing was recorded"
            return (f"{PART}: {part[0]}",) if part else (nothing,)
        sentences = [sentence for rank in self.ranks.values() for sentence in rank.missing]
        sentences.extend(f"{gap.what}: {gap.reason}" for gap in self.manifest.not_seen)
        if not self.manifest.options.ranks:
            world_size = max(rank.manifest.world_size for rank in self.ranks.values())
            sentences.extend(absent_ranks(self.ranks, world_size))
        return tuple(sentences)

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Words about trainings of the command that were not recorded, though nobody asked to leave them out."""
        if self.put_together_of is not None:
            by_tokens = any(gap.what == BY_TOKENS for gap in self.manifest.not_seen)
            return (*self.put_together_of.unrecorded, *([BY_TOKENS] if by_tokens else []))
        ranks = self.ranks.values()
        found = [
            gap.what
            for rank in ranks
            for gap in rank.manifest.not_seen
            if gap.what == OTHER_TRAININGS or (_framework_of(rank) and not self.is_of_another_tool)
        ]
        found.extend(gap.what for gap in self.manifest.not_seen)
        world_size = max((rank.manifest.world_size for rank in ranks), default=0)
        if not self.manifest.options.ranks and any(absent_ranks(self.ranks, world_size)):
            found.append(f"some of {world_size} ranks")
        return tuple(dict.fromkeys(found))

    @property
    def has_whole_calls(self) -> bool:
        """Whether tensors of calls were saved whole, inputs and results: not those alone that no call makes."""
        saved = any(rank.has_tensors for rank in self.ranks.values())
        return saved and self.manifest.options.save != "program"

    @property
    def other_framework(self) -> str:
        """The framework that trained where that is not PyTorch: no operator of it can be run again; "" else."""
        return next(filter(None, map(_framework_of, self.ranks.values())), "")

    def check_can_run_again(self) -> None:
        """Check that operators of this recording can be run again.

        Raises
        ------
        UsageError
            If they are those of another framework than PyTorch.
        """
        if self.other_framework:
            raise UsageError(
                f"{self.path}: a training of {self.other_framework}, and Lockstep can run operators of PyTorch alone"
                " again; compare it, or look at it with lockstep show"
            )

    def close_tensors(self) -> None:
        """Close the files of whole tensors; each is opened again when one of its tensors is read."""
        for rank in self.ranks.values():
            rank.close_tensors()

    def records(self) -> Iterator[TensorRecord]:
        """All tensor records, rank by rank, step by step, in order of time."""
        for rank in self.ranks.values():
            for step in rank.steps:
                for call in rank.calls(step):
                    yield from call.records


def _name_alone(recording: Recording) -> str:
    return f"<pre>{html.escape(repr(recording))}</pre>"


_shown_by: Callable[[Recording], str] = _name_alone


def show_recordings_as(html_of: Callable[[Recording], str]) -> None:
    """Register the function that draws a recording in a notebook; this package knows no HTML."""
    global _shown_by
    _shown_by = html_of


class RankRecording:
    """One training process's part of a recording.

    Steps are read one at a time: the rows kept from step to step do not hold tensors' contents, and grow by some
    hundred bytes a call.

    Attributes
    ----------
    path, name, manifest
        Its directory, its name, and the facts of its run.
    is_closed
        Whether the recording came to its end, rather than being cut off with the process.
    """

    def __init__(self, path: Path, *, read_sketches: bool = True) -> None:
        self.path = path
        self.name = path.name
        self.manifest = read_rank_manifest(path)
        self.is_closed = self.manifest.state == "complete"
        self._files = Files(path, self._listed())
        self._chunks = Chunks(path, self._files, closed=self.is_closed)
        sketched = read_sketches and self.manifest.schema >= schema.SKETCHES_SINCE
        self._sketched = sketched
        self._contents = StoredContents(self._chunks, with_sketches=sketched)
        self._records = LatestChunks(
            self._chunks, "records", schema.RECORDS, lambda frame: frame, _MOST_ROWS
        )
        self._index: Index | None = None
        self._stood_for: RankRecording | None = None

    def _listed(self) -> dict[str, str]:
        """Files by length and digest, as far as they do not change any more."""
        listed = self.manifest.files.items()
        return {name: mark for name, mark in listed if self.is_closed or name not in GROWING}

    @property
    def missing(self) -> tuple[str, ...]:
        """Return sentences about the parts that this rank lacks."""
        sentences = []
        if self.manifest.stopped_because:
            sentences.append(
                f"{self.name}: recording stopped early: {self.manifest.stopped_because}"
            )
        elif not self.is_closed:
            sentences.append(f"{self.name}: the run was cut off before the recording was closed")
        if self.manifest.schema < schema.SKETCHES_SINCE:
            sentences.append(
                f"{self.name}: its sketches are those of schema version {self.manifest.schema}, which cannot be"
                " compared with today's, so statistics have to do; record again for estimated distances"
            )
        elif self.manifest.schema < schema.DIGESTS_SINCE:
            sentences.append(
                f"{self.name}: its digests of long tensors are those of schema version {self.manifest.schema}, which"
                " tell nothing beside today's, so numbers have to do; record again for bitwise equality"
            )
        sentences.extend(
            f"{self.name}: {gap.what} are not recorded: {gap.reason}"
            for gap in self.manifest.not_seen
            if gap.what == OTHER_TRAININGS
        )
        done = {step.index for step in self.manifest.steps if step.complete}
        by = f" by {self.manifest.ended_by}" if self.manifest.ended_by else ""
        sentences.extend(
            f"{self.name}: step {step} is incomplete, it holds what was flushed before the end{by}"
            for step in self.steps
            if step not in done
        )
        return tuple(sentences)

    def index(self, progress: CountedProgress | None = None) -> Index:
        """Read the index of chunks once; `progress` gets the number of files read, and of all."""
        if self._index is None:
            self._index = Index(self._chunks, progress)
        return self._index

    @property
    def steps(self) -> tuple[int, ...]:
        """Recorded step numbers, complete or not."""
        return self.index().steps if self._stood_for is None else self._stood_for.steps

    @property
    def complete_steps(self) -> tuple[int, ...]:
        """Numbers of the steps that were recorded to their end."""
        done = {step.index for step in self.manifest.steps if step.complete}
        return tuple(step for step in self.steps if step in done)

    @property
    def call_table(self) -> pl.DataFrame:
        """One row per call; columns as in `lockstep.store.schema.CALLS`."""
        return self.index().calls

    @property
    def record_count(self) -> int:
        """Number of tensor records."""
        return self.index().record_count

    @property
    def content_count(self) -> int:
        """Number of distinct tensor contents."""
        return self.index().content_count

    @property
    def has_tensors(self) -> bool:
        """Whether a tensor was saved whole."""
        if self._stood_for is not None:
            return self._stood_for.has_tensors
        listed = self.manifest.files if self.is_closed else {}
        if listed and not any(name.startswith(_SHARDS) for name in listed):
            return bool(later_tensors.kept(self.path))
        return self.index().has_tensors or bool(later_tensors.kept(self.path))

    @cached_property
    def module_table(self) -> pl.DataFrame:
        """One row per module of the module tree."""
        path = self.path / "modules.parquet"
        if not path.exists():
            return pl.DataFrame(schema=schema.MODULES)
        self._files.check(path)
        return read_table(path, schema.MODULES)

    @cached_property
    def states(self) -> tuple[StateRecord, ...]:
        """Parameters, buffers and optimizer state at the first and last recorded step, and at the end, where kept.

        Raises
        ------
        CorruptError
            If a row makes no sense.
        """
        return tuple(self.read_states(with_sketches=self._sketched))

    def read_states(self, *, with_sketches: bool) -> Iterator[StateRecord]:
        """Read the same, of which nothing is kept.

        Raises
        ------
        CorruptError
            If a row makes no sense.
        """
        for name in (schema.STATES_FILE, schema.END_FILE):
            if (table := self._table(name, schema.STATES)) is not None:
                yield from states_in(self.path / name, table, with_sketches=with_sketches)

    @cached_property
    def held(self) -> tuple[StateRecord, ...]:
        """Tensors that variables of the script led to at the end, where kept; `name` is the path to each.

        Raises
        ------
        CorruptError
            If a row makes no sense.
        """
        table = self._table(schema.HELD_FILE, schema.STATES)
        path = self.path / schema.HELD_FILE
        return () if table is None else tuple(states_in(path, table, with_sketches=self._sketched))

    @cached_property
    def held_settings(self) -> tuple[HeldSetting, ...] | None:
        """Numbers and modes that variables of the script led to at the end; None where nothing of the kind was kept.

        Raises
        ------
        CorruptError
            If a row makes no sense.
        """
        table = self._table(schema.HELD_SETTINGS_FILE, schema.HELD_SETTINGS)
        path = self.path / schema.HELD_SETTINGS_FILE
        return None if table is None else tuple(held_settings_in(path, table))

    @cached_property
    def losses(self) -> tuple[LaterLoss, ...]:
        """The losses after the recorded steps, in order of time."""
        return self.read_losses()

    def read_losses(self) -> tuple[LaterLoss, ...]:
        """Read the same, of which nothing is kept."""
        table = self._table(schema.LOSSES_FILE, schema.LOSSES)
        return () if table is None else losses_in(table)

    @cached_property
    def source_lines(self) -> dict[str, dict[int, str]]:
        """Lines of source around those that stacks name, by file and number; {} where none were kept."""
        table = self._table(schema.SOURCES_FILE, schema.SOURCES)
        found: dict[str, dict[int, str]] = {}
        for file, line, text in () if table is None else table.iter_rows():
            found.setdefault(file, {})[line] = text
        return found

    def _table(self, name: str, columns: pl.Schema) -> pl.DataFrame | None:
        """A table that not every recording has; one that its manifest does not list is none of it."""
        if name not in self.manifest.files:
            return None
        self._files.check(self.path / name)
        return read_table(self.path / name, columns)

    def calls(self, step: int, *, kind: CallKind | None = None) -> list[Call]:
        """All calls of one step, or those of one kind, with their records, in order of time.

        Raises
        ------
        CorruptError
            If a row points at something that is not there.
        """
        rows = self.index().calls_of(step)
        if kind is not None:
            rows = rows.filter(pl.col("kind") == kind.value)
        if self.index().has_bodies:
            inside = pl.col("parent").is_in(rows["call_id"].implode())
            rows = pl.concat([rows, self.index().bodies_of(step).filter(inside)])
        records = self._records_of(step, rows)
        numbers = {*records["content"].to_list(), *rows["random_state"].to_list()}
        contents = self._contents.of(self.index().places(numbers))
        decoder = CallDecoder(self.path, self.name, step, self.stacks, contents)
        return decoder.calls(rows, records)

    def record_rows(self, calls: pl.DataFrame, columns: Collection[str]) -> pl.DataFrame:
        """Records of some rows of `call_table`, in order of time, with `call_id` and these columns; no other is read.

        Columns are those of `RECORDS` and `CONTENTS` in `lockstep.store.schema`.

        Raises
        ------
        CorruptError
            If a row points at something that is not there.
        """
        return record_rows(self._chunks, self.index(), calls, columns)

    def check_files(self) -> None:
        """Compare every listed file with its digest.

        Raises
        ------
        CorruptError
            If one was changed after it was written.
        """
        for name in self._files.unchecked:
            self._files.check(self.path / name)

    def is_equal_by_files(self, other: RankRecording) -> bool:
        """Return whether two closed ranks recorded the same, by the digests of their files, which are taken anew.

        Sources count by what the manifest lists: no comparison depends on them.

        Raises
        ------
        CorruptError
            If a file was changed after it was written.
        """
        from lockstep.store.equal_files import are_alike, holds_only_listed  # for many ranks alone

        sides = (self, other)
        if not are_alike(self.manifest, other.manifest):
            return False
        if not all(holds_only_listed(one.path, one.manifest) for one in sides):
            return False
        for one in sides:
            for name in one._files.unchecked:
                if name != schema.SOURCES_FILE:
                    one._files.check(one.path / name)
        return True

    def digest_of_tables(self) -> str:
        """Return what tells the layout of the tensors from another one, see `lockstep.store.equal_files`.

        Raises
        ------
        CorruptError
            If a table is damaged.
        """
        from lockstep.store.equal_files import digest_of_tables

        return digest_of_tables(self.path, self.manifest, self._chunks)

    def anew(self) -> RankRecording:
        """Return the same rank, of which nothing was read yet."""
        return RankRecording(self.path, read_sketches=self._sketched)

    def stands_as(self, other: RankRecording) -> None:
        """Take from a rank of the same layout which steps there are, and whether tensors were saved whole.

        What both manifests tell alike is held once.
        """
        self._stood_for = other
        self.hold_once(other)

    def hold_once(self, other: RankRecording) -> None:
        """Hold values of the manifest that are equal to another rank's in memory once."""
        for one in dataclasses.fields(self.manifest):
            if (value := getattr(other.manifest, one.name)) == getattr(self.manifest, one.name):
                setattr(self.manifest, one.name, value)

    def check_tensors(self) -> None:
        """Hold the files of whole tensors of the steps that were read against their digests, each once.

        Two equal digests of tensors need no look at the tensors; this shows that they are still as recorded.

        Raises
        ------
        CorruptError
            If one was changed after it was written.
        """
        self._contents.check_tensors()

    def close_tensors(self) -> None:
        """Close the files of whole tensors; each is opened again when one of its tensors is read."""
        self._contents.close_tensors()

    def _records_of(self, step: int, calls: pl.DataFrame) -> pl.DataFrame:
        """Rows of these calls' records, in order of time."""
        frames = list(self._records.of(self.index().record_chunks(step)))
        if not frames:
            return pl.DataFrame(schema=schema.RECORDS)
        every = pl.concat(frames)
        is_wanted = np.isin(every["call_id"].to_numpy(), calls["call_id"].to_numpy())
        order = np.argsort(every["sequence"].to_numpy(), kind="stable")
        return every[order[is_wanted[order]]]

    @cached_property
    def stacks(self) -> dict[int, tuple[Frame, ...]]:
        """Call stacks by number, innermost frame first."""
        path = self.path / "stacks.parquet"
        if not path.exists():
            return {}
        self._files.check(path)
        return frames_in(read_table(path, schema.STACKS), self.manifest.sources)


_SHARDS = schema.shard_name(0).partition("-")[0]
"""How the names of files begin that hold whole tensors."""

_MOST_ROWS = 1 << 19
"""Records that stay in memory at most, some 50 MB: a chunk may hold the end of a step and the beginning of the next."""


__all__ = ["RankRecording", "Recording", "RecordingError", "open_recording"]
