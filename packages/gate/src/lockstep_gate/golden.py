"""A golden on disk: one folder a variant, each with a recording, its calibration and the history of both.

```
golden/cpu-x86_64-torch2.13.0/recording/
                              calibration/    the same training with every result rounded at random
                              history.json    who replaced it, when, and why
```

A plain recording is a golden of one variant without calibration and history; it is never replaced.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import (
    CorruptError,
    NotARecordingError,
    OutputExistsError,
    UsageError,
    VersionError,
)
from lockstep.files import read_manifest, values_of
from lockstep.recordings import MANIFEST, Recording, manifest_from_json, open_recording

SCHEMA = 1
"""Of `history.json`."""

HISTORY = "history.json"
RECORDING = "recording"
CALIBRATION = "calibration"

_ATTRIBUTES = ".gitattributes"
_AS_IT_IS = "# Recordings are bytes: no line end of theirs may be changed.\n* -text\n"


@dataclass(frozen=True, slots=True)
class Entry:
    """One time that a golden was made or replaced.

    because: The reason that was given.
    created: When, ISO 8601 in UTC.
    version: Of the Lockstep that made it.
    verdict: What `compare` said of it beside the one that it replaces; "new" where there was none.
    headline: That in a sentence.
    forced: Whether it was replaced although the verdict was a fault, or nothing could be said.
    commit: Of git, where the training was started in a repository; else "".
    """

    because: str
    created: str
    version: str
    verdict: str
    headline: str = ""
    forced: bool = False
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Variant:
    """The golden of one kind of machine."""

    name: str
    recording: Recording
    calibration: Recording | None = None
    history: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Golden:
    """The expected recordings of a training, one for each kind of machine."""

    path: Path
    variants: tuple[Variant, ...]
    is_plain_recording: bool = False


def open_golden(path: Path) -> Golden:
    """Read a golden, or a plain recording as one; without variants where there is nothing at `path`.

    Raises RecordingError if it is damaged, made by a newer version, or something else.
    """
    if (path / MANIFEST).exists():
        return Golden(path, (Variant(path.name, open_recording(path)),), is_plain_recording=True)
    if not path.exists():
        return Golden(path, ())
    if not path.is_dir():
        raise NotARecordingError(path, "is a file, and no golden", advice="give a folder")
    folders = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    if not folders and any(one.name != _ATTRIBUTES for one in path.iterdir()):
        raise NotARecordingError(path, "is not a golden", advice="give a folder that `gate` made")
    return Golden(path, tuple(_variant(folder) for folder in folders))


def _variant(folder: Path) -> Variant:
    history = folder / HISTORY
    if folder.is_symlink() or not history.is_file():
        raise NotARecordingError(
            folder, f"holds no {HISTORY}: it is not a variant of a golden",
            advice="put it back, or take it out of the golden",
        )  # fmt: skip
    calibration = folder / CALIBRATION
    recording = open_recording(folder / RECORDING)
    recording.new_beside = folder.parent  # in the golden it would be committed, and be no variant
    return Variant(
        folder.name, recording,
        open_recording(calibration) if calibration.exists() else None, _history(history),
    )  # fmt: skip


def _history(path: Path) -> tuple[Entry, ...]:
    try:
        values = values_of(read_manifest(path))
    except ValueError as error:
        raise CorruptError(path, f"is not valid JSON ({error})", advice="restore it") from error
    if not isinstance(values, dict) or not isinstance(values.get("history"), list):
        raise CorruptError(path, "holds no history", advice="restore it")
    schema = values.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise VersionError(
            path, f"has schema {schema}, this Lockstep reads {SCHEMA}", advice="update Lockstep"
        )
    return tuple(
        manifest_from_json(Entry, one, f"{path}: history[{number}]")
        for number, one in enumerate(values["history"])
    )


@contextmanager
def replacing_variant(golden: Golden, name: str, entry: Entry) -> Iterator[Path]:
    """Give a folder in which to put `recording` and `calibration`; it takes the variant's place as the block ends.

    Its history is that of the variant before, and the entry. Where the block raises, all stays as it was.

    Raises UsageError if the golden is a plain recording. Raises OutputExistsError if the disk does not take it.
    """
    if golden.is_plain_recording:
        raise UsageError(
            f"{golden.path}: is a plain recording, which keeps no history; give a new folder to make a golden in"
        )
    place = golden.path / name
    fresh, earlier = golden.path / f".{name}.new-{os.getpid()}", golden.path / f".{name}.old"
    before = next((one.history for one in golden.variants if one.name == name), ())
    try:
        golden.path.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        yield fresh
        _write_history(fresh / HISTORY, (*before, entry))
        (golden.path / _ATTRIBUTES).write_text(_AS_IT_IS, encoding="utf-8")
        if place.exists():
            shutil.rmtree(earlier, ignore_errors=True)
            place.rename(earlier)
        fresh.rename(place)
        shutil.rmtree(earlier, ignore_errors=True)
    except OSError as error:
        raise OutputExistsError(
            f"{place}: cannot be written ({error.strerror or error}); what was there is as it was"
        ) from error
    finally:
        if earlier.exists() and not place.exists():
            earlier.rename(place)
        shutil.rmtree(fresh, ignore_errors=True)


def _write_history(path: Path, history: tuple[Entry, ...]) -> None:
    entries = [dataclasses.asdict(one) for one in history]
    text = json.dumps({"schema": SCHEMA, "history": entries}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
