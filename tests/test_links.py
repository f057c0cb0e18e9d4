"""Links lead somewhere: files, headings of pages, and the README as a package index shows it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
WORDS = 1600
"""A README that is read in five minutes."""


def pages() -> list[Path]:
    """Every page of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [ROOT / line for line in listed.stdout.splitlines()]
    return found or [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def headings(text: str) -> set[str]:
    """The anchors that a code host gives the headings of a page."""
    found: Counter[str] = Counter()
    anchors = set()
    for heading in re.findall(r"^#+ +(.+?)\s*$", _FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.add(slug if not found[slug] else f"{slug}-{found[slug]}")
        found[slug] += 1
    return anchors


def dead_links(page: Path, text: str) -> list[str]:
    """What a page links to that is not there."""
    found = []
    for target in _LINK.findall(_CODE.sub("", _FENCE.sub("", text))):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (
            anchor and file.suffix == ".md" and anchor not in headings(file.read_text())
        ):
            found.append(target)
    return found


def test_every_link_of_every_page_leads_to_a_file_and_to_a_heading_in_it() -> None:
    known = pages()
    assert len(known) > 30
    dead = {str(page.relative_to(ROOT)): dead_links(page, page.read_text()) for page in known}
    assert {page: links for page, links in dead.items() if links} == {}


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path) -> None:
    # given a page with links to a file, a heading, and to neither
    page = tmp_path / "page.md"
    text = "# One: two\n[a](page.md) [b](#one-two) [c](none.md) [d](page.md#three)\n```\n[e](code.md)\n```\n"
    page.write_text(text)
    assert dead_links(page, text) == ["none.md", "page.md#three"]


def test_the_site_has_every_page_of_the_docs() -> None:
    # given the pages that mkdocs.yml lists; the README is its index
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    docs = ROOT / "docs"
    there = [str(page.relative_to(docs)) for page in pages() if page.is_relative_to(docs)]
    assert len(there) > 40
    assert sorted(listed) == sorted([*there, "index.md"])


@pytest.mark.exhaustive
def test_the_site_is_built_and_asks_nothing_of_the_network(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    # when the site is built, and a dead link is an error
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    # then its first page is the README, and no page loads a script, a style or a picture from elsewhere
    assert "Lockstep records two PyTorch trainings" in (tmp_path / "index.html").read_text()
    for page in tmp_path.rglob("*.html"):
        assert (
            re.findall(r"<(?:script|img|link)[^>]+(?:src|href)=\"?https?:[^>]*>", page.read_text())
            == []
        )


def test_an_index_page_shows_the_readme_with_absolute_links() -> None:
    # given the README as the package carries it
    text = (ROOT / "README.md").read_text()
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))
    shown = hook["with_absolute_links"](text, "https://example.org/project")
    # then no link is relative, pictures lead to files, pages to their view
    assert len(_LINK.findall(text)) == len(_LINK.findall(shown)) > 30
    assert [link for link in _LINK.findall(shown) if not link.startswith("https://")] == []
    assert "](https://example.org/project/raw/main/docs/images/report.png)" in shown
    assert "](https://example.org/project/blob/main/docs/record.md)" in shown


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= WORDS


def test_the_papers_of_a_release_name_the_same_version_and_repository() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    source = re.search(r'^Source = "(.+)"', project, re.MULTILINE)
    assert version is not None
    assert source is not None
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == version[1]
    assert citation["repository-code"] == source[1]
    assert f"{source[1]}/security" in (ROOT / "SECURITY.md").read_text()
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert isinstance(yaml.safe_load(form.read_text()), dict), form.name
