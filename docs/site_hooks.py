"""What `make docs-site` changes of the pages: the README is the first one, and links that leave docs/ lead to the
repository."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/lockstep-numerics/lockstep"
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_BOOSTS = {
    **dict.fromkeys(("compare", "record.md", "notebook", "trouble"), 1.5),
    "rooms/": 0.2,
    **dict.fromkeys(
        ("architecture", "internals", "testing", "benchmarks", "faults", "migrate-"), 0.3
    ),
    **dict.fromkeys(("promises", "tolerances", "rules", "json", "cli", "api"), 0.5),
}
"""How much a page counts in the search, by the beginning of its path; most pages for users count 1."""
_MARK = re.compile(r"^(<!--.*-->)\n(?=\S)", re.MULTILINE)
_DOCSTRING = re.compile(r"^<!-- docstring: (\S+) -->$", re.MULTILINE)
"""Where mkdocstrings puts what a docstring says; a code host shows nothing there."""
_FENCED = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the site's first page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=site_links(text, ROOT)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with the links that the site follows; the search lists pages of internals after the others."""
    boost = next((one for start, one in _BOOSTS.items() if page.file.src_uri.startswith(start)), 1)
    page.meta["search"] = {"boost": boost}
    if page.file.src_uri == "index.md":
        return markdown
    markdown = _DOCSTRING.sub(r"::: \1", markdown)
    return site_links(markdown, (ROOT / "docs" / page.file.src_uri).parent)


def site_links(text: str, folder: Path) -> str:
    """Return Markdown of a page in `folder` whose links lead to pages of the site, or else to the repository."""
    parts = _FENCED.split(text)
    return "".join(
        part
        if index % 2
        else _LINK.sub(lambda link: _on_site(link, folder), _MARK.sub(r"\1\n\n", part))
        for index, part in enumerate(parts)
    )


def _on_site(link: re.Match[str], folder: Path) -> str:
    target = (folder / link[1]).resolve()
    anchor = link[2] or ""
    docs = ROOT / "docs"
    if not target.is_relative_to(docs) or target.suffix == ".py":
        if target == ROOT / "README.md":
            up = "../" * len(folder.relative_to(docs).parts)
            return f"]({up}index.md{anchor})"
        return f"]({SOURCE}/blob/main/{target.relative_to(ROOT).as_posix()}{anchor})"
    if folder == ROOT:
        return f"]({target.relative_to(docs).as_posix()}{anchor})"
    return link[0]
