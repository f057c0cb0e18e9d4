"""Which code is the user's own, and how a file of it is called. No torch here."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from functools import cache, lru_cache
from pathlib import Path

from lockstep.core.members import own_folders

INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
"""Where files of installed packages lie."""


def loaded_sources() -> list[str]:
    """Files of the modules that are loaded, links resolved, without those of Python and of installed packages."""
    last = next(
        reversed(sys.modules.values())
    )  # of thousands: to go through all at each step takes long
    return list(_sources_of(len(sys.modules), id(last), getattr(last, "__file__", None)))


@lru_cache(maxsize=1)
def _sources_of(_count: int, _last: int, _file: str | None) -> list[str]:
    """The same, looked for again once others are loaded: for each step that is recorded apart it is asked anew."""
    return sorted(map(_resolved, module_files()))


_resolved = cache(os.path.realpath)
"""Of files of modules that are loaded: where they lie is asked for once each."""


def module_files() -> list[str]:
    """The same as they are called by their modules."""
    # Not by getattr: some modules load others when they are asked for what they have not.
    modules = tuple(sys.modules.values())
    files = {getattr(module, "__dict__", {}).get("__file__") for module in modules}
    return [file for file in files if isinstance(file, str) and is_of_the_user(file)]


@cache
def is_of_the_user(file: str) -> bool:
    """Whether a file is neither Python's nor Lockstep's nor of an installed package."""
    return not (
        file.startswith(_installed_in()) or INSTALLED.search(file) or not Path(file).is_absolute()
    )


@cache
def _installed_in() -> tuple[str, ...]:
    """Folders of Python's own modules, and Lockstep's."""
    return (
        *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")},
        *own_folders(),
    )


def short_path(file: str) -> str:
    """A file's path as a person would say it: below the working directory, or from its package on."""
    path = os.path.abspath(file)
    below = os.path.relpath(path, os.getcwd())
    if not below.startswith(".."):
        for marker in ("site-packages", "dist-packages"):
            if f"{os.sep}{marker}{os.sep}" in path:
                return path.split(f"{os.sep}{marker}{os.sep}", 1)[1]
        return below
    for root in sorted(sys.path, key=len, reverse=True):
        if (
            root
            and path.startswith(os.path.abspath(root) + os.sep)
            and os.path.abspath(root) != os.sep
        ):
            return os.path.relpath(path, os.path.abspath(root))
    return path
