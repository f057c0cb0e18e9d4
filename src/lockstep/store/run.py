"""The top of a recording: making its directory, never over something else, and its manifest."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.manifest import Options, RunManifest
from lockstep.core.version import VERSION
from lockstep.store.schema import MANIFEST, SCHEMA_VERSION


class RunDirectory:
    """A recording's directory while the run goes on."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def create(
        cls, path: Path, command: list[str], options: Options, *, force: bool, shared: bool = False
    ) -> RunDirectory:
        """Make the directory and write its manifest.

        Parameters
        ----------
        force
            Replace an earlier recording at this path; anything else is never replaced.
        shared
            Several ranks make the same recording: one that is there already is joined.

        Raises
        ------
        OutputExistsError
            If the path is taken or cannot be written.
        """
        manifest = RunManifest(
            schema=SCHEMA_VERSION,
            version=VERSION,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=command,
            cwd=os.getcwd(),
            options=options,
            git=_git_state(),
        )
        run = cls(path, manifest)
        try:
            if not (shared and (path / MANIFEST).exists()):
                _make_room(path, force=force, shared=shared)
                path.mkdir(parents=True, exist_ok=True)
                run.write()
        except OSError as error:
            raise OutputExistsError(
                f"{path}: cannot be written ({error.strerror}); give another directory with -o"
            ) from error
        return run

    def finish(self, *, exit_code: int | None) -> None:
        """Note that the command has ended."""
        self.manifest.state = "complete"
        self.manifest.exit_code = exit_code
        self.write()

    def write(self) -> None:
        """Write the manifest aside and rename it."""
        aside = self.path / f".{MANIFEST}.{os.getpid()}"
        aside.write_text(json.dumps(dataclasses.asdict(self.manifest), indent=1))
        aside.replace(self.path / MANIFEST)


def _make_room(path: Path, *, force: bool, shared: bool) -> None:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())) or shared:
        return
    if not force:
        raise OutputExistsError(f"{path}: exists already; give another directory, or --force to replace a recording")
    if not path.is_dir() or not (path / MANIFEST).is_file():
        raise OutputExistsError(f"{path}: is not a recording, so --force does not replace it; give another directory")
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        ours = isinstance(manifest, dict) and "schema" in manifest and "command" in manifest
    except ValueError:
        ours = False
    if not ours:
        raise OutputExistsError(f"{path}: is not a recording, so --force does not replace it; give another directory")
    shutil.rmtree(path)


def _git_state() -> dict[str, str]:
    """Commit and whether there are changes, of the repository around the working directory; {} where there is none."""
    state = {}
    for key, arguments in (("commit", ["rev-parse", "HEAD"]), ("changes", ["status", "--porcelain", "-uno"])):
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        if done.returncode:
            return {}
        state[key] = done.stdout.strip()[:2000]
    return state


def check_output_file(path: Path, *, force: bool) -> None:
    """Check that a report may be written here.

    Raises
    ------
    OutputExistsError
        If the file is there and `force` is not given.
    UsageError
        If its directory does not exist.
    """
    if path.exists() and not force:
        raise OutputExistsError(f"{path}: exists already; give another name, or --force to replace it")
    if path.is_dir():
        raise OutputExistsError(f"{path}: is a directory; give a file name")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: its directory does not exist; make it first")
