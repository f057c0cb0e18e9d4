"""Names, versions and column types of everything a recording holds on disk.

```
ref/
  manifest.json               RunManifest: the command and its set-up
  rank0/
    manifest.json             RankManifest: steps, what was not seen, events; `state` tells whether it was closed
    calls-00000.parquet       one row per call          contents-00000.parquet  one row per distinct tensor content
    records-00000.parquet     one row per tensor seen at a call; written last, so a chunk counts once this file is there
    tensors-00000.safetensors whole tensors by content number; since version 3 some as a formula over others, see
                              `lockstep.store.tensors`
    stacks.parquet  modules.parquet
    states.parquet              parameters, buffers, optimizer state behind the first and last recorded step
    held.parquet held_settings.parquet  what variables of the script lead to at the end
    end.parquet losses.parquet  the same at the end of the training, and the losses after the recorded steps
    sources.parquet             lines of source around those that stacks name
```
"""

from __future__ import annotations

import polars as pl

from lockstep.core.records import STATISTICS

SCHEMA_VERSION = 4
SKETCHES_SINCE = 2
"""Schema version that began today's plan of `lockstep.core.sketch`: sketches of older recordings are
left out, their tensors are compared by statistics."""
DIGESTS_SINCE = 4
"""Schema version that began today's digests of long tensors, see `lockstep.kernels.digest`."""

MANIFEST = "manifest.json"
"""The name of the manifest of a recording, and of that of each rank."""

CALLS = pl.Schema(
    {
        "call_id": pl.Int64(),
        "step": pl.Int32(),
        "kind": pl.String(),
        "phase": pl.String(),
        "module": pl.String(),
        "module_class": pl.String(),
        "op": pl.String(),
        "call": pl.Int32(),
        "parent": pl.Int64(),
        "sequence": pl.Int64(),
        "stack": pl.Int32(),
        "arguments": pl.String(),
        "recomputed": pl.Boolean(),
        "conditions": pl.String(),
        "random_state": pl.Int64(),
    }
)
RECORDS = pl.Schema(
    {
        "call_id": pl.Int64(),
        "phase": pl.String(),
        "role": pl.String(),
        "index": pl.Int32(),
        "name": pl.String(),
        "sequence": pl.Int64(),
        "occurrence": pl.Int32(),
        "content": pl.Int64(),
        "argument": pl.String(),
        "layout": pl.String(),
        "edge": pl.Int64(),
    }
)
_KINDS = {float: pl.Float64(), int: pl.Int64(), str: pl.String()}
CONTENTS = pl.Schema(
    {
        "content": pl.Int64(),
        "dtype": pl.String(),
        "shape": pl.List(pl.Int64()),
        "device": pl.String(),
        "digest": pl.String(),
        **{one.name: _KINDS[one.kind] for one in STATISTICS},
        "sketch": pl.Binary(),
        "stored": pl.Int64(),
        "shard": pl.Int32(),
        "note": pl.String(),
    }
)
NULLABLE = frozenset(
    {"edge", "digest", *(one.name for one in STATISTICS), "sketch", "stored", "shard", "note"}
)
"""Columns that may be empty; one anywhere else is damage."""

NO_CONTENT = -1
"""Stands for a content where there is none."""

ADDED: dict[str, str | int | None] = {
    "argument": "",
    "settings": "{}",
    "layout": "",
    "edge": None,
    "conditions": "",
    "random_state": NO_CONTENT,
    **{one.name: None for one in STATISTICS if one.added},
}
"""Columns that recordings of this version made by an earlier build lack, and what they then hold."""

STACKS = pl.Schema(
    {"stack": pl.Int32(), "file": pl.String(), "line": pl.Int32(), "function": pl.String()}
)
MODULES = pl.Schema(
    {
        "module": pl.String(),
        "module_class": pl.String(),
        "parameters": pl.Int64(),
        "training": pl.Boolean(),
        "settings": pl.String(),
    }
)
STATES = pl.Schema(
    {
        "moment": pl.String(),
        "step": pl.Int32(),
        "module": pl.String(),
        "name": pl.String(),
        "role": pl.String(),
        "standing": pl.String(),
        "trainable": pl.Boolean(),
        **{
            name: kind
            for name, kind in CONTENTS.items()
            if name not in ("content", "stored", "shard")
        },
    }
)
"""A sketch stands at the first row of its digest and dtype alone."""
LOSSES = pl.Schema({"step": pl.Int32(), "value": pl.Float64(), "dtype": pl.String()})
SOURCES = pl.Schema({"file": pl.String(), "line": pl.Int32(), "text": pl.String()})
STATES_FILE, END_FILE, LOSSES_FILE = "states.parquet", "end.parquet", "losses.parquet"
HELD_SETTINGS = pl.Schema({"path": pl.String(), "value": pl.String(), "moves": pl.Boolean()})
"""`value` is JSON."""
HELD_FILE, HELD_SETTINGS_FILE = "held.parquet", "held_settings.parquet"
"""The first is a table of `STATES`."""
SOURCES_FILE = "sources.parquet"


def chunk_name(table: str, number: int) -> str:
    """File name of one chunk of a chunked table, e.g. `records-00003.parquet`."""
    return f"{table}-{number:05d}.parquet"


def shard_name(number: int) -> str:
    """File name of one shard of whole tensors."""
    return f"tensors-{number:05d}.safetensors"
