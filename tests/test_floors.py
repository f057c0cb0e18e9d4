"""The floors of the architecture: imports go downwards only, and the face is small and quick to load."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from importlinter.cli import lint_imports

import lockstep
from lockstep.core.members import MEMBERS

ROOT = Path(__file__).parents[1]


def test_imports_go_downwards_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(cache_dir=None, no_cache=True) == 0


def test_no_files_import_each_other_in_a_circle_though_it_be_for_type_checkers_or_later() -> None:
    # given every import of every file
    packages = [member.package for member in MEMBERS]
    graph = grimp.build_graph("lockstep", *packages, cache_dir=None)

    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "lockstep.core.finding" in imports["lockstep.comparison"]
    # then there is an order in which each has only what stands before it
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_public_face_is_closed_and_loads() -> None:
    assert lockstep.__all__ == sorted(lockstep.__all__)
    assert dir(lockstep) == lockstep.__all__
    assert all(getattr(lockstep, name) is not None for name in lockstep.__all__)


@pytest.mark.parametrize(
    "arguments", [["-c", "import lockstep"], ["-m", "lockstep", "--help"]], ids=["import", "help"]
)
def test_face_and_help_load_nothing_heavy(arguments: list[str]) -> None:
    # given a fresh interpreter that tells what it imports
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    # then neither torch nor the table library is among it
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "lockstep" in loaded
    assert loaded & {"torch", "polars", "numpy"} == set()


_SOURCE = Path(lockstep.__file__).parent


def _files_below(*roots: Path) -> Iterator[tuple[Path, Path]]:
    """Each file with the package at whose root it lies."""
    yield from ((root, file) for root in roots for file in root.rglob("*.py"))


_IMPORTED = re.compile(r"^\s*from lockstep\.([\w.]+) import", re.MULTILINE)
_WITH_FACES = ("align", "judge", "locate", "replay")


def test_other_rooms_import_the_modules_that_a_folder_lists_and_no_others() -> None:
    # given what each file imports of the rooms whose folders list their modules in `__all__`
    used: dict[str, set[str]] = defaultdict(set)
    members = ROOT.glob("packages/*/src/lockstep_*")
    for root, file in _files_below(_SOURCE, *members):
        room = file.relative_to(root).parts[0] if root == _SOURCE else root.name
        for name in _IMPORTED.findall(file.read_text("utf-8")):
            folder, _, module = name.rpartition(".")
            if folder.startswith(_WITH_FACES) and folder.partition(".")[0] != room:
                used[folder].add(module)
    # then those lists name them all, and none that stays inside
    faces = {
        str(init.parent.relative_to(_SOURCE)).replace("/", "."): init
        for room in _WITH_FACES
        for init in (_SOURCE / room).rglob("__init__.py")
        if "__all__" in init.read_text("utf-8")
    }
    assert used.keys() <= faces.keys()
    for folder in faces:
        assert importlib.import_module(f"lockstep.{folder}").__all__ == sorted(used[folder]), folder
