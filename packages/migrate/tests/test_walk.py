"""Collecting files: each once, in one order, whatever lies in the way."""

import os
import socket
from pathlib import Path

import pytest
from trees import plant

from lockstep.core.errors import UsageError
from lockstep_migrate.engine.text import UndecodableError
from lockstep_migrate.files.collection import (
    SMALL_BYTES,
    SOURCE_BYTES,
    Found,
    Kind,
    collect,
    failure,
    read,
)


def kinds(collection):
    return {str(found.path): found.kind for found in collection.files}


def skipped(collection):
    return {str(item.path): item.reason for item in collection.skipped}


def test_every_kind_is_known_by_its_name_or_first_line(tmp_path):
    expected = {
        Kind.PYTHON: "a.py a.pyw a.pyi A.PY tool tool2 tool3",
        Kind.NOTEBOOK: "a.ipynb",
        Kind.SHELL: "a.sh a.bash a.slurm job.sbatch start Dockerfile Dockerfile.gpu Makefile GNUmakefile x.dockerfile"
        " .env .env.train gpu.env",
        Kind.CONFIG: "a.yaml a.yml a.json a.toml a.cfg a.ini requirements.txt requirements-dev.txt"
        " dev-requirements.in environment.yml constraints.txt Pipfile a.gin a.conf a.jsonnet",
        Kind.NATIVE: "a.cu a.cuh a.cpp a.cc a.h CMakeLists.txt",
        Kind.OTHER: "a.txt README.md a.png LICENSE perl notes my_requirements empty environment",
    }
    kind_from_name = {name: kind for kind, names in expected.items() for name in names.split()}
    first_lines = {
        "tool": "#!/usr/bin/env python3\n",
        "tool2": "#! /usr/bin/python3.11 -u\n",
        "tool3": "#!/usr/bin/env -S python -u\n",
        "start": "#!/bin/bash\n",
        "perl": "#!/usr/bin/perl\n",
        "notes": "python is nice\n",
        "empty": "",
    }
    plant(tmp_path, {name: first_lines.get(name, "x") for name in kind_from_name})
    assert kinds(collect([tmp_path])) == kind_from_name


def test_the_order_is_that_of_the_paths_and_each_file_is_there_once(tmp_path):
    plant(tmp_path, dict.fromkeys(("b.py", "a/z.py", "a.py", "a/b/c.py", "B.py"), "x"))
    collection = collect([tmp_path, tmp_path / "b.py", tmp_path / "a"])
    assert [str(found.path) for found in collection.files] == [
        "B.py",
        "a/b/c.py",
        "a/z.py",
        "a.py",
        "b.py",
    ]
    assert collection.root == tmp_path


def test_paths_are_relative_to_what_was_given(tmp_path):
    plant(tmp_path, {"one/a.py": "x", "two/b.py": "x"})
    alone = collect([tmp_path / "one/a.py"])
    assert (alone.root, alone.single, [str(found.path) for found in alone.files]) == (
        tmp_path / "one",
        True,
        ["a.py"],
    )
    both = collect([tmp_path / "two", tmp_path / "one/a.py"])
    assert (both.root, both.single) == (tmp_path, False)
    assert [str(found.path) for found in both.files] == ["one/a.py", "two/b.py"]


def test_folders_without_sources_are_not_entered(tmp_path):
    names = [".git", ".venv", "node_modules", "__pycache__", "x.egg-info", "lib/site-packages"]
    plant(tmp_path, {f"{name}/a.py": "x" for name in [*names, "own", "environment"]})
    plant(
        tmp_path,
        {
            "environment/pyvenv.cfg": "x",
            ".github/workflows/ci.yml": "x",
            ".lockstep-ab.part/a.py": "x",
        },
    )
    collection = collect([tmp_path])
    assert list(kinds(collection)) == [".github/workflows/ci.yml", "own/a.py"]
    assert set(skipped(collection)) == {*names, "environment", ".lockstep-ab.part"}


def test_a_folder_that_was_named_is_entered_whatever_its_name(tmp_path):
    plant(tmp_path, {"site-packages/a.py": "x"})
    assert kinds(collect([tmp_path / "site-packages"])) == {"a.py": Kind.PYTHON}


def test_the_output_folder_is_left_out(tmp_path):
    plant(tmp_path, {"a.py": "x", "out/a.py": "x"})
    collection = collect([tmp_path], exclude=[tmp_path / "out"])
    assert list(kinds(collection)) == ["a.py"]
    assert skipped(collection) == {"out": "the output folder"}


def test_links_are_kept_and_never_followed(tmp_path):
    outside = plant(tmp_path / "outside", {"o.py": "x"})
    root = plant(tmp_path / "root", {"sub/a.py": "x"})
    links = {
        "loop": ".",
        "sub/up": "..",
        "self": "self",
        "b.py": "sub/a.py",
        "out": outside,
        "o.py": outside / "o.py",
        "dead": "nowhere",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    collection = collect([root])
    assert list(kinds(collection)) == ["sub/a.py"]
    assert {str(link.path) for link in collection.links} == set(links)
    assert set(skipped(collection)) == {"out", "o.py", "dead", "self"}
    assert str(outside) in skipped(collection)["out"]


def test_a_link_that_was_named_is_followed(tmp_path):
    plant(tmp_path, {"real/a.py": "x"})
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "file.py").symlink_to("real/a.py")
    assert kinds(collect([tmp_path / "folder"])) == {"a.py": Kind.PYTHON}
    assert kinds(collect([tmp_path / "file.py"])) == {"file.py": Kind.PYTHON}


def test_pipes_and_sockets_are_not_opened(tmp_path, monkeypatch):
    plant(tmp_path, {"a.py": "x"})
    os.mkfifo(tmp_path / "pipe.py")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.py")
        collection = collect([tmp_path])
    assert list(kinds(collection)) == ["a.py"]
    assert set(skipped(collection)) == {"pipe.py", "pipe", "socket.py"}
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        collect([tmp_path / "pipe.py"])


@pytest.mark.parametrize("path", ["missing", "a.py/below", "x" * 5000])
def test_a_path_that_is_not_there_is_refused(tmp_path, path):
    plant(tmp_path, {"a.py": "x"})
    with pytest.raises(UsageError, match="give a file or a folder"):
        collect([tmp_path / path])


def test_nothing_given_is_refused():
    with pytest.raises(UsageError, match="nothing to migrate"):
        collect([])


def test_a_named_file_of_no_known_kind_is_a_failure(tmp_path):
    plant(tmp_path, {"notes.txt": "x"})
    collection = collect([tmp_path / "notes.txt"])
    assert [item.reason for item in collection.failures] == [
        "is no Python, notebook, shell or settings file"
    ]


def test_large_data_is_no_settings_file(tmp_path):
    plant(
        tmp_path, {"annotations.json": b" " * (SMALL_BYTES + 1), "config.json": b" " * SMALL_BYTES}
    )
    collection = collect([tmp_path])
    assert kinds(collection) == {"annotations.json": Kind.OTHER, "config.json": Kind.CONFIG}
    assert skipped(collection) == {"annotations.json": "larger than 1 MiB: data, no config"}


def test_ten_thousand_files_and_a_thousand_folders_deep(tmp_path):
    for number in range(10_000):
        (tmp_path / f"{number}.py").touch()
    deep = tmp_path
    for _ in range(900):
        deep = deep / "d"
        deep.mkdir()
    (deep / "a.py").touch()
    collection = collect([tmp_path])
    assert len(collection.files) == 10_001
    assert len(collection.folders) == 901


def found(path):
    return Found(Path(path.name), path, Kind.PYTHON)


def test_reading_gives_the_text_in_the_encoding_of_the_file(tmp_path):
    plant(tmp_path, {"a.py": "# coding: latin-1\n# ré".encode("latin-1")})
    assert read(found(tmp_path / "a.py")).text == "# coding: latin-1\n# ré"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x7fELF\0\0", "null bytes"),
        (b"# caf\xe9", "encoding"),
        (b"# coding: nonsense\n", "nonsense"),
        (b"x" * (SOURCE_BYTES + 1), "larger than 20 MiB"),
    ],
)
def test_what_is_no_source_is_a_failure_with_a_reason(tmp_path, data, reason):
    plant(tmp_path, {"a.py": data})
    with pytest.raises(UndecodableError) as caught:
        read(found(tmp_path / "a.py"))
    assert reason in failure(found(tmp_path / "a.py"), caught.value).reason


def test_a_file_that_went_away_is_a_failure(tmp_path):
    gone = found(tmp_path / "gone.py")
    with pytest.raises(FileNotFoundError) as caught:
        read(gone)
    assert failure(gone, caught.value).reason == "cannot be read: No such file or directory"


def test_a_folder_that_nobody_may_look_into_is_named_and_the_others_are_read(tmp_path, monkeypatch):
    plant(tmp_path, {"a.py": "x", "priv/b.py": "x", "open/c.py": "x"})
    real = Path.is_file

    def guarded(self):
        if "priv" in self.parts:
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "is_file", guarded)
    collection = collect([tmp_path])
    assert list(kinds(collection)) == ["a.py", "open/c.py"]
    (failed,) = collection.failures
    assert str(failed.path) == "priv"
    assert failed.reason == "folder cannot be read: Permission denied"


def test_what_an_earlier_run_wrote_is_no_input_unless_it_is_given(tmp_path):
    plant(
        tmp_path,
        {
            "a.py": "x",
            "out/a.py": "x",
            "out/lockstep-migrate/changes.csv": "x",
            # Twins: the name alone, and the report alone.
            "own/lockstep-migrate/b.py": "x",
            "other/changes.csv": "x",
        },
    )
    collection = collect([tmp_path])
    assert set(kinds(collection)) == {"a.py", "own/lockstep-migrate/b.py", "other/changes.csv"}
    assert "written by an earlier run" in skipped(collection)["out"]
    assert "a.py" in kinds(collect([tmp_path / "out"]))
