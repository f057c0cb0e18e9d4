"""Paths that stand for a URL of object storage; loads nothing that reaches it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_URL = re.compile(r"(s3|gs|az|obs|sftp|memory):/{1,2}(?=[^/])")


def url_of(path: str | os.PathLike[str]) -> str:
    """Return the URL that a path was meant to be, which has one slash too few as a `Path`; "" of a path here.

    >>> url_of(Path("s3://bucket/ref")), url_of("runs/ref")
    ('s3://bucket/ref', '')
    """
    text = os.fspath(path)
    found = _URL.match(text)
    if found is None or Path(text).exists():
        return ""
    return f"{found[1]}://{text[found.end() :].rstrip('/')}"


class UrlPath(type(Path())):  # type: ignore[misc]  # the class of this system's paths
    """A path that stands for a URL, and for one beside or below it, and is written as that.

    >>> str(UrlPath("s3://bucket/ref").with_name("cand"))
    's3://bucket/cand'
    """

    def __str__(self) -> str:
        text = super().__str__()
        return url_of(text) or text

    def absolute(self) -> UrlPath:
        """Return the path itself: no folder of this machine is above it."""
        return self
