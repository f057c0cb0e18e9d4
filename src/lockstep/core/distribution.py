"""Another project that brings a package `lockstep`, and stands in the way of this one."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from lockstep.core.version import DISTRIBUTION

OTHERS = ("lockstep-ml", "lockstep")
"""Distributions that are known to bring a package `lockstep`, or may."""

_HERE = Path(__file__).parents[1]


def shadow() -> str:
    """Return the file that hides this package, in one sentence; "" if none does."""
    package = sys.modules.get("lockstep")
    place = getattr(package, "__file__", None) or ""
    if getattr(package, "DISTRIBUTION", "") != DISTRIBUTION or Path(place).parent != _HERE:
        return (
            f"the package `lockstep` at {place or 'an unknown place'} is another project's; uninstall that project and"
            f" install {DISTRIBUTION} again"
        )
    for name in OTHERS:
        version = _installed(name)
        if version:
            return (
                f"{name} {version}, another project, is installed here and brings a package `lockstep` too, so each"
                f" overwrites the other's files; pip uninstall {name}, then install {DISTRIBUTION} again"
            )
    return ""


def _installed(name: str) -> str:
    """Version of a distribution that brings a package `lockstep` of its own, "" where there is none."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return ""
    # An earlier build of this very package went by another name.
    ours = any(point.value == "lockstep.report.writers" for point in found.entry_points)
    brings = found.files is None or any(file.parts[0] == "lockstep" for file in found.files)
    return "" if ours or not brings else found.version
