"""The state of a prompt: open recordings, and the chosen step, rank and side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from lockstep.compare import Comparison, compared
from lockstep.errors import NotARecordingError, UsageError
from lockstep.options import check_two, comparing_options, opened_in
from lockstep.recordings import Recording, check_choice, site_names
from lockstep.terminal import printable
from lockstep_shell.folder import Entry, entries_below

_SITE = ("module", "op", "call", "phase")
SIDES = ("reference", "candidate")


@dataclass(frozen=True, slots=True)
class Opened:
    """One open recording: which side of the pair it is, and what is in it."""

    side: str
    recording: Recording

    @property
    def name(self) -> str:
        """As in `candidate, runs/cand`."""
        return printable(f"{self.side}, {self.recording.path}")


@dataclass
class Session:
    """The state of a prompt.

    folder: Where `open` looks for names.
    entries: The recordings below it; none where recordings were given themselves.
    opened: None, one, or a reference and a candidate.
    step, rank, side: What is looked at of them; None for all.
    """

    folder: Path = field(default_factory=Path)
    entries: list[Entry] = field(default_factory=list)
    opened: tuple[Opened, ...] = ()
    forms: tuple[str, ...] = ()
    step: int | None = None
    rank: str | None = None
    side: str | None = None
    _compared: dict[tuple[object, ...], Comparison] = field(default_factory=dict)
    _manner: dict[str, Any] = field(default_factory=dict)

    def open(self, *paths: Path) -> None:
        """Open one recording, or a reference and a candidate, in place of what is open; all is chosen of them.

        Raises RecordingError if one cannot be read. Raises UsageError if both are the same.
        """
        if len(paths) > 1:
            check_two(*paths)
        recordings = opened_in(self.forms, *paths)
        self.opened = tuple(map(Opened, SIDES, recordings))
        self.step = self.rank = self.side = None
        self._manner.clear()
        for known in ("names", "sites"):
            self.__dict__.pop(known, None)

    def chosen(self) -> list[Opened]:
        """Return the open recording of the chosen side. Raises UsageError if nothing is open."""
        if not self.opened:
            raise UsageError("no recording is open; `open NAME [NAME]` opens what `ls` lists")
        return [one for one in self.opened if self.side in (None, one.side)]

    def pair(self) -> tuple[Recording, Recording]:
        """The two that are open. Raises UsageError if there is no second one."""
        if len(self.opened) < 2:
            given = f"{self.opened[0].recording.path} " if self.opened else ""
            raise UsageError(f"it takes two recordings; `open {given}CANDIDATE` opens both")
        return self.opened[0].recording, self.opened[1].recording

    def comparison(self, manner: dict[str, Any] | None = None) -> Comparison:
        """The comparison of the pair, made once for each manner of comparing; without one in that of the last.

        Raises LockstepError if the two cannot be compared.
        """
        reference, candidate = self.pair()
        manner = dict(manner or self._manner or _defaults())
        manner["forms"] = manner["forms"] or self.forms
        key = self._key(manner)
        if key not in self._compared:
            found = compared(reference.path, candidate.path, **manner)
            self._compared[key] = found.comparison
        self._manner = manner
        return self._compared[key]

    @property
    def kept(self) -> Comparison | None:
        """The comparison that was made last, if one was."""
        return self._compared.get(self._key(self._manner))

    def _key(self, manner: dict[str, Any]) -> tuple[object, ...]:
        """What a comparison is kept under: one of other recordings at the same paths is another one."""
        recordings = [one.recording for one in self.opened]
        both = [(one.path.absolute(), one.manifest.created) for one in recordings]
        return (*both, *manner.items())

    def each(self, told: Callable[[Opened], str]) -> None:
        """Print what is told of each chosen recording, under its name where there are two that are not alike.

        Raises UsageError if there is nothing to tell of any of them.
        """
        chosen, texts, failures = self.chosen(), [], []
        for one in chosen:
            try:
                check_choice(one.recording, step=self.step, rank=self.rank)
                texts.append(told(one))
            except UsageError as error:
                failures.append(error)
                texts.append(printable(str(error)))
        if len(failures) == len(chosen):
            raise failures[0]
        if len(chosen) > 1 and len(set(texts)) == 1:
            texts = [f"both alike\n{texts[0]}"]
        elif len(chosen) > 1:
            texts = [f"{one.name}\n{text}" for one, text in zip(chosen, texts, strict=True)]
        click.echo("\n\n".join(texts))

    @cached_property
    def names(self) -> dict[str, str]:
        """Every module path and operator of what is open, by the form in which it is printed."""
        known = {name for one in self.opened for name in site_names(one.recording)}
        return {printable(name): name for name in sorted(known)}

    @cached_property
    def sites(self) -> list[str]:
        """Every site of what is open, as it is printed."""
        ranks = [rank for one in self.opened for rank in one.recording.ranks.values()]
        rows = {row for rank in ranks for row in rank.call_table.select(_SITE).iter_rows()}
        return sorted(
            printable(f"{row[0] or '(model)'} / {row[1]} #{row[2]}, {row[3]}") for row in rows
        )


def session_of(reference: Path, candidate: Path | None, forms: tuple[str, ...] = ()) -> Session:
    """A session on one recording, on two, or on a folder that holds recordings.

    Raises RecordingError if one cannot be read, or there is none. Raises UsageError if both are the same.
    """
    session = Session(forms=forms)
    try:
        session.open(*([reference] if candidate is None else [reference, candidate]))
    except NotARecordingError:
        entries = entries_below(reference) if candidate is None and reference.is_dir() else []
        if not entries:
            raise
        session = Session(reference, entries)
        if len(entries) == 1 and entries[0].recording is not None:
            session.open(entries[0].recording.path)
    return session


def _defaults() -> dict[str, Any]:
    """How a comparison is made where nobody says otherwise."""
    command = comparing_options(click.Command("compare", callback=lambda **_: None))
    return command.make_context("compare", []).params
