"""A daemon that tests start, and what they ask it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.wings.cache import messages as m
from lockstep.wings.cache.client import asked
from lockstep.wings.cache.places import address_of


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

    def session(self, name: str) -> dict[str, Any]:
        return next(one for one in self.stat()["sessions"] if one["session"] == name)


Start = Callable[..., Running]
