"""Running a command with the original and with the migrated files, each in a copy, and recording it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath

import click

from lockstep.errors import ExitCode, UsageError, reason_of
from lockstep.recordings import Options, Recorded, run_recorded
from lockstep_migrate.files.collection import Collection, Kind, from_here
from lockstep_migrate.plan import Plan
from lockstep_migrate.verify.copies import Ground, Linked, make_copy

STEPS = "0:3"
"""The steps that are recorded; then the command is ended."""

_SEED = 0
_NAMED = 4
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file of the project, as it was in a run."""

    path: PurePosixPath
    line: int


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the command.

    recorded: How it ended, and its recording.
    out, err: Files with what it printed.
    ground: The copy that it ran in.
    linked: What that shares with the original.
    """

    recorded: Recorded
    out: Path
    err: Path
    ground: Ground
    linked: Linked

    @property
    def code(self) -> int:
        """Exit code."""
        return self.recorded.ended.code

    @property
    def has_steps(self) -> bool:
        """Whether a step was recorded to its end."""
        return any(rank.complete_steps for rank in self.recorded.recording.ranks.values())

    def printed(self) -> str:
        """What it printed to standard output."""
        return self.out.read_text("utf-8", "replace")

    def last_lines(self, count: int) -> tuple[str, ...]:
        """The last lines of what it said: of its errors, or else of its output."""
        text = self.err.read_text("utf-8", "replace").strip() or self.printed().strip()
        return tuple(text.splitlines()[-count:])

    def failing_place(self) -> Place | None:
        """The innermost line of the project in the last traceback."""
        text = self.err.read_text("utf-8", "replace")
        for file, line in reversed(_FRAME.findall(text)):
            path = self.ground.relative(str(self.ground.workplace / file))
            if path is not None:
                return Place(path, int(line))
        return None

    def sources(self) -> set[str]:
        """The Python files that it loaded."""
        ranks = self.recorded.recording.ranks.values()
        return {source for rank in ranks for source in rank.manifest.sources}


class Trials:
    """Runs of one command with the original and the migrated files.

    All of them run in the same folder, one after the other, so that no path tells them apart; each folder is kept
    under the name of its run.

    plan, collection: What was migrated.
    command: What to run, as it was typed in the current folder, or as it is typed in the project's: where a word of it
        names a file there and none names one here, it runs there.
    folder: An empty folder for the copies, links resolved.
    results: Where recordings and outputs go.
    outputs: Where migrated files were written to: nothing of it is seen.
    """

    def __init__(
        self,
        plan: Plan,
        collection: Collection,
        command: tuple[str, ...],
        folder: Path,
        results: Path,
        outputs: Iterable[Path] = (),
    ) -> None:
        root = collection.root.resolve()
        here = _folder_for(command, root)
        self._plan, self._command = plan, command
        self._folder, self._results = folder, results
        self._ground = Ground(
            folder / "work",
            root,
            here,
            frozenset(found.path for found in collection.files if found.kind is not Kind.OTHER),
            frozenset(path.resolve() for path in outputs),
            _spellings(collection.root, root, here),
        )

    @cached_property
    def original(self) -> Trial:
        """The command with the original files."""
        return self._run("original", migrated=False)

    @cached_property
    def again(self) -> Trial:
        """The same once more."""
        return self._run("original-again", migrated=False)

    @cached_property
    def migrated(self) -> Trial:
        """The command with the migrated files."""
        return self._run("migrated", migrated=True)

    def kept(self) -> tuple[Path, ...]:
        """The folders of the runs so far."""
        return tuple(sorted(self._folder.iterdir()))

    def _run(self, name: str, *, migrated: bool) -> Trial:
        ground, results = self._ground, self._results
        linked = self._copy(migrated=migrated)
        results.mkdir(parents=True, exist_ok=True)
        out, err = results / f"{name}.out", results / f"{name}.err"
        words = "migrated" if migrated else "original"
        if name == "original":
            _say_what_is_linked(linked)
        where = "" if ground.here == Path.cwd() else f" in {from_here(ground.root)}"
        click.echo(f"running the {words} files{where}: {shlex.join(self._command)}", err=True)
        try:
            with out.open("wb") as stdout, err.open("wb") as stderr:
                recorded = run_recorded(
                    [ground.redirected(word) for word in self._command],
                    results / name,
                    Options(steps=STEPS, seed=_SEED, exit_after=True),
                    force=True,
                    adjust=self._environment,
                    cwd=ground.workplace,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                )
        finally:
            ground.top.rename(self._folder / name)
        if recorded.ended.code == ExitCode.INTERRUPTED:
            raise click.Abort
        return Trial(recorded, out, err, ground, linked)

    def _copy(self, *, migrated: bool) -> Linked:
        contents = {
            file.path: file.migrated() if migrated else file.source.data
            for file in self._plan.files
        }
        new = self._plan.new_files if migrated else ()
        contents |= {file.path: file.data for file in new}
        try:
            return make_copy(self._ground, contents, [file.path for file in new if file.executable])
        except OSError as error:
            raise UsageError(
                f"verify runs the command in copies below {self._folder}, but they cannot be made"
                f" ({reason_of(error)}); set TMPDIR to a folder with more room"
            ) from error

    def _environment(self, environment: dict[str, str]) -> dict[str, str]:
        """Modules come from the copy, and no compiled ones land in folders that are linked."""
        path = self._ground.redirected(environment["PYTHONPATH"])
        workplace = str(self._ground.workplace)
        return environment | {
            "PYTHONPATH": path,
            "PWD": workplace,
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def _folder_for(command: tuple[str, ...], root: Path) -> Path:
    """The folder that a command runs in: this one, or the project's where only there its words name files."""
    here = Path.cwd()
    relative = [Path(word) for word in command if not word.startswith("-") and word]
    modules = [
        Path(f"{name.replace('.', '/')}.py") for flag, name in pairwise(command) if flag == "-m"
    ]

    def names_one(folder: Path) -> bool:
        return any((folder / path).is_file() for path in (*relative, *modules))

    return root if not names_one(here) and names_one(root) else here


def _spellings(given: Path, root: Path, here: Path) -> dict[str, Path]:
    """How the project and the current folder are called by whoever came to them through links."""
    spellings = {str(given): root}
    shown = os.environ.get("PWD", "")
    with suppress(OSError):
        # Whoever changes the folder without a shell leaves the variable as it was.
        if shown and Path(shown).samefile(here):
            spellings[shown] = here
    return spellings


def _say_what_is_linked(linked: Linked) -> None:
    """Before anything runs, so that whoever minds can stop it."""
    names = [from_here(path) for path in linked.states]
    if names:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        click.echo(
            "running in copies; too large to be copied, and so linked, with what the command writes there:"
            f" {', '.join(names[:_NAMED])}{more}",
            err=True,
        )
