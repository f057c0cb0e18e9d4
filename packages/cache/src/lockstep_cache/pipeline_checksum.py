"""Describe a data set and its transforms: equal pipelines get equal descriptions, and differences have words."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping

import torch

from lockstep_cache.pipeline_parts import Parts, version
from lockstep_cache.plain_words import digest_of

_MOST_LINES = 2000


class Pipeline:
    """A data set as it is now.

    source: Any object; its attributes are followed.
    ignored: Names of attributes that do not matter to samples.
    about: What else makes pipelines differ, by name.
    is_first: Whether nobody has looked at it before.
    files: What was found of its files before, if they are not to be looked at again.

    description: By where it is (`dataset.transform.size`) what is there, in words.
    generators: Random generators that it keeps.
    checksum: Of the description.
    environment: Digest of the environment's variables that its code reads; "" for none. Samples are kept apart by it,
        as ranks that share a session may have others.
    unknown: What cannot be read, or may change without anybody seeing it: where it is, and what to do.
    files: What was found of its files.
    """

    def __init__(
        self,
        source: object,
        ignored: Iterable[str] = (),
        about: Mapping[str, str] | None = None,
        files: str | None = None,
        *,
        is_first: bool = True,
    ) -> None:
        parts = Parts(frozenset(ignored), is_first=is_first)
        parts.look_at(source)
        found = parts.words
        found["python"] = ".".join(map(str, sys.version_info[:2]))
        found["default dtype"] = str(torch.get_default_dtype())
        for package in sorted(parts.packages | {"numpy", "torch"}):
            found[f"package {package}"] = version(package)
        self.files = parts.files.words() if files is None else files
        if self.files:
            found["files"] = self.files
        self.description = {**_shortened(found), **(about or {})}
        self.generators, self.unknown = parts.generators, parts.unknown
        self._settings, self.environment = parts.settings, parts.environment
        lines = (f"{where}\0{what}" for where, what in sorted(self.description.items()))
        text = "\n".join(lines).encode("utf-8", "surrogatepass")
        self.checksum = hashlib.sha256(text).hexdigest()

    def has_changed(self) -> bool:
        """Whether something that it is set to may be another than before; long lists and arrays are not looked at."""
        return self._settings.have_changed()


def differences(
    there: Mapping[str, str], here: Mapping[str, str], *, then: str = "there", now: str = "here"
) -> str:
    """Return the differences between two descriptions, in words."""
    shown = 3
    names = [one for one in sorted({*there, *here}) if there.get(one) != here.get(one)]
    words = [
        f"{one}: {there.get(one, 'nothing')} {then} and {here.get(one, 'nothing')} {now}"
        for one in names[:shown]
    ]
    more = f", and {len(names) - shown} more" if len(names) > shown else ""
    return "; ".join(words) + more


def _shortened(found: dict[str, str]) -> dict[str, str]:
    """The first lines, and a checksum of the others."""
    if len(found) <= _MOST_LINES:
        return found
    names = sorted(found)
    rest = "\n".join(f"{one}\0{found[one]}" for one in names[_MOST_LINES:])
    kept = {one: found[one] for one in names[:_MOST_LINES]}
    return {**kept, "all else": digest_of(rest.encode("utf-8", "surrogatepass"))}
