"""The top of a recording: making its directory, never over something else, and its manifest."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lockstep.core.errors import CorruptError, OutputExistsError
from lockstep.core.manifest import Options, RunManifest
from lockstep.core.redaction import REDACTED
from lockstep.core.replacement import replacing
from lockstep.core.secrets import masked_command
from lockstep.core.version import VERSION
from lockstep.store.claim import Claim, is_recorded_into
from lockstep.store.integrity import GROWING, with_digest
from lockstep.store.limits import read_manifest, values_of
from lockstep.store.permissions import make_private_directory, write_private
from lockstep.store.schema import MANIFEST, SCHEMA_VERSION


class RunDirectory:
    """A recording's directory while the run goes on."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        self.path = path
        self.manifest = manifest
        self._replaced: Path | None = None
        self._claim: Claim | None = None
        self._made = self._written = False

    @classmethod
    def create(
        cls, path: Path, command: list[str], options: Options, *, force: bool
    ) -> RunDirectory:
        """Make the directory and write its manifest.

        Parameters
        ----------
        force
            Replace an earlier recording at this path; anything else is never replaced, except the
            remains of a command that ended before anything was recorded. It is put aside until `started` or
            `discard` is called.

        Raises
        ------
        OutputExistsError
            If the path is taken, also by a recording that is being made there now, or cannot be written.
        """
        path = path.resolve() if path.is_symlink() else path
        manifest = RunManifest(
            schema=SCHEMA_VERSION,
            version=VERSION,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=[REDACTED] if options.redact else masked_command(command),
            cwd=REDACTED if options.redact else str(Path.cwd()),
            options=options,
            git={} if options.redact else _git_state(),
        )
        run = cls(path, manifest)
        try:
            run._take_place(force=force)
        except OSError as error:
            run.discard()
            raise OutputExistsError(
                f"{path}: cannot be written ({error.strerror or error}); give another directory"
            ) from error
        return run

    def _take_place(self, *, force: bool) -> None:
        """Put the directory in its place, with the manifest in it: of two commands at once one alone can."""
        with ExitStack() as held:
            if self.path.is_dir():
                there = held.enter_context(Claim(self.path))
                if not any(self.path.iterdir()):
                    self._write(self.path)
                    held.pop_all()
                    self._claim = there
                    return
            earlier = self.path if self.path.exists() else None
            if earlier is not None:
                _check_may_go(earlier, force=force)
            self._claim = self._put_in_place(earlier)

    def _put_in_place(self, earlier: Path | None) -> Claim:
        """Make the directory beside its place and move it there, where nothing is but what was `earlier`."""
        fresh = self.path.with_name(f".{self.path.name}.new-{secrets.token_hex(4)}")
        make_private_directory(fresh)
        claim = Claim(fresh)
        try:
            self._write(fresh)
            if earlier is not None:
                aside = earlier.with_name(f".{earlier.name}.replaced-{os.getpid()}")
                self._replaced = earlier.rename(aside)
            fresh.rename(self.path)
        except OSError as error:
            claim.release()
            shutil.rmtree(fresh, ignore_errors=True)
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise is_recorded_into(self.path) from error
            raise
        self._made = True
        return claim

    def started(self) -> None:
        """Remove the recording that this run replaces: the run goes on."""
        if self._replaced is not None:
            shutil.rmtree(self._replaced, ignore_errors=True)
            self._replaced = None

    def discard(self) -> None:
        """Restore the recording that was to be replaced: the run never started."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
        elif self._written:
            (self.path / MANIFEST).unlink(missing_ok=True)
        if self._replaced is not None:
            self._replaced.rename(self.path)
            self._replaced = None
        self.release()

    def finish(self, *, exit_code: int | None) -> None:
        """Note that the command has ended, where that can be written."""
        self.manifest.state = "complete"
        self.manifest.exit_code = exit_code
        with suppress(OSError):
            self._write(self.path)
        self.release()

    def release(self) -> None:
        """Let others record here; all that a forked child has to do with the recording of its parent."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _write(self, directory: Path) -> None:
        """Write the manifest aside and rename it."""
        text = json.dumps(dataclasses.asdict(self.manifest), indent=1)
        with replacing(directory / MANIFEST) as aside:
            write_private(aside, with_digest(text))
        self._written = True


def _check_may_go(path: Path, *, force: bool) -> None:
    """Refuse to replace anything but a recording that nobody writes to any more.

    Raises OutputExistsError if it is to stay.
    """
    if not force and not _holds_nothing(path):
        raise OutputExistsError(
            f"{path}: exists already; give another directory, or --force to replace a recording"
        )
    if _own_manifest(path) is None:
        raise OutputExistsError(
            f"{path}: is not a recording, so --force does not replace it; give another directory"
        )
    for entry in path.iterdir():
        if entry.name.startswith("rank") and entry.is_dir():
            # A training outlives its command where that was killed.
            Claim(entry).release()


def is_recording(path: Path) -> bool:
    """Whether a directory is a recording, by its manifest."""
    return _own_manifest(path) is not None


def _own_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a recording, None where the path is none."""
    manifest = _manifest_in(path)
    ours = isinstance(manifest, dict) and "schema" in manifest and "command" in manifest
    return manifest if ours else None


def _manifest_in(path: Path) -> Any:
    """The values of a manifest, None where there is none that can be read."""
    try:
        return values_of(read_manifest(path / MANIFEST))
    except (CorruptError, ValueError):
        return None


def _holds_nothing(path: Path) -> bool:
    """Whether a recording has ended and nothing was recorded, nor put into it by anybody else.

    A command that failed before its first step leaves one, and it is to be no obstacle to the next try.
    """
    manifest = _own_manifest(path)
    if manifest is None or manifest.get("state") != "complete":
        return False
    return all(
        _is_empty_rank(entry) if entry.is_dir() else entry.name == MANIFEST or _is_hidden(entry)
        for entry in path.iterdir()
    )


def _is_empty_rank(path: Path) -> bool:
    """Whether a directory is that of a rank without a single row, or without a step where the rank has ended: what
    stands in it then are the parameters of a model that never ran."""
    names = {entry.name for entry in path.iterdir() if not _is_hidden(entry)}
    if not path.name.startswith("rank") or MANIFEST not in names:
        return False
    return names <= {MANIFEST, *GROWING} or names <= {MANIFEST, *_files_without_steps(path)}


def _files_without_steps(path: Path) -> Iterable[str]:
    """The files that the manifest of a rank lists which has ended before its first step; none of any other."""
    manifest = _manifest_in(path)
    ended = isinstance(manifest, dict) and manifest.get("state") == "complete"
    return manifest.get("files", ()) if ended and not manifest.get("steps", True) else ()


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(".") and path.is_file()


def _git_state() -> dict[str, str]:
    """Commit and changes of the repository around the working directory; {} without one."""
    state = {}
    for key, arguments in (
        ("commit", ["rev-parse", "HEAD"]),
        ("changes", ["status", "--porcelain", "-uno"]),
    ):
        try:
            done = subprocess.run(
                ["git", *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return {}
        if done.returncode:
            return {}
        state[key] = done.stdout.strip()[:2000]
    return state
