"""Every pair below `pairs/`: a small project, what becomes of it for a target, and what is said of it.

One file is one case. A line `=== before PATH` starts a file of the project, `=== TARGET PATH` what becomes of it,
`=== TARGET rows` what is listed, and rewritten with another meaning: `PATH:LINE outcome: TEXT: reason [-> instead]`.
A file that a target leaves as it is has no part; of a long new file the first line stands, of the helper that a file of
its own may hold, the names of its functions. A case that has a part
`kept` or `rewritten` for a target says all of those places, too.

A target may be followed by options, such as `npu+tensorflow` or `neutral+main=train.py+model=net`; see `_Run`. With
`each`, every file and folder at the top is a project of its own, so that many small ones fit into one case.
`python packages/migrate/tests/test_migration_pairs.py CASE...` writes the parts of the targets that a case names anew:
read them before you commit them.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from migrating import new_warnings

from lockstep.hookspecs import hookimpl
from lockstep.plugins import manager
from lockstep_migrate.catalogue import Catalogue
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.files.collection import collect
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.options import Distribution, Framework, MigrationOptions
from lockstep_migrate.plan import Outcome, Plan
from lockstep_migrate.project import plan_collection, target_named
from lockstep_migrate.torch.user_rules import read_user_rules

PAIRS = Path(__file__).with_name("pairs")
CASES = sorted(PAIRS.rglob("*.txt"))
Parts = dict[tuple[str, str], str]
"""The parts of a case by target and path."""

_WHOLE = 20
"""New files of more lines are shown by their first."""
_PART = re.compile(r"^=== (\S+) (\S+)\n", re.MULTILINE)
_HELPER = re.compile(
    r'^class (?P<name>\w+):\n    """This machine\'s accelerator, asked(?P<body>(?:.*\n(?=    |\n+    ))*.*\n)',
    re.MULTILINE,
)
_SAID = {
    "rows": (Outcome.LISTED, Outcome.DIFFERS),
    "kept": (Outcome.KEPT,),
    "rewritten": (Outcome.REWRITTEN,),
}
"""The parts that are no files, and the places that each tells of."""


def parts_of(case: Path) -> Parts:
    """The parts of a case."""
    words = _PART.split(case.read_text(encoding="utf-8"))
    return {(words[at], words[at + 1]): words[at + 2] for at in range(1, len(words), 3)}


@dataclass(frozen=True)
class _Run:
    """A target with its options: `TARGET[+OPTION[=VALUE]]...`.

    `tensorflow`, `similar` and `advice-apply` are options of the command line; `main=FILE` stands for
    `--distributed --main FILE` (a project of one file needs no name) and takes `model=NAMES`; `rules=FILE` is a file of
    the case; `advice` tells of advice, too.
    """

    name: str

    @property
    def given(self) -> dict[str, str]:
        """The options with their values."""
        return {word.partition("=")[0]: word.partition("=")[2] for word in self.name.split("+")[1:]}

    def projects(self, folder: Path) -> list[Path]:
        """What is migrated by itself."""
        if "each" not in self.given:
            return [folder]
        return sorted(path for path in folder.iterdir() if path.name != self.given.get("rules"))

    def options(self, folder: Path, project: Path) -> MigrationOptions:
        """What a user would ask for."""
        given = self.given
        distribution = None
        if "main" in given:
            main = project / given["main"] if given["main"] else project
            distribution = Distribution(main, given.get("model", "model"))
        return MigrationOptions(
            self.name.split("+")[0],
            Framework.TENSORFLOW if "tensorflow" in given else Framework.PYTORCH,
            user_rules=read_user_rules(folder / given["rules"]) if "rules" in given else (),
            similar="similar" in given,
            distribution=distribution,
            advice="advice" in given,
            advice_apply="advice-apply" in given,
        )


def results_of(case: Path, folder: Path) -> Parts:
    """The parts that migrating gives, for the targets that a case names."""
    parts = parts_of(case)
    _write_project({path: text for (kind, path), text in parts.items() if kind == "before"}, folder)
    found: Parts = {}
    for name in dict.fromkeys(name for name, _ in parts if name != "before"):
        run = _Run(name)
        said = {kind: "" for kind in _SAID if kind == "rows" or (name, kind) in parts}
        for project in run.projects(folder):
            plan = plan_collection(collect([project]), run.options(folder, project))
            assert not plan.failures
            assert not _second_run(plan, run, folder, project)
            if "rules" not in run.given:  # a user's names are the user's own
                assert not _told_by_pyflakes(plan)
                assert not _names_of_nobody(plan)
            prefix = f"{project.name}/" if project.is_dir() and project != folder else ""
            found.update(((name, prefix + path), text) for path, text in _files_of(plan))
            for kind in said:
                said[kind] += "".join(f"{prefix}{line}\n" for line in rows_of(plan, run, kind))
        found.update(((name, kind), text) for kind, text in said.items())
    return found


def _write_project(files: dict[str, str], folder: Path) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")


def _second_run(plan: Plan, run: _Run, folder: Path, project: Path) -> list[str]:
    """The files that migrating the result changes again."""
    if not any(file.changed for file in plan.files):
        return []
    top = project if project.is_dir() else folder
    changed = {file.path: file.migrated() for file in plan.files if file.changed}
    changed |= {new.path: new.data for new in plan.new_files}
    before = {path: (top / path).read_bytes() for path in changed if (top / path).exists()}
    for path, data in changed.items():
        (top / path).write_bytes(data)
    again = plan_collection(collect([project]), run.options(folder, project))
    for path in changed:
        (top / path).unlink()
    for path, data in before.items():
        (top / path).write_bytes(data)
    return [str(file.path) for file in again.files if file.changed]


def _told_by_pyflakes(plan: Plan) -> list[str]:
    """What pyflakes is sure of after migrating and did not say before; an `__init__` imports for others."""
    return [
        f"{file.path}: {warning}"
        for file in plan.files
        if file.changed and file.path.suffix == ".py" and file.path.stem != "__init__"
        for warning in new_warnings(file.source.text, file.migrated().decode())
        if "may be undefined" not in warning
    ]


def _names_of_nobody(plan: Plan) -> list[str]:
    """The names of torch that stand in the Python files now, but not before, and that the target does not have."""
    has_name = target_named(plan.target).has_name
    return [
        f"{file.path}: {name}"
        for file in plan.files
        if file.changed and file.path.suffix == ".py"
        for name in _chains(file.migrated().decode()) - _chains(file.source.text)
        if name.startswith(("torch.", "torch_npu.")) and not has_name(name)
    ]


def _chains(text: str) -> set[str]:
    found = (ast.unparse(one) for one in ast.walk(parse(text)) if isinstance(one, ast.Attribute))
    return {chain for chain in found if re.fullmatch(r"[\w.]+", chain)}


def _files_of(plan: Plan) -> Iterator[tuple[str, str]]:
    """The files that change or are new, by path."""
    for file in plan.files:
        if file.changed:
            yield str(file.path), _without_helper(file.migrated().decode())
    for new in plan.new_files:
        text = new.data.decode()
        whole = text.count("\n") < _WHOLE
        yield str(new.path), text if whole else text.partition("\n")[0] + "\n"


def _without_helper(text: str) -> str:
    """The file with the class that asks for the device cut down to the names of its functions."""
    if not (found := _HELPER.search(text)):
        return text
    names = re.findall(r"^    (?:def|class) (\w+)", found["body"], re.MULTILINE)
    return f"{text[: found.start()]}class {found['name']}:  # {', '.join(names)}\n{text[found.end() :]}"


@cache
def _has_words(target: str, rule: str) -> bool:
    """Whether `lockstep migrate rules` explains a rule."""
    return bool(Catalogue(target_named(target)).words(rule))


def rows_of(plan: Plan, run: _Run, kind: str) -> Iterator[str]:
    """What is said of the places of some outcomes."""
    advised = not {"advice", "advice-apply"}.isdisjoint(run.given)
    for row in plan.rows():
        assert _has_words(plan.target, row.rule), row.rule
        if row.outcome in _SAID[kind] and (advised or not row.rule.startswith("advice")):
            text = " ".join(row.before.split())
            instead = f" -> {row.replacement}" if row.replacement else ""
            yield f"{row.file}:{row.line} {row.outcome.value}: {text}: {row.reason}{instead}"


TOY = MigrationTarget(
    "toy-board", "toy", "torch.toy", has_name=lambda name: not name.endswith("_all"),
    rules="torch.cuda.*,rename,{module}.*,,the toy has a module of its own\n",
    imports="torch_toy", backend="toyccl", method="toy", is_device="is_toy", image="toy/torch:1",
    container_options="--device=/dev/toy0", package_index="the toy wheels", folder="/opt/toy",
    launcher_device="toy", native="a kernel in the toy's own language",
    environment={"CUDA_VISIBLE_DEVICES": "TOY_VISIBLE", "CUDA_OF_TOY": "TOY_OF_TOY"},
    instead={"nvidia-smi": "toy-smi", "(flash[-_]attn|xformers)": "toy attention"},
    libraries={"onnxruntime": "ToyExecutionProvider"},
)  # fmt: skip


class PlugIn:
    """A plug-in with a device of its own."""

    @hookimpl
    def lockstep_migration_targets(self) -> list[MigrationTarget]:
        return [TOY]


@contextlib.contextmanager
def plug_in(case: Path) -> Iterator[None]:
    """Lockstep with the plug-in for as long as the block runs, where a case names its device."""
    if f"=== {TOY.name}" not in case.read_text(encoding="utf-8"):
        yield
        return
    plugin = PlugIn()
    manager().register(plugin)
    try:
        yield
    finally:
        manager().unregister(plugin)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.stem}")
def test_a_pair_is_what_migrating_makes_of_it(case: Path, tmp_path: Path) -> None:
    given = parts_of(case)
    with plug_in(case):
        found = results_of(case, tmp_path)
    expected = {key: text for key, text in given.items() if key[0] != "before"}
    assert found == expected


def _write(case: Path) -> None:
    import tempfile

    given = parts_of(case)
    with tempfile.TemporaryDirectory() as folder, plug_in(case):
        found = results_of(case, Path(folder))
    before = {key: text for key, text in given.items() if key[0] == "before"}
    parts = {**before, **found}
    text = "".join(f"=== {target} {path}\n{body}" for (target, path), body in parts.items())
    case.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _write(Path(name))
