"""The parsed options of the verb `replay`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.commands.record_again import command_line, new_folder_here
from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.selection import RankSelection, StepSelection
from lockstep.store.reader import Recording


@dataclass(frozen=True, slots=True)
class Asked:
    """A command line of `replay`.

    only, module, every: Which calls: patterns of sites, a pattern of modules, or all; the origin of two recordings
        where none is given.
    step, rank: Of which steps and ranks; None for all.
    repeat: How often they are run.
    limit: How many calls are printed.
    folder: Where a test is written; None for none.
    shrink_seconds: How long smaller inputs are looked for; None for not at all.
    as_json: Whether values are printed as JSON.
    given: Options that choose calls and a machine, as they were given, to be repeated.
    """

    only: tuple[str, ...]
    module: str | None
    every: bool
    step: StepSelection | None
    rank: RankSelection | None
    repeat: int
    limit: int
    folder: Path | None
    shrink_seconds: float | None
    as_json: bool
    given: Mapping[str, object]

    @property
    def at_origin(self) -> bool:
        """Whether the calls are those of the origin."""
        return not self.only and self.module is None and not self.every

    def check(self, dtype: str) -> None:
        """See that the options fit each other.

        Raises UsageError if they do not. Raises OutputExistsError if the new folder is there.
        """
        if self.folder is not None and self.folder.exists():
            raise OutputExistsError(f"{self.folder}: is there already; give another folder")
        if sum((self.every, bool(self.only), self.module is not None)) > 1:
            raise UsageError("--whole, --only and --module: give one of them")
        shrinks = self.shrink_seconds is not None
        if self.module is not None and (dtype or shrinks or self.repeat > 1):
            raise UsageError(
                "--module: leave out --dtype, --shrink and --repeat, which are for one operator"
            )
        if shrinks and dtype:
            raise UsageError(
                "--shrink and --dtype: inputs are made smaller in their recorded dtypes"
            )

    def again(self, runs: Sequence[Recording]) -> str:
        """The same command, with a test that is written."""
        words = ["--whole"] if self.every else []
        shrink = ["--shrink"] if self.shrink_seconds is not None else []
        return with_test(runs, [*words, *words_of(self.given), *shrink])


def named(runs: Sequence[Recording]) -> dict[str, Recording]:
    """Recordings by what they are called here: "reference" and "candidate", or "" where there is but one."""
    names = ("reference", "candidate") if len(runs) == 2 else ("",)
    return dict(zip(names, runs, strict=True))


def with_test(runs: Sequence[Recording], words: Sequence[str]) -> str:
    """A command line of `replay` that writes a test into a new folder beside the last recording."""
    place = new_folder_here(runs[-1].path.with_name("proof"))
    paths = [str(run.path) for run in runs]
    return command_line("replay", *paths, *words, "--write-test", place)


def words_of(given: Mapping[str, object]) -> list[str]:
    """Options as they were given; those of several values once for each."""
    pairs = [
        (name, one)
        for name, value in given.items()
        for one in (value if isinstance(value, tuple) else (value,))
    ]
    return [word for name, one in pairs if one not in (None, "") for word in (name, str(one))]
