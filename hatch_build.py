"""The README as a package index shows it: its links and pictures lead to the project's own pages.

In the repository they are relative, so that they work in every clone. An index has none of the files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):  # type: ignore[misc]  # hatchling ships no types
    """Fills in `readme`, which is why pyproject.toml calls it dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata of the package."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(text, metadata["urls"]["Source"]),
        }


def with_absolute_links(text: str, source: str) -> str:
    """Return Markdown whose relative links lead below `source`: pictures to the file itself, pages to its view."""

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({source}/{view}/main/{link[3]})"

    return _LINK.sub(absolute, text)
