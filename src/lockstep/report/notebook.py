"""Show a recording in a notebook as a small table: the public `lockstep.open`."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep.core.errors import RecordingError
from lockstep.core.site import CallKind, Role
from lockstep.core.text import shell_line, spans
from lockstep.report.page.tags import Html, tag
from lockstep.store.reader import RankRecording, Recording, open_recording, show_recordings_as

_TITLES = ("rank", "steps", "calls", "tensors", "loss", "versions", "devices")
_MOST_SENTENCES = 5


def recording_html(recording: Recording) -> str:
    """Return a recording in a few lines of HTML: a row per rank, the command, and the missing parts.

    Examples
    --------
    >>> recording_html(open_recording("ref"))[:7]                   # doctest: +SKIP
    '<table>'
    """
    manifest = recording.manifest
    made = (
        f", made {manifest.created} by Lockstep {manifest.version}, saving {manifest.options.save}"
    )
    try:
        rows = [
            tag("tr", *(tag("td", one) for one in _cells(rank)))
            for rank in recording.ranks.values()
        ]
        missing = recording.missing
    except RecordingError as error:  # a notebook would draw a traceback instead
        return tag("p", str(error), longest=None)
    caption = tag("caption", tag("b", str(recording.path)), made)
    head = tag("thead", tag("tr", *(tag("th", title) for title in _TITLES)))
    table = tag("table", caption, head, tag("tbody", *rows))
    left = len(missing) - _MOST_SENTENCES
    more = tag("li", f"and {left} more: lockstep show {recording.path}") if left > 0 else None
    sentences = [tag("li", one, longest=None) for one in missing[:_MOST_SENTENCES]]
    parts: list[Html | None] = [
        table,
        tag("p", tag("code", shell_line(manifest.command))) if manifest.command else None,
        tag("ul", *sentences, more) if missing else None,
    ]
    return tag("div", *parts)


def _cells(rank: RankRecording) -> Iterator[str]:
    manifest = rank.manifest
    yield f"{rank.name} of {manifest.world_size}"
    yield _steps(rank)
    yield str(len(rank.call_table))
    yield str(rank.record_count)
    yield _losses(rank)
    versions = {"Python": manifest.python, **manifest.packages}
    yield ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield ", ".join(manifest.devices)


def _steps(rank: RankRecording) -> str:
    shown = spans(rank.steps)
    return f"{shown} ({rank.manifest.trained} trained)" if rank.manifest.trained else shown


def _losses(rank: RankRecording) -> str:
    """The loss of the first and of the last recorded step."""
    ends = dict.fromkeys((*rank.steps[:1], *rank.steps[-1:]))
    found = [loss for step in ends if not math.isnan(loss := _loss(rank, step))]
    return " to ".join(f"{loss:.6g}" for loss in found)


def _loss(rank: RankRecording, step: int) -> float:
    for call in rank.calls(step, kind=CallKind.LOSS):
        for record in call.with_role(Role.LOSS):
            if record.statistics is not None:
                return record.statistics.mean
    return math.nan


show_recordings_as(recording_html)

__all__ = ["open_recording", "recording_html"]
