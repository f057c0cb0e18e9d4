"""Modules that arguments name: two files of one name are two modules, and so is what each has beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep_deploy.user_modules import module_at


def written(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(text)
    return file


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    # given two folders with files of one name, each with a helper of one name
    for word in ("old", "new"):
        written(tmp_path / word, "the_net.py", "from the_blocks import WORD\n")
        written(tmp_path / word, "the_blocks.py", f"WORD = {word!r}\n")
    # when both are loaded, and the first once more
    words = [module_at(str(tmp_path / one / "the_net.py")).WORD for one in ("old", "new", "old")]
    # then each is its own, with its own helper
    assert words == ["old", "new", "old"]


def test_packages_of_one_name_are_two_packages(tmp_path: Path) -> None:
    for word in ("old", "new"):
        written(tmp_path / word / "the_package", "__init__.py", "")
        written(tmp_path / word / "the_package", "deep.py", f"WORD = {word!r}\n")
        written(tmp_path / word, "the_start.py", "from the_package.deep import WORD\n")
    words = [module_at(str(tmp_path / one / "the_start.py")).WORD for one in ("old", "new")]
    assert words == ["old", "new"]


def test_a_module_is_run_once(tmp_path: Path) -> None:
    file = str(written(tmp_path, "the_once.py", "MADE = object()\n"))
    assert module_at(file).MADE is module_at(file).MADE


def test_a_file_with_the_name_of_a_module_that_is_loaded_is_itself(tmp_path: Path) -> None:
    # given a file that is called as a module of Python's own
    file = str(written(tmp_path, "json.py", "WORD = 'mine'\n"))
    # then it is the file's, and Python's stays
    assert module_at(file).WORD == module_at(file).WORD == "mine"
    import json

    assert json.loads("1") == 1


def test_a_dotted_name_is_that_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = []
    for word in ("old", "new"):
        written(tmp_path / word, "the_named.py", f"WORD = {word!r}\n")
        monkeypatch.chdir(tmp_path / word)
        words.append(module_at("the_named").WORD)
    assert words == ["old", "new"]


def test_what_is_not_there_or_fails_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="there is no file"):
        module_at(str(tmp_path / "absent.py"))
    file = written(tmp_path, "the_failing.py", "raise RuntimeError('by itself')\n")
    with pytest.raises(RuntimeError, match="by itself"):
        module_at(str(file))
    file.write_text("WORD = 'mended'\n")
    assert module_at(str(file)).WORD == "mended"
