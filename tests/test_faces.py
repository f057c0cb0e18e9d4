"""The faces: what members and plug-ins may use of Lockstep, name by name, and a plug-in that uses no more."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lockstep
from lockstep.core.faces import sources_of
from lockstep.testing import MadeTraining, write_recording

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # of pytest's own needs

ROOT = Path(__file__).parents[1]
SOURCE = Path(lockstep.__file__).parent
FACES = (
    "compare", "errors", "files", "judging", "launch", "options", "page", "plugin", "recorder", "recordings", "rerun",
    "terminal",
)  # fmt: skip
WITH_TORCH = {"recorder", "rerun"}


def file_of(face: str) -> Path:
    file = SOURCE / f"{face}.py"
    return file if file.exists() else SOURCE / face / "__init__.py"


def in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("face", FACES)
def test_a_face_lists_the_names_that_it_gives_and_gives_each(face: str) -> None:
    # given a face
    module = importlib.import_module(f"lockstep.{face}")
    sources = sources_of(file_of(face))
    # then its list is that of its imports, and every name is what stands where it comes from
    assert sorted(module.__all__) == sorted(sources)
    for name in module.__all__:
        place, original = sources[name]
        assert getattr(module, name) is getattr(importlib.import_module(place), original)
    # and it has no other
    with pytest.raises(
        AttributeError, match=f"module 'lockstep.{face}' has no attribute 'nothing'"
    ):
        _ = module.nothing


def test_loading_all_faces_loads_nothing_heavy() -> None:
    imports = ", ".join(f"lockstep.{face}" for face in FACES)
    heavy = "{'torch', 'polars', 'numpy', 'rich', 'click'}"
    assert (
        in_new_process(f"import sys, {imports}; print(sorted({heavy} & set(sys.modules)))")
        == "[]\n"
    )


def test_names_load_no_torch_but_those_that_record_or_run_calls_again() -> None:
    code = f"""
import importlib, sys
for face in {sorted(set(FACES) - WITH_TORCH)}:
    module = importlib.import_module(f"lockstep.{{face}}")
    for name in module.__all__:
        getattr(module, name)
print("torch" in sys.modules)
"""
    assert in_new_process(code) == "False\n"


def test_members_may_import_no_other_module_of_the_core() -> None:
    # given what the contract of the members forbids
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = {one["id"]: one for one in settings["tool"]["importlinter"]["contracts"]}
    forbidden = set(contracts["faces"]["forbidden_modules"])
    # then that is all of the core but its faces, and imports for type checkers count
    old_names = {"__init__", "__main__", "cache", "compat"}
    modules = {one.stem for one in SOURCE.glob("*.py")} | {
        one.parent.name for one in SOURCE.glob("*/__init__.py")
    }
    inner = {f"lockstep.{name}" for name in modules - set(FACES) - old_names}
    assert forbidden == {*inner, "lockstep.launch.*"}
    assert not settings["tool"]["importlinter"]["exclude_type_checking_imports"]
    assert "ignore_imports" not in contracts["faces"]


def test_the_page_lists_every_name_with_what_it_is() -> None:
    # given the page as `make docs` makes it
    made = runpy.run_path(str(ROOT / "docs" / "build.py"))
    page = (ROOT / "docs" / "internals.md").read_text("utf-8")
    # then it stands there, and no name is without words
    assert made["internals_page"]() == page
    for face in FACES:
        table = page.partition(f"### lockstep.{face}\n")[2].partition("\n### ")[0]
        words = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE))
        assert sorted(words) == sorted(importlib.import_module(f"lockstep.{face}").__all__), face
        assert all(len(text) > 3 for text in words.values())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the built wheels of Lockstep and of the plug-in on the page hold."""
    folder = tmp_path_factory.mktemp("plug-in")
    page = (ROOT / "docs" / "internals.md").read_text("utf-8")
    shown = page.partition("<!-- plug-in -->")[2].partition("<!-- /plug-in -->")[0]
    code, settings = re.findall(r"```(?:python|toml)\n(.*?)```", shown, re.DOTALL)
    assert len(code.splitlines()) <= 50
    (folder / "lockstep_steepest.py").write_text(code)
    (folder / "pyproject.toml").write_text(settings)
    for place in (ROOT, folder):
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    for wheel in (folder / "dist").glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def test_the_plug_in_on_the_page_runs_by_the_built_wheel(installed: Path, tmp_path: Path) -> None:
    # given a recording, and one without a step of the optimizer
    write_recording(tmp_path / "ref", MadeTraining(steps=2))
    (tmp_path / "empty").mkdir()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        code = "import lockstep; from lockstep.terminal import main; print(lockstep.__file__); raise SystemExit(main())"
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=False,
        )

    # when its verb runs with Lockstep from the wheel
    done = run("steepest", "ref")
    # then there is a row for each step
    assert (done.returncode, done.stderr) == (0, "")
    place, _, *rows = done.stdout.splitlines()
    assert Path(place).is_relative_to(installed)
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert all(row.split()[-1].startswith("fc") for row in rows)
    # and an error is one sentence
    failed = run("steepest", "empty")
    assert failed.returncode == 2
    assert failed.stderr.startswith("lockstep: empty")
    assert failed.stderr.count("\n") == 1
    # and the help names it
    assert "steepest" in run("--help").stdout
