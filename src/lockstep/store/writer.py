"""Writing one rank's part of a recording, off the training thread.

Rows gather in memory; a chunk of them goes through a bounded queue to one thread, which writes every file aside and
renames it. A chunk is cut when it is full, at the end of a step where steps are not very short (see `Pace`), and by the
thread itself when no step ends for a while: a training that hangs and is killed has then left everything up to where it
hung. When the memory for what waits is full the training waits, and says so once. A disk that refuses stops the writer,
never the training.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lockstep.core.errors import CorruptError
from lockstep.core.formulas import Stored
from lockstep.core.manifest import MEMORY_BYTES
from lockstep.core.records import Frame
from lockstep.core.replacement import replacing
from lockstep.store import schema
from lockstep.store.chunk import Chunk, Copy
from lockstep.store.derived.derived_tensor import Derived, Elements
from lockstep.store.encoding import Row, parquet_bytes
from lockstep.store.integrity import DigestedFile, Sink, with_digest
from lockstep.store.pace import REST_S, Pace
from lockstep.store.permissions import open_private
from lockstep.store.small_tensors import SmallContent, measured, whole
from lockstep.store.staging import Buffers
from lockstep.store.tensor_files import TensorFiles
from lockstep.store.tensors import RawTensor, compacted, size_bytes, write_shard

_CHUNK_RECORDS = 16384
_CHUNK_CONTENTS = 4096
_FLUSH_S = 1.0

_SHARD_BYTES = 64 << 20
_WAITING_CHUNKS = 32
"""Chunks that may wait to be written: some 8 MB each, with sketches, besides their tensors."""


_ROOM_FOR_MANIFEST = 32 << 10
_ROOM_FOR_A_FILE = 128
"""Bytes that stay free on a disk: a manifest has some 8 kB and a line a file, and is written beside the old one."""


class _CapReachedError(Exception):
    """No more bytes may go on disk."""


class RankWriter:
    """Writes calls, records, contents and tensors of one rank.

    directory: The rank's directory; must exist and be empty.
    memory_bytes: Cap on the memory that recording takes. Half of it is for whole tensors that wait to be written,
        beyond which the training waits; the rest is for tables, and for work on one tensor at a time.
    max_bytes: Cap on bytes on disk, None for no cap; beyond it `failure` says so and nothing more is written.
    copy: Copies bytes into an array from another, as `numpy.copyto` does.

    failure: Why writing stopped before `close`, or "".
    """

    def __init__(
        self,
        directory: Path,
        *,
        memory_bytes: int = MEMORY_BYTES,
        max_bytes: int | None = None,
        copy: Copy = np.copyto,
    ) -> None:
        self.directory = directory
        self._copy = copy
        self.failure = ""
        self.bytes_written = 0
        self._memory_bytes = memory_bytes
        self._max_bytes = max_bytes
        self._chunk = Chunk()
        self._next_chunk = 0
        self._gathering = threading.Lock()
        self._stacks: list[Row] = []
        self._modules: list[Row] = []
        self._written_rows = {"stacks": -1, "modules": -1}
        self._files: dict[str, str] = {}
        self._first_lost: int | None = None
        self._kept_steps: set[int] = set()
        self._last_chunks: dict[int, int] = {}
        self._buffers = Buffers(memory_bytes // 2, _SHARD_BYTES)
        self._waiting_chunks = 0
        self._room = threading.Condition()
        self._said_full = False
        self._late_manifest: Callable[[], dict[str, Any]] | None = None
        self._manifest_written = b""
        self._pace = Pace()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="lockstep-writer", daemon=True)
        self._thread.start()

    def add_call(self, row: Row) -> None:
        """Add one row of `schema.CALLS`."""
        with self._gathering:
            self._chunk.calls.append(row)

    def add_record(self, row: Row) -> None:
        """Add one row of `schema.RECORDS`; flushes when a chunk is full."""
        self.add_records([row])

    def add_records(self, rows: list[Row]) -> None:
        """Add rows of `schema.RECORDS`; flushes when a chunk is full."""
        with self._gathering:
            self._chunk.records += rows
            full = len(self._chunk.records) >= _CHUNK_RECORDS
        if full:
            self.flush()

    def add_content(self, row: Row) -> None:
        """Add one row of `schema.CONTENTS`; `stored` and `shard` come from `add_tensor`."""
        with self._gathering:
            self._chunk.contents.append(row)
            full = self._chunk.content_count >= _CHUNK_CONTENTS
        if full:
            self.flush()

    def add_small_content(self, content: SmallContent) -> int:
        """Add a content that is still to be measured; returns the number of its shard, if it is kept whole."""
        with self._gathering:
            chunk, shard = self._chunk, self._next_chunk
            chunk.small.append(content)
            full = len(chunk.small) + len(chunk.contents) >= _CHUNK_CONTENTS
        if full:
            self.flush()
        return shard

    def add_tensor(self, tensor: RawTensor) -> int:
        """Copy one whole tensor and return the number of its shard; waits where too much memory is in use.

        A tensor that is larger than all memory for copies is not copied: the call returns when it is written.
        """
        size = tensor.data.nbytes
        if size > self._memory_bytes // 2:
            return self._write_through(tensor)
        with self._gathering:
            if self._chunk.has_room(size):
                self._chunk.add(tensor, self._copy)
                return self._next_chunk
        if self._chunk.buffer is not None:
            self.flush()
        buffer = self._buffers.take(size, self._say_full)
        with self._gathering:
            self._chunk.buffer = buffer
            self._chunk.add(tensor, self._copy)
            return self._next_chunk

    def _write_through(self, tensor: RawTensor) -> int:
        with self._gathering:
            self._chunk.tensors.append(tensor)
            shard = self._next_chunk
        self.flush()
        self.drain()
        return shard

    def add_stack(self, number: int, frames: tuple[Frame, ...]) -> None:
        """Add one call stack, innermost frame first."""
        with self._gathering:
            self._stacks.extend(
                (number, frame.file, frame.line, frame.function) for frame in frames
            )

    def add_module(self, row: Row) -> None:
        """Add one row of `schema.MODULES`."""
        with self._gathering:
            self._modules.append(row)

    def flush(self) -> None:
        """Hand everything gathered so far to the writing thread; waits where many chunks wait already."""
        if threading.current_thread() is not self._thread:
            self._wait_for_room()
        with self._gathering:
            chunk, number = self._chunk, self._next_chunk
            stacks, modules = list(self._stacks), list(self._modules)
            self._chunk, self._next_chunk = Chunk(), number + 1
        with self._room:
            self._waiting_chunks += 1
        self._queue.put(lambda: self._write_chunk(number, chunk, stacks, modules))

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace the rank's manifest, after everything queued before it."""
        self._queue.put(partial(self._write_given, lambda: manifest))

    def step_ended(self, step: int, manifest: Callable[[], dict[str, Any]]) -> None:
        """A good moment to write everything gathered; put off where the last one was just now.

        step: The step that has ended: nothing more of it will come.
        manifest: Gives the rank's manifest as of now; called by the writing thread.
        """
        with self._gathering:
            self._chunk.end_step(step)
            self._last_chunks[step] = self._next_chunk - self._chunk.is_empty
        self._late_manifest = manifest
        if self._pace.left_s > 0 or self._waiting_chunks:
            self._queue.put(_look_again)
        else:
            self._write_late()

    def _write_late(self) -> None:
        """Write everything gathered, and the manifest of the step that ended last."""
        self._pace.rest()
        # The manifest first: what it tells of is in the rows gathered by now.
        manifest, self._late_manifest = self._late_manifest, None
        # Contents alone are of no use yet, and a process that has written nothing may still be forked.
        if self._chunk.has_rows:
            self.flush()
        if manifest is not None:
            self._queue.put(partial(self._write_given, manifest))

    def save(self) -> None:
        """Write everything so far, and wait for it: the process is about to end. From any thread."""
        if self._thread.is_alive():
            self._write_late()
            self.drain()

    def end(self, manifest: Callable[[], dict[str, Any]]) -> None:
        """Write the rest and then the last manifest, while the training goes on.

        manifest: Gives the manifest once everything else is written or refused; called by the writing thread.
        """
        self.flush()
        self._queue.put(partial(self._write_given, manifest))
        self._queue.put(None)

    def add_table(self, name: str, table: pl.Schema, rows: list[Row]) -> None:
        """Write a table of its own, after everything queued before it."""
        self._queue.put(lambda: self._write_table(name, parquet_bytes(table, rows)))

    def add_sources(self, rows: Callable[[], list[Row]]) -> None:
        """Write source lines, after everything queued before, if there is room.

        `rows` makes those of `schema.SOURCES`, and is called by the writing thread.
        """
        self._queue.put(lambda: self._write_sources(rows()))

    def _write_sources(self, rows: list[Row]) -> None:
        data = parquet_bytes(schema.SOURCES, rows)
        if self._max_bytes is not None and self.bytes_written + len(data) > self._max_bytes:
            return
        with suppress(OSError):
            if rows and not self.failure:
                self._write_table(schema.SOURCES_FILE, data)

    def _write_table(self, name: str, data: bytes) -> None:
        if not self.failure:
            if self._max_bytes is not None and self.bytes_written + len(data) > self._max_bytes:
                self.failure = f"--max-bytes {self._max_bytes} reached"
                return
            _leave_room(self.directory, len(data) + _ROOM_FOR_A_FILE * len(self._files))
            self._replace(name, partial(_write, data=data))

    def write_behind(self, tables: Mapping[str, tuple[pl.Schema, list[Row]]]) -> str:
        """Write tables after all else was written; the manifest that lists them is to follow by `amend`.

        Returns why they were not written, or "". A recording that was moved or replaced since stays as it is.
        """
        try:
            if self.failure or not self._is_in_place():
                return self.failure or "the recording was moved or replaced while the training ran"
            for name, (table, rows) in tables.items():
                self._write_table(name, parquet_bytes(table, rows))
        except OSError as error:
            return f"{error.strerror or error} ({self.directory})"
        failure, self.failure = self.failure, ""  # what was recorded before is whole
        return failure

    def amend(self, manifest: Callable[[], dict[str, Any]]) -> None:
        """Replace the last manifest after all was written; one that was moved or replaced since stays as it is."""
        with suppress(OSError):  # the recording is whole without
            if self._is_in_place():
                self._write_given(manifest)

    def _is_in_place(self) -> bool:
        return (self.directory / schema.MANIFEST).read_bytes() == self._manifest_written

    def close(self) -> None:
        """Write the rest and wait for the thread to end."""
        self.flush()
        self._queue.put(None)
        self._thread.join()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is written after `end`; returns whether it is."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def waiting_chunks(self) -> int:
        """Chunks that are not written yet."""
        return self._waiting_chunks

    def drain(self) -> None:
        """Wait until everything queued so far is on disk or refused."""
        done = threading.Event()
        self._queue.put(done.set)
        while not done.wait(1.0):
            if not self._thread.is_alive():
                return

    def _wait_for_room(self) -> None:
        with self._room:
            if self._waiting_chunks >= _WAITING_CHUNKS:
                self._say_full()
                self._room.wait_for(lambda: self._waiting_chunks < _WAITING_CHUNKS)

    def _say_full(self) -> None:
        if not self._said_full:
            self._said_full = True
            megabytes = self._memory_bytes >> 20
            print(
                "lockstep: the disk is slower than the training, which waits for it;"
                f" recording takes {megabytes} MB of memory",
                file=sys.stderr,
            )

    def _work(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job()
            except _CapReachedError as error:
                self.failure = self.failure or str(error)
            except OSError as error:
                self.failure = self.failure or f"{error.strerror or error} ({self.directory})"
            except (
                BaseException
            ) as error:  # polars may panic; a dead thread would leave the training waiting for ever
                self.failure = self.failure or f"{type(error).__name__}: {error} ({self.directory})"

    def _next_job(self) -> Callable[[], None] | None:
        while True:
            # A step whose end was put off is written at the end of the next, or else by and by.
            late_s = max(0.0, self._pace.left_s) + REST_S
            try:
                return self._queue.get(timeout=late_s if self._late_manifest else _FLUSH_S)
            except queue.Empty:
                self._write_late()

    def _write_chunk(
        self, number: int, chunk: Chunk, stacks: list[Row], modules: list[Row]
    ) -> None:
        try:
            if not self.failure:
                self._write_what_fits(number, chunk, stacks, modules)
        finally:
            if schema.chunk_name("records", number) not in self._files and not chunk.is_empty:
                self._lose_from(number)
            if chunk.buffer is not None:
                self._buffers.give_back(chunk.buffer)
            with self._room:
                self._waiting_chunks -= 1
                self._room.notify_all()

    def _write_what_fits(
        self, number: int, chunk: Chunk, stacks: list[Row], modules: list[Row]
    ) -> None:
        """Write a chunk, or else what it holds up to the end of a step: steps that are whole count."""
        try:
            self._write_files(number, chunk, stacks, modules)
        except Exception:
            for part in chunk.up_to_ends():
                with suppress(Exception):
                    self._write_files(number, part, stacks, modules)
                    self._lose_from(number)
                    self._kept_steps.update(end.step for end in part.ends)
                    break
            raise

    def _lose_from(self, number: int) -> None:
        """Something of this chunk is not written."""
        self._first_lost = number if self._first_lost is None else self._first_lost

    def _write_files(
        self, number: int, chunk: Chunk, stacks: list[Row], modules: list[Row]
    ) -> None:
        try:
            self._write_all_files(number, chunk, stacks, modules)
        except Exception:
            # What there is of this chunk does not count; a full disk needs the room for the manifest.
            tables = (
                schema.chunk_name(table, number) for table in ("contents", "calls", "records")
            )
            for name in (schema.shard_name(number), *tables):
                self._files.pop(name, None)
                with suppress(OSError):
                    (self.directory / name).unlink()
            raise

    def _write_all_files(
        self, number: int, chunk: Chunk, stacks: list[Row], modules: list[Row]
    ) -> None:
        if chunk.is_empty:
            return
        small = measured(chunk.small, number)
        contents = sorted([*chunk.contents, *small], key=itemgetter(0))
        files = self._grown(stacks, modules) | {
            schema.chunk_name("contents", number): parquet_bytes(schema.CONTENTS, contents),
            schema.chunk_name("calls", number): parquet_bytes(schema.CALLS, chunk.calls),
            schema.chunk_name("records", number): parquet_bytes(schema.RECORDS, chunk.records),
        }
        tensors = self._compacted(number, whole(chunk.small) + chunk.tensors)
        total_bytes = sum(map(size_bytes, tensors)) + sum(map(len, files.values()))
        if self._max_bytes is not None and self.bytes_written + total_bytes > self._max_bytes:
            raise _CapReachedError(f"--max-bytes {self._max_bytes} reached")
        _leave_room(self.directory, total_bytes + _ROOM_FOR_A_FILE * len(self._files))
        if tensors:
            self._replace(schema.shard_name(number), lambda file: write_shard(file, tensors))
        for name, data in files.items():
            self._replace(name, partial(_write, data=data))
        self._written_rows = {"stacks": len(stacks), "modules": len(modules)}

    def _grown(self, stacks: list[Row], modules: list[Row]) -> dict[str, bytes]:
        """The tables that are written anew with each chunk, where rows were added to them."""
        tables = (("stacks", schema.STACKS, stacks), ("modules", schema.MODULES, modules))
        grown = {}
        for name, table, rows in tables:
            if len(rows) != self._written_rows[name]:
                grown[f"{name}.parquet"] = parquet_bytes(table, rows)
        return grown

    def _compacted(self, shard: int, tensors: list[RawTensor]) -> list[RawTensor | Derived]:
        """The tensors of a chunk in the form that takes the least room."""
        written = TensorFiles(self.directory)
        done: dict[int, RawTensor | Derived] = {}

        def find(stored: Stored) -> tuple[str, Elements] | Derived:
            if stored.shard != shard:
                try:
                    return written.find_in_pieces(stored)
                except CorruptError as error:
                    raise LookupError(str(error)) from error
            found = done[stored.number]
            return found.elements if isinstance(found, RawTensor) else found

        for tensor in tensors:
            done[tensor.content] = compacted(tensor, find)
        return list(done.values())

    def _write_given(self, manifest: Callable[[], dict[str, Any]]) -> None:
        value = manifest()
        for step in value["steps"]:
            step["complete"] = step["complete"] and self._is_written(step["index"])
        value.pop("files", None)
        text = with_digest(_with_files(_as_text(value), self._files))
        data = text.encode()
        self._replace(schema.MANIFEST, lambda file: _write(file, data))
        self._files.pop(schema.MANIFEST)
        self._manifest_written = data

    def _is_written(self, step: int) -> bool:
        """Whether nothing of a step that has ended was refused."""
        last = self._last_chunks.get(step, self._next_chunk)
        return self._first_lost is None or last < self._first_lost or step in self._kept_steps

    def _replace(self, name: str, fill: Callable[[Sink], None]) -> None:
        """Write a file aside and rename it, so that no reader ever sees half of one."""
        target = self.directory / name
        with replacing(target) as aside:
            with open_private(aside, "wb") as file:
                digested = DigestedFile(file)
                fill(digested)
            replaced_bytes = target.stat().st_size if target.exists() else 0
            self.bytes_written += digested.size_bytes - replaced_bytes
        self._files[name] = digested.mark


def _leave_room(directory: Path, size_bytes: int) -> None:
    """Refuse a chunk behind which a full disk would not even take the manifest, which says why.

    Raises OSError: No space left on device. File systems that do not tell their size are trusted.
    """
    disk = os.statvfs(directory)
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < size_bytes + _ROOM_FOR_MANIFEST:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))


def _as_text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1, default=str)


def _with_files(text: str, files: dict[str, str]) -> str:
    """A manifest's text with the list of files, put together here: it may be long, and is written at every step."""
    listed = ",\n".join(f'  "{name}": "{mark}"' for name, mark in files.items())
    body = text.removesuffix("\n}")
    return f'{body},\n "files": {{\n{listed}\n }}\n}}'


def _look_again() -> None:
    """Nothing to do but to look what is due."""


def _write(file: Sink, data: bytes) -> None:
    file.write(data)
