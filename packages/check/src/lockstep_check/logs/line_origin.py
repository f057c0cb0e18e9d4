"""Which rank wrote a line of a log, when, and where in the code."""

from __future__ import annotations

import re
from datetime import datetime

_RANK = re.compile(
    r"\[[Rr]ank ?(?P<bracket>\d+)\]|\[default(?P<default>\d+)\]|\bRankID:\s*(?P<npu>\d+)"
    r"|\brank\s*[:=]\s*(?P<named>\d+)|^\s*(?P<label>\d+): |^\[\d+,(?P<mpi>\d+)\]<std(?:err|out)>"
)
"""As torch, `torchrun --tee`, torch_npu, torchrun's table, `srun --label` and `mpirun --tag-output` print it."""
_TIME = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[-T _](?P<clock>\d\d:\d\d:\d\d)"
    r"|(?P<slash>\d{4}/\d\d/\d\d) (?P<slash_clock>\d\d:\d\d:\d\d)"
)

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = re.compile(
    r"(During handling of the above exception|The above exception was the direct cause)[^\n]*\s*\S{0,12}\s*$"
)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>")


def rank_of(line: str) -> int | None:
    """Return the rank that a line names as its own, if it names one.

    >>> rank_of("[rank3]: RuntimeError: no"), rank_of("step 3")
    (3, None)
    """
    found = _RANK.search(line)
    if found is None:
        return None
    return int(next(text for text in found.groups() if text is not None))


def time_of(line: str, before: str) -> datetime | None:
    """Return the time that a line has, or else the last one in the text before it."""
    stamps = list(_TIME.finditer(line))[:1] or list(_TIME.finditer(before))[-1:]
    for stamp in stamps:
        date = stamp["date"] or stamp["slash"].replace("/", "-")
        try:
            return datetime.fromisoformat(f"{date} {stamp['clock'] or stamp['slash_clock']}")
        except ValueError:
            return None
    return None


def frame_of(before: str) -> str:
    """Return the innermost line of the script's own code in the last traceback of a text, as `file:line in function`.

    >>> frame_of('Traceback (most recent call last)\n  File "train.py", line 3, in main')
    'train.py:3 in main'
    """
    frames = list(_FRAME.finditer(before.rpartition(_TRACEBACK)[2] if _TRACEBACK in before else ""))
    own = [one for one in frames if not any(mark in one["file"] for mark in _LIBRARIES)]
    last = (own or frames)[-1:]
    return "".join(f"{one['file']}:{one['line']} in {one['function']}" for one in last)


def is_chained(before: str) -> bool:
    """Return whether the last traceback of a text follows from the exception that stands before it.

    >>> is_chained("During handling of the above exception, ...:\\n\\nTraceback (most recent call last):")
    True
    """
    return _CHAINED.search(before.rpartition(_TRACEBACK)[0]) is not None
