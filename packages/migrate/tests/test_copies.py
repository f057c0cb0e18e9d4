"""Copies of a project that a command can run in as if it ran in the project itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import pytest

from lockstep_migrate.verify import copies
from lockstep_migrate.verify.copies import Ground, make_copy


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with a project, and data beside it."""
    project = tmp_path / "home" / "project"
    (project / "package").mkdir(parents=True)
    (project / "train.py").write_text("import package.net\nprint(open('../data/words').read())\n")
    (project / "package" / "net.py").write_text("import os\nprint(os.path.basename(__file__))\n")
    (project / "weights.pt").write_bytes(b"weights")
    (tmp_path / "home" / "data").mkdir()
    (tmp_path / "home" / "data" / "words").write_text("words")
    return tmp_path / "home"


def ground(home: Path, here: Path | None = None, sources: Iterable[str] = ("train.py",)) -> Ground:
    return Ground(
        home.parent / "copies" / "work",
        home / "project",
        here or home / "project",
        frozenset(map(PurePosixPath, sources)),
    )


def is_own(path: Path, place: Ground) -> bool:
    """Whether writing to a path leaves the original as it is."""
    return path.resolve().is_relative_to(place.top)


def test_a_command_finds_everything_by_the_same_paths(home: Path) -> None:
    place = ground(home)
    make_copy(place, {PurePosixPath("package/net.py"): b"print('migrated')\n"})
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=place.workplace,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["migrated", "words"]
    assert (home / "project" / "package" / "net.py").read_text().startswith("import os")


def test_what_the_command_may_overwrite_is_copied(home: Path) -> None:
    place = ground(home)
    linked = make_copy(place, {})
    for name in ("train.py", "weights.pt", "package/net.py", "package"):
        assert is_own(place.project / name, place)
    assert linked.states == {}
    # while data beside the project is shared
    assert not is_own(place.project.parent / "data", place)


@pytest.mark.parametrize("below", [True, False])
def test_the_command_may_be_typed_elsewhere(home: Path, below: bool) -> None:
    here = home / "project" / "package" if below else home
    place = ground(home, here)
    (home / "log").write_text("log")
    make_copy(place, {})
    assert is_own(place.workplace, place)
    assert (place.workplace / os.path.relpath(home / "project" / "train.py", here)).exists()
    assert below or is_own(place.workplace / "log", place)


def test_large_files_are_linked_and_watched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "COPIED_BYTES", 100)
    large = home / "project" / "large.bin"
    large.write_bytes(bytes(1000))
    linked = make_copy(place := ground(home), {})
    assert not is_own(place.project / "large.bin", place)
    assert is_own(place.project / "weights.pt", place)
    assert list(linked.states) == [large]
    assert linked.changed() == []
    (place.project / "large.bin").write_bytes(b"less")
    assert linked.changed() == [large]


def test_sources_are_copied_however_large(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a script that is started through a link finds its modules where the link leads
    monkeypatch.setattr(copies, "COPIED_BYTES", 0)
    place = ground(home, sources=["train.py", "package/net.py"])
    make_copy(place, {})
    assert is_own(place.project / "train.py", place)
    assert is_own(place.project / "package" / "net.py", place)
    assert not is_own(place.project / "weights.pt", place)


def test_a_crowded_folder_is_linked_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "ENTRIES", 12)
    for folder in ("images", "package"):
        (home / "project" / folder).mkdir(exist_ok=True)
        for number in range(20):
            (home / "project" / folder / f"{number}.png").touch()
    (home / "project" / "empty").mkdir()
    place = ground(home, sources=["train.py", "package/net.py"])
    linked = make_copy(place, {})
    assert list(linked.states) == [home / "project" / "images"]
    assert is_own(place.project / "package" / "3.png", place)
    assert is_own(place.project / "empty", place)


@pytest.mark.parametrize("name", [".git", ".venv", "env", "node_modules"])
def test_environments_are_linked_and_not_watched(home: Path, name: str) -> None:
    folder = home / "project" / name
    folder.mkdir()
    (folder / "pyvenv.cfg").touch()
    linked = make_copy(place := ground(home), {})
    assert (place.project / name).resolve() == folder
    assert linked.states == {}


def test_what_lockstep_keeps_and_writes_is_not_seen(home: Path) -> None:
    for name in ("__pycache__", "out"):
        (home / "project" / name).mkdir()
    place = Ground(
        home / "project" / "copies" / "work",
        home / "project",
        home / "project",
        frozenset(),
        frozenset({home / "project" / "out"}),
    )
    make_copy(place, {})
    names = {path.name for path in place.project.iterdir()}
    assert names == {"train.py", "package", "weights.pt"}


def test_links_lead_to_copies_of_what_is_copied(home: Path) -> None:
    (home / "project" / "inside").symlink_to("package/net.py")
    (home / "project" / "absolute").symlink_to(home / "project" / "package")
    (home / "project" / "outside").symlink_to("../data")
    (home / "project" / "nowhere").symlink_to("missing")
    (home / "project" / "loop").symlink_to("loop")
    place = ground(home)
    make_copy(place, {})
    # also when the copy has been renamed
    place.top.rename(place.top.with_name("kept"))
    kept = place.top.with_name("kept") / place.project.relative_to(place.top)
    assert (kept / "inside").resolve() == kept / "package" / "net.py"
    assert (kept / "absolute").resolve() == kept / "package"
    assert (kept / "outside").resolve() == home / "data"
    assert not (kept / "nowhere").exists()


def test_contents_replace_what_is_there_now(home: Path) -> None:
    # such as files that were migrated in place already, or that may not be written to
    (home / "project" / "train.py").chmod(0o555)
    place = ground(home)
    new = PurePosixPath("scripts/run.sh")
    make_copy(place, {PurePosixPath("train.py"): b"1\n", new: b"2\n"}, [new])
    assert (place.project / "train.py").read_bytes() == b"1\n"
    assert (place.project / "train.py").stat().st_mode & 0o777 == 0o555
    assert os.access(place.project / new, os.X_OK)


def test_an_unreadable_file_does_not_stop_it(home: Path) -> None:
    os.mkfifo(home / "project" / "pipe")
    locked = home / "project" / "locked"
    locked.touch()
    locked.chmod(0)
    make_copy(place := ground(home), {})
    assert (place.project / "pipe").is_symlink()
    assert (place.project / "locked").exists()


@pytest.mark.parametrize(
    "word",
    [
        "{root}",
        "{root}/train.py",
        "--config={root}/a.yaml",
        "cd '{root}' && python train.py",
        "{root}/src:{root}",
        "known/train.py",
    ],
)
def test_absolute_paths_lead_into_the_copy(home: Path, word: str) -> None:
    place = ground(home)
    known = str(home / "other-name")
    place = Ground(
        place.top, place.root, place.here, place.sources, frozenset(), {known: place.root}
    )
    word = word.replace("known", known)
    expected = word.format(root=place.project).replace(known, str(place.project))
    assert place.redirected(word.format(root=place.root)) == expected


@pytest.mark.parametrize(
    "word", ["{root}-other/train.py", "{root}2", "{root}.bak", "/mnt{root}", "train.py", "a/{root}"]
)
def test_other_paths_stay(home: Path, word: str) -> None:
    place = ground(home)
    assert place.redirected(word.format(root=place.root)) == word.format(root=place.root)


def test_paths_to_what_is_linked_stay(home: Path) -> None:
    (home / "project" / ".venv").mkdir()
    place = ground(home)
    make_copy(place, {})
    python = f"{place.root}/.venv/bin/python"
    assert place.redirected(f"{place.root}/.venv") == f"{place.root}/.venv"
    assert place.redirected(python) == python
