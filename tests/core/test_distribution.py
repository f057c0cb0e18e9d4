"""Another project's package of the same name is told of; our own, under an earlier name too, is not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import lockstep
from lockstep.core.members import shadow
from lockstep.core.version import DISTRIBUTION, VERSION


def install(
    path: Path, name: str, *, files: tuple[str, ...] | None, entry_points: str = ""
) -> None:
    """Leave what pip leaves of a distribution."""
    folder = path / f"{name.replace('-', '_')}-9.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.1\n")
    (folder / "entry_points.txt").write_text(entry_points)
    if files is not None:
        (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_alone_there_is_nothing_to_say() -> None:
    assert shadow() == ""
    assert (lockstep.DISTRIBUTION, lockstep.__version__) == (DISTRIBUTION, VERSION)


@pytest.mark.parametrize("files", [("lockstep/__init__.py", "lockstep/core.py"), None])
def test_another_project_beside_this_one_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...] | None
) -> None:
    install(tmp_path, "lockstep-ml", files=files)
    monkeypatch.syspath_prepend(tmp_path)
    told = shadow()
    assert told.startswith("lockstep-ml 9.1, another project, is installed here")
    assert "pip uninstall lockstep-ml, then install lockstep-numerics again" in told


def test_one_that_brings_no_such_package_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "lockstep-ml", files=("other/__init__.py",))
    monkeypatch.syspath_prepend(tmp_path)
    assert shadow() == ""


def test_an_earlier_build_of_our_own_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = "[lockstep]\nreports = lockstep.report.writers\n"
    install(tmp_path, "lockstep-ml", files=("lockstep/__init__.py",), entry_points=points)
    monkeypatch.syspath_prepend(tmp_path)
    assert shadow() == ""


def test_a_package_that_is_not_ours_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given the other project's __init__ in our folder, as two installations into one place leave it
    other = ModuleType("lockstep")
    other.__file__ = lockstep.__file__
    monkeypatch.setitem(sys.modules, "lockstep", other)
    assert f"the package `lockstep` at {lockstep.__file__} is another project's" in shadow()
    # Or somewhere else
    other.__file__ = "/elsewhere/lockstep/__init__.py"
    assert "at /elsewhere/lockstep/__init__.py is another project's" in shadow()
