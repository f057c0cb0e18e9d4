"""Keep a small file for each job on another machine, so that `lockstep remote attach` finds it again."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.files import make_private_directory, masked_command, replacing, write_private
from lockstep.plugin import Use


@dataclass(frozen=True, slots=True)
class Output:
    """Something that a job writes.

    here, there: Where it goes on this machine, and where it lies on the other.
    use: Whether it is a recording.
    """

    here: str
    there: str
    use: Use


@dataclass(slots=True)
class Job:
    """A command that runs on another machine.

    key: What `attach` and `stop` call it.
    machine: The machine's name.
    command: What runs, without secrets.
    started: When, as ISO 8601 in UTC.
    folder: Its folder there.
    outputs: What it writes.
    logs: How many bytes of its output and of its errors were printed here.
    """

    key: str
    machine: str
    command: list[str]
    started: str
    folder: str
    outputs: list[Output] = field(default_factory=list)
    logs: list[int] = field(default_factory=lambda: [0, 0])

    def keep(self) -> None:
        """Write its file. Raises OSError if it cannot be written."""
        path = _file(self.key)
        make_private_directory(path.parent, exist_ok=True)
        outputs = [{**asdict(one), "use": one.use.name} for one in self.outputs]
        values = {**asdict(self), "outputs": outputs}
        with replacing(path) as aside:
            write_private(aside, json.dumps(values))

    def forget(self) -> None:
        """Remove its file: it has ended, and what it wrote is here."""
        _file(self.key).unlink(missing_ok=True)


def new_job(machine: str, command: Sequence[str], workdir: str) -> Job:
    """Return a job that nobody has started yet."""
    key = f"{machine}-{secrets.token_hex(4)}"
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Job(key, machine, masked_command(command), started, f"{workdir}/jobs/{key}")


def jobs() -> list[Job]:
    """Return all jobs, the newest first."""
    found = [_read(path) for path in _folder().glob("*.json")]
    return sorted(
        (one for one in found if one is not None), key=lambda one: one.started, reverse=True
    )


def job_of(key: str) -> Job:
    """Return the job of this key, or the only one of the machine of this name.

    Raises UsageError if there is none, or several.
    """
    known = jobs()
    found = [one for one in known if key in (one.key, one.machine)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{key} runs several jobs: name one of {', '.join(one.key for one in found)}"
        )
    there = f"there are {', '.join(one.key for one in known)}" if known else "there is none"
    raise UsageError(f"no job is called {key}; {there}")


def _folder() -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    return state.expanduser() / "lockstep" / "remote"


def _file(key: str) -> Path:
    return _folder() / f"{key}.json"


def _read(path: Path) -> Job | None:
    """A job from its file, None where it is none."""
    try:
        values = json.loads(path.read_bytes())
        outputs = [
            Output(one["here"], one["there"], Use[one["use"]]) for one in values.pop("outputs")
        ]
        return Job(**values, outputs=outputs)
    except (OSError, ValueError, TypeError, KeyError):
        return None
