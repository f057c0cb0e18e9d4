"""Keeping a step that was recorded apart, as a recording of its own."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from lockstep.core.errors import OutputExistsError
from lockstep.core.manifest import Options, RunManifest, manifest_from_json
from lockstep.core.replacement import replacing
from lockstep.store.directory import RunDirectory
from lockstep.store.integrity import with_digest
from lockstep.store.limits import read_manifest, values_of
from lockstep.store.permissions import write_private
from lockstep.store.schema import MANIFEST


def keep_step(rank: Path, name: str, step: int, into: Path) -> None:
    """Copy a step that was recorded apart; see `lockstep.launch.WrittenStep.keep`.

    rank: Its directory, in the recording that it was written to.
    name: What its rank is called there without the number of the directory: `rank0`.
    step: Which one.
    into: The recording that it becomes, or becomes a rank of.
    """
    manifest = _run_manifest(rank.parent / MANIFEST)
    options = _plain(manifest.options, step)
    try:
        if not _holds(into, options):
            run = RunDirectory.create(into, manifest.command, options, force=False)
            run.started()
            run.finish(exit_code=None)
        shutil.copytree(rank, into / name)
        _rename(into / name / MANIFEST, name)
    except OSError as error:
        raise OutputExistsError(f"{into}: cannot be written ({error.strerror})") from error


def _plain(options: Options, step: int) -> Options:
    """Options by which the same is recorded plainly."""
    return dataclasses.replace(
        options, steps=str(step), apart=False, apart_waits=False, apart_steps=1, apart_share=None,
        ends_when_asked=False,
    )  # fmt: skip


def _holds(into: Path, options: Options) -> bool:
    """Whether a recording of this very step was begun there."""
    return (into / MANIFEST).is_file() and _run_manifest(into / MANIFEST).options == options


def _run_manifest(path: Path) -> RunManifest:
    return manifest_from_json(RunManifest, values_of(read_manifest(path)), str(path))


def _rename(path: Path, name: str) -> None:
    values: dict[str, Any] = values_of(read_manifest(path))
    values.pop("digest", None)
    text = json.dumps({**values, "rank": name}, indent=1)
    with replacing(path) as aside:
        write_private(aside, with_digest(text))
