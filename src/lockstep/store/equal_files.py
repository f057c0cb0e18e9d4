"""What a rank recorded but for the numbers: two ranks of one layout differ in the contents of their tensors alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import xxhash

from lockstep.core.manifest import RankManifest
from lockstep.store import schema
from lockstep.store.step_log import STEP_LOG
from lockstep.store.tables import Chunks, read_table

_SAME_FILES = ("calls-", "records-", "modules.", "stacks.")
"""How the files begin that hold no number of a tensor."""

_OF_STATES = (schema.STATES_FILE, schema.END_FILE, schema.HELD_FILE)

_OF_MANIFEST = (
    "schema", "world_size", "state", "stopped_because", "ended_by", "wrappers", "mixed_precision",
    "autocast_policies", "models", "optimizers", "trainable", "tied", "steps", "trained", "unmatched", "not_seen",
    "sources", "windows", "given_inputs",
)  # fmt: skip
"""The fields of a manifest that a comparison of equal numbers depends on."""

_FILES_AT_ONCE = 64


def layout_of(manifest: RankManifest, tables: str) -> str:
    """Return a digest of the layout of a closed recording; `tables` is what `digest_of_tables` gives."""
    fields = [getattr(manifest, name) for name in _OF_MANIFEST]
    marks = {
        name: mark if name.startswith(_SAME_FILES) else "" for name, mark in manifest.files.items()
    }
    text = repr((fields, sorted(marks.items()), tables))
    return xxhash.xxh3_128_hexdigest(text.encode(errors="surrogatepass"))


def digest_of_tables(directory: Path, manifest: RankManifest, chunks: Chunks) -> str:
    """Return a digest of the tables of tensors without the numbers; "" if a tensor has no digest of its contents.

    Of a tensor it counts whether it has a digest, and whether its norm is above 0.

    Raises CorruptError if a table is damaged.
    """
    digest = xxhash.xxh3_128()
    for table in _tables(directory, manifest, chunks):
        if table["digest"].has_nulls():
            return ""
        told = table.with_columns((pl.col("norm") > 0).alias("norm")).drop("digest")
        digest.update(told.write_ipc(None, compat_level=pl.CompatLevel.oldest()).getvalue())
    return digest.hexdigest()


def _tables(directory: Path, manifest: RankManifest, chunks: Chunks) -> Iterator[pl.DataFrame]:
    columns = pl.Schema({name: schema.CONTENTS[name] for name in _OF_CONTENTS})
    numbers = chunks.numbers
    for start in range(0, len(numbers), _FILES_AT_ONCE):
        yield from chunks.many("contents", numbers[start : start + _FILES_AT_ONCE], columns)
    columns = pl.Schema({name: schema.STATES[name] for name in _OF_STATE})
    for name in _OF_STATES:
        if name in manifest.files:
            yield read_table(directory / name, columns)


_OF_CONTENTS = ("content", "dtype", "shape", "device", "digest", "norm", "note")
_OF_STATE = (
    "moment", "step", "module", "name", "role", "standing", "trainable", "dtype", "shape", "device", "digest", "norm",
    "note",
)  # fmt: skip


_JUDGED_APART = frozenset(
    {
        "pid", "argv", "python", "platform", "devices", "packages", "environment", "numerics", "seeds", "random_states",
        "configuration", "libraries", "variables", "settings_files",
    }
)  # fmt: skip
"""Where and how a process ran: this is compared for each rank, whether or not its numbers are equal."""


def are_alike(left: RankManifest, right: RankManifest) -> bool:
    """Return whether two manifests of closed recordings tell the same files, and the same of everything else."""
    closed = all(
        one.state == "complete"
        and one.files
        and not (one.stopped_because or one.windows or one.given_inputs)
        and one.steps
        and all(step.complete for step in one.steps)
        and one.schema >= schema.DIGESTS_SINCE
        for one in (left, right)
    )
    fields = RankManifest.__dataclass_fields__.keys() - _JUDGED_APART
    return closed and all(getattr(left, name) == getattr(right, name) for name in fields)


def holds_only_listed(directory: Path, manifest: RankManifest) -> bool:
    """Return whether a rank's directory holds no file that its manifest does not list, but a step log."""
    names = {entry.name for entry in directory.iterdir()}
    return names <= {schema.MANIFEST, STEP_LOG, *manifest.files}
