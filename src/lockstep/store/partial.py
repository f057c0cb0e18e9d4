"""The note in a recording's manifest that a part of it is elsewhere still: with it, no comparison agrees."""

from __future__ import annotations

import json
from dataclasses import asdict

from lockstep.core.manifest import PART, NotSeen
from lockstep.store.integrity import with_digest


def marked_as_part(data: bytes, reason: str) -> bytes:
    """Return the manifest at the top of a recording with this note; other content unchanged.

    Parameters
    ----------
    data
        The manifest as it was written.
    reason
        Where the rest is, and how it is had.
    """
    try:
        values = json.loads(data)
        gaps = [gap for gap in values["not_seen"] if gap["what"] != PART]
    except (ValueError, KeyError, TypeError):
        return data
    values["not_seen"] = [*gaps, asdict(NotSeen(PART, reason))]
    values["state"] = "recording"
    values.pop("digest", None)
    return with_digest(json.dumps(values, indent=1)).encode()
