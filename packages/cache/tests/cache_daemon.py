"""A daemon that tests start, and what they ask it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep_cache import messages as m
from lockstep_cache.client import asked
from lockstep_cache.places import address_of


@dataclass
class Running:
    """A daemon."""

    address: str
    process: subprocess.Popen[str]
    programs: Path
    environment: dict[str, str] = field(default_factory=dict)

    def stat(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(asked(address_of(self.address), m.Stat(), m.Stats).text)
        return found

    def open_files(self) -> dict[str, list[Path]]:
        """The files of each tier that the daemon has open."""
        found: dict[str, list[Path]] = {"memory": [], "disk": []}
        for one in Path(f"/proc/{self.stat()['pid']}/fd").iterdir():
            with suppress(FileNotFoundError):  # the connection that has just asked
                named = str(one.readlink())
                if named.startswith("/memfd:"):
                    found["memory"].append(one)
                elif named.endswith("(deleted)") and one.stat().st_size:
                    found["disk"].append(one)
        return found

    def files(self) -> dict[str, list[os.stat_result]]:
        """What is known of each."""
        return {name: [one.stat() for one in files] for name, files in self.open_files().items()}

    def session(self, name: str) -> dict[str, Any]:
        return next(one for one in self.stat()["sessions"] if one["session"] == name)


Start = Callable[..., Running]
