"""The machines that `lockstep remote add` named, in a file that only this user can read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lockstep.errors import UsageError, reason_of
from lockstep.files import MASK, make_private_directory, masked_setting, replacing, write_private

WORKDIR = "~/.lockstep"
PYTHON = "python3"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ADDRESS = re.compile(
    r"(?:(?P<user>[^@\s:]+)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^@\s:/]+)(?::(?P<port>\d{1,5}))?"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect to: `user` is "" and `port` None where `~/.ssh/config` or SSH's defaults decide."""

    host: str
    user: str = ""
    port: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that trainings can run on.

    name: What `--on` calls it.
    address: `user@host:port`, or a name of `~/.ssh/config`.
    workdir: The folder there in which Lockstep keeps what it sends, and jobs.
    python: The Python there that trains.
    env_file: A file here of lines `NAME=VALUE`, read anew for each run; "" for none.
    variables: More variables; None where the value is that of the environment here when a run starts.
    """

    name: str
    address: str
    workdir: str = WORKDIR
    python: str = PYTHON
    env_file: str = ""
    variables: Mapping[str, str | None] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """Return the variables of one run, with their values.

        Raises UsageError if the file cannot be read, or a variable is not set here.
        """
        found = variables_in(Path(self.env_file)) if self.env_file else {}
        for name, value in self.variables.items():
            if value is None and name not in os.environ:
                raise UsageError(
                    f"{self.name}: {name} is to come from your environment and is not set here; export it first"
                )
            found[name] = os.environ[name] if value is None else value
        return found


def parsed_address(text: str) -> Address:
    """Return what `user@host:port` says. Raises UsageError if it is none."""
    found = _ADDRESS.fullmatch(text)
    if found is None or text.startswith("-"):
        raise UsageError(
            f"{text!r} is not a machine; write user@host, user@host:port or a name of ~/.ssh/config"
        )
    port = int(found["port"]) if found["port"] else None
    return Address(found["host"].strip("[]"), found["user"] or "", port)


def parsed_variable(text: str) -> tuple[str, str | None]:
    """Return name and value of `NAME=VALUE`; the value of `NAME` alone is None, and comes from here at each run.

    Raises UsageError if it is none, or looks like a secret: that would stand in the list of processes and in a file.
    """
    name, given, value = text.partition("=")
    if _VARIABLE.fullmatch(name) is None:
        raise UsageError(
            f"--env {name!r}: write NAME=VALUE, or NAME alone to take the value from here at each run"
        )
    if given and MASK in masked_setting(name, value):
        raise UsageError(
            f"--env {name}=... looks like a secret, and a command line is no place for one; write --env {name} to take"
            " it from your environment at each run, or put it into an --env-file"
        )
    return name, value if given else None


def variables_in(path: Path) -> dict[str, str]:
    """Return the variables of a file of lines `NAME=VALUE`; `#` begins a comment, `export` and quotes are allowed.

    Raises UsageError if it cannot be read or a line is none; no value is ever said.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--env-file {path}: cannot be read ({_why(error)})") from error
    found = {}
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").strip()
        if not text or text.startswith("#"):
            continue
        name, given, value = text.partition("=")
        if not given or _VARIABLE.fullmatch(name.strip()) is None:
            raise UsageError(f"--env-file {path}: line {number} is not NAME=VALUE")
        value = value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        found[name.strip()] = value[1:-1] if quoted else value
    return found


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is no text"


# --- the file -----------------------------------------------------------------------------------


def machines() -> dict[str, Machine]:
    """Return the machines by name. Raises UsageError if their file is damaged."""
    path = _file()
    try:
        entries = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read ({reason_of(error)}); mend or remove it"
        ) from error
    try:
        return {one["name"]: Machine(**one) for one in entries}
    except (TypeError, KeyError) as error:
        raise UsageError(f"{path}: is not a list of machines; mend or remove it") from error


def machine_named(name: str) -> Machine:
    """Return the machine of this name. Raises UsageError if there is none."""
    known = machines()
    if name not in known:
        there = f"there are {', '.join(known)}" if known else "there is none yet"
        raise UsageError(
            f"no machine is called {name}; {there}", command=f"lockstep remote add {name} user@host"
        )
    return known[name]


def keep(machine: Machine, *, replace: bool) -> None:
    """Keep a machine.

    Raises UsageError if its name cannot be one or is taken. Raises OSError if the file cannot be written.
    """
    if _NAME.fullmatch(machine.name) is None:
        raise UsageError(f"{machine.name!r} is not a name; use letters, digits, '.', '_' and '-'")
    parsed_address(machine.address)
    known = machines()
    if machine.name in known and not replace:
        raise UsageError(
            f"{machine.name} is {known[machine.name].address} already; give another name, or --force to replace it"
        )
    _write({**known, machine.name: machine})


def forget(name: str) -> Machine:
    """Remove a machine from the file; returns it. Raises UsageError if there is none of this name."""
    machine = machine_named(name)
    _write({one.name: one for one in machines().values() if one.name != name})
    return machine


def _write(known: Mapping[str, Machine]) -> None:
    path = _file()
    make_private_directory(path.parent, exist_ok=True)
    with replacing(path) as aside:
        write_private(aside, json.dumps([asdict(one) for one in known.values()], indent=1) + "\n")


def _file() -> Path:
    """Where configurations are (XDG Base Directory Specification 0.8)."""
    base = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config")
    return base.expanduser() / "lockstep" / "machines.json"
