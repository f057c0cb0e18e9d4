"""Tags and a note of each run, kept in one file beside the runs: `.lockstep-notes.json` in the folder around them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError, UsageError, reason_of
from lockstep.files import replacing

NAME = ".lockstep-notes.json"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 20, 60, 4000
_SCHEMA = 1


class NotesError(LockstepError):
    """Notes cannot be read or kept; the text says why."""


class Notes:
    """Reads the notes of runs, and keeps them; of two who write one run's at once, the later one's stay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def of(self, run: Path) -> dict[str, Any]:
        """`tags` and `note` of a run; with `problem` where its file cannot be read."""
        try:
            return {"tags": [], "note": "", **_read(run.parent / NAME).get(run.name, {})}
        except NotesError as error:
            return {"tags": [], "note": "", "problem": str(error)}

    def keep(self, run: Path, asked: Any) -> dict[str, Any]:
        """Keep tags and note of a run in place of those before.

        Raises UsageError if they are not what they should be. Raises NotesError if their file is damaged, newer or
        cannot be written; it stays as it is.
        """
        said, path = _checked(asked), run.parent / NAME
        with self._lock:
            known = _read(path)
            known = {name: one for name, one in known.items() if name != run.name}
            if said["tags"] or said["note"]:
                known[run.name] = said
            try:
                with replacing(path) as aside:
                    text = json.dumps({"schema": _SCHEMA, "runs": known}, indent=1, sort_keys=True)
                    aside.write_text(text, encoding="ascii")
            except OSError as error:
                raise NotesError(
                    f"{path}: cannot be written ({error.strerror or error})"
                ) from error
        return said


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
        if found["schema"] > _SCHEMA:
            raise NotesError(f"{path}: was written by a newer Lockstep; update this one")
        return {name: _checked(one) for name, one in found["runs"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, UsageError) as error:
        raise NotesError(
            f"{path}: is damaged ({reason_of(error)}); mend it or take it away"
        ) from error


def _checked(asked: Any) -> dict[str, Any]:
    tags, note = (asked.get("tags"), asked.get("note")) if isinstance(asked, dict) else (None, None)
    if not (
        isinstance(tags, list)
        and all(isinstance(one, str) for one in tags)
        and isinstance(note, str)
    ):
        raise UsageError("notes are a list of tags and a text")
    tags = list(dict.fromkeys(one.strip() for one in tags if one.strip()))
    if (
        len(tags) > MOST_TAGS
        or any(len(one) > LONGEST_TAG for one in tags)
        or len(note) > LONGEST_NOTE
    ):
        raise UsageError(
            f"at most {MOST_TAGS} tags of {LONGEST_TAG} characters and a note of {LONGEST_NOTE} are kept"
        )
    return {"tags": tags, "note": note.strip()}
