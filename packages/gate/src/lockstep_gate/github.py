"""Annotations and the summary of a job on GitHub Actions.

The form of a workflow command is `::error file=F,line=N,title=T::message`, in which `%`, line ends and, in properties,
`:` and `,` are escaped (GitHub, "Workflow commands for GitHub Actions").
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from lockstep.compare import origin_words
from lockstep.errors import ExitCode
from lockstep.terminal import printable
from lockstep_gate.gating import Gated

_TITLE = "lockstep gate"
_MOST = 10
"""Annotations of one kind that GitHub shows of a step."""


def is_github(environment: Mapping[str, str]) -> bool:
    """Whether this is a job of GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


def annotation_lines(gated: Gated) -> Iterator[str]:
    """A line for each origin, at its line of the source; one for all where there is none."""
    if gated.exit_code == ExitCode.AGREES:
        yield _command("notice", gated.headline)
        return
    origins = gated.comparison.origins if gated.comparison is not None else ()
    if not origins:
        yield _command("error", gated.refused or gated.failed or gated.headline)
    for number, origin in enumerate(origins[:_MOST]):
        place = f"step {origin.step}, {origin.phase.value} of {origin.module or 'the model'} / {origin.op}"
        words = gated.headline if number == 0 else f"{place}: {origin_words(origin)}"
        yield _command("error", words, *_file_and_line(origin.source))
    if gated.comparison is not None:
        for one in gated.comparison.setup[:_MOST]:
            yield _command("notice", str(one))


def _file_and_line(source: str) -> tuple[str, str]:
    """A printed source, as GitHub takes it: the file relative to the checkout."""
    file, _, line = source.rpartition(":")
    if not file or not line.isdigit():
        return "", ""
    with_root = os.path.relpath(file) if Path(file).is_absolute() else file
    return ("", "") if with_root.startswith("..") else (with_root, line)


def _command(kind: str, words: str, file: str = "", line: str = "") -> str:
    place = f"file={_property(file)},line={line}," if file else ""
    return f"::{kind} {place}title={_property(_TITLE)}::{_data(printable(words))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def add_summary(environment: Mapping[str, str], markdown: str) -> None:
    """Add to the job's summary, where GitHub gave a file for it. Raises OSError if the file cannot be written."""
    file = environment.get("GITHUB_STEP_SUMMARY")
    if file:
        with Path(file).open("a", encoding="utf-8") as opened:
            opened.write(markdown + "\n")
