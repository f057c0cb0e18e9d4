"""A whole project: every kind of file by its own reader, and what files know of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.core.errors import UsageError
from lockstep_migrate.files.collection import collect
from lockstep_migrate.options import MigrationOptions
from lockstep_migrate.plan import Outcome, Plan
from lockstep_migrate.project import plan_collection, target_named


def planned(folder: Path, files: dict[str, str | bytes], target: str = "neutral") -> Plan:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return plan_collection(collect([folder]), MigrationOptions(target))


def after(plan: Plan) -> dict[str, str]:
    """The text of each file that changes."""
    return {str(file.path): file.migrated().decode() for file in plan.files if file.changed}


def listed_in(plan: Plan) -> list[str]:
    """The files that need a person."""
    listed = [
        file
        for file in plan.files
        if any(mention.outcome is Outcome.LISTED for mention in file.mentions)
    ]
    return [str(file.path) for file in listed]


def test_files_come_in_the_order_of_their_paths_and_others_are_untouched(tmp_path: Path) -> None:
    plan = planned(tmp_path, {"b.py": "x.cuda()\n", "a.py": "y.cuda()\n", "c.py": "import torch\n"})
    assert list(after(plan)) == ["a.py", "b.py"]
    assert plan.failures == ()


@pytest.mark.parametrize(
    "content",
    [b"x = 'cuda'\0\n", b"x = 'cuda \xe9'\n", b"# coding: nothing\nx = 'cuda'\n", b"x = ('cuda'\n"],
)
def test_a_file_that_cannot_be_read_is_reported_and_the_others_are_done(
    tmp_path: Path, content: bytes
) -> None:
    plan = planned(tmp_path, {"bad.py": content, "good.py": "x.cuda()\n"})
    assert [str(failure.path) for failure in plan.failures] == ["bad.py"]
    assert all(failure.reason for failure in plan.failures)
    assert list(after(plan)) == ["good.py"]


def test_a_single_file_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("x.cuda()\n")
    (file,) = plan_collection(collect([path]), MigrationOptions()).files
    assert str(file.path) == "one.py"


def test_progress_is_told_for_every_file(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    planned(tmp_path, {"a.py": "x.cuda()\n", "b.py": "y = 1\n"})
    plan_collection(collect([tmp_path]), MigrationOptions(), lambda *step: told.append(step))
    assert {name for name, _, _ in told} >= {"a.py", "b.py"}
    assert all(0 <= done <= total for _, done, total in told)


def test_a_target_that_is_not_there_is_said_so() -> None:
    with pytest.raises(UsageError, match="no such target"):
        target_named("tpu-of-nobody")


def test_a_path_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        plan_collection(collect([tmp_path / "missing"]), MigrationOptions())


def test_a_file_that_does_not_parse_is_reported_and_the_others_are_done(tmp_path: Path) -> None:
    # given one file that is no Python of this version, and one that is
    (tmp_path / "bad.py").write_text("import torch\nprint 'cuda'\n")
    (tmp_path / "good.py").write_text("import torch\nx.cuda()\n")
    # when both are migrated
    plan = plan_collection(collect([tmp_path]), MigrationOptions())
    # then the one is told with its line, and the other is done
    assert [(str(failure.path), failure.line) for failure in plan.failures] == [("bad.py", 2)]
    assert [str(file.path) for file in plan.files if file.changed] == ["good.py"]


def test_a_folder_that_is_a_package_is_a_module_of_its_own(tmp_path: Path) -> None:
    # given files that import from `net` and from elsewhere
    text = "from {}.checks import has_cuda\nhas_cuda()\n"
    files: dict[str, str | bytes] = {
        name: text.format(name[:-3]) for name in ("net.py", "other.py")
    }
    files = {f"uses_{name}": text for name, text in files.items()} | {"checks.py": ""}
    # when their folder is called so and is a package, or only called so
    package = planned(tmp_path / "net", files | {"__init__.py": ""})
    folder = planned(tmp_path / "plain" / "net", files)
    # then the package's own name is known in the package alone
    assert listed_in(package) == ["uses_other.py"]
    assert listed_in(folder) == ["uses_net.py", "uses_other.py"]
