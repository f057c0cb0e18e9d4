"""Keep the axes that a different tool gives for its tensors as a dims file beside the recording of its dump."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from lockstep.core.dims import DIMS_FILE
from lockstep.core.read_calls import ReadCall
from lockstep.core.site import Site


class DumpDims:
    """Gathers dims call by call."""

    def __init__(self) -> None:
        self._mesh: Mapping[str, int] = {}
        self._sites: dict[str, dict[str, str]] = {}

    def note(self, read: ReadCall, site: Site) -> None:
        """Keep the axes of a call; its ranks give the same for a site."""
        self._mesh = self._mesh or read.mesh
        for one in read.tensors:
            if one.dims:
                self._sites.setdefault(str(site), {})[f"{one.role.value}.{one.name}"] = one.dims

    def write(self, folder: Path) -> None:
        """Write the file, where there is anything to tell."""
        told = {"mesh": dict(self._mesh), "sites": self._sites}
        told = {key: value for key, value in told.items() if value}
        if self._sites:
            (folder / DIMS_FILE).write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")


__all__ = ["DumpDims"]
