"""Every pair below `pairs/`: a small project, what becomes of it for a target, and what is said of it.

One file is one case. A line `=== before PATH` starts a file of the project, `=== TARGET PATH` what becomes of it,
`=== TARGET rows` what is listed, and rewritten with another meaning: `PATH:LINE outcome: TEXT: reason [-> instead]`.
A file that a target leaves as it is has no part; of a long new file the first line stands.
`python tests/wings/migrate/test_migration_pairs.py CASE...` writes the parts of the targets that a case names anew:
read them before you commit them.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.hookspecs import hookimpl
from lockstep.plugins import manager
from lockstep.wings.migrate.files.collection import collect
from lockstep.wings.migrate.hookspecs import MigrationTarget
from lockstep.wings.migrate.options import Framework, MigrationOptions
from lockstep.wings.migrate.plan import Outcome, Plan
from lockstep.wings.migrate.project import plan_collection

PAIRS = Path(__file__).with_name("pairs")
CASES = sorted(PAIRS.rglob("*.txt"))
_WHOLE = 20
"""New files of more lines are shown by their first."""
_PART = re.compile(r"^=== (\S+) (\S+)\n", re.MULTILINE)


def parts_of(case: Path) -> dict[tuple[str, str], str]:
    """The parts of a case by target and path."""
    words = _PART.split(case.read_text(encoding="utf-8"))
    return {(words[at], words[at + 1]): words[at + 2] for at in range(1, len(words), 3)}


def results_of(case: Path, folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    """The parts that migrating gives, for the targets that a case names."""
    parts = parts_of(case)
    for (target, path), text in parts.items():
        if target == "before":
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    for target in dict.fromkeys(target for target, _ in parts if target != "before"):
        device = target.removeprefix("tensorflow-")
        framework = Framework.PYTORCH if device == target else Framework.TENSORFLOW
        options = MigrationOptions(device, framework)
        plan = plan_collection(collect([folder]), options)
        assert not plan.failures
        for file in plan.files:
            if file.changed:
                yield (target, str(file.path)), file.migrated().decode()
        for new in plan.new_files:
            text = new.data.decode()
            shown = text if text.count("\n") < _WHOLE else text.partition("\n")[0] + "\n"
            yield (target, str(new.path)), shown
        yield (target, "rows"), "".join(f"{line}\n" for line in rows_of(plan))


def rows_of(plan: Plan) -> Iterator[str]:
    """What is said of the places that need a look."""
    for row in plan.rows():
        if row.outcome in (Outcome.LISTED, Outcome.DIFFERS) and not row.rule.startswith("advice"):
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
def plug_in() -> Iterator[None]:
    """Lockstep with the plug-in, for as long as the block runs."""
    plugin = PlugIn()
    manager().register(plugin)
    try:
        yield
    finally:
        manager().unregister(plugin)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.stem}")
def test_a_pair_is_what_migrating_makes_of_it(case: Path, tmp_path: Path) -> None:
    given = parts_of(case)
    with plug_in():
        found = dict(results_of(case, tmp_path))
    expected = {key: text for key, text in given.items() if key[0] != "before"}
    assert found == expected


def _write(case: Path) -> None:
    import tempfile

    given = parts_of(case)
    with tempfile.TemporaryDirectory() as folder, plug_in():
        found = dict(results_of(case, Path(folder)))
    before = {key: text for key, text in given.items() if key[0] == "before"}
    parts = {**before, **found}
    text = "".join(f"=== {target} {path}\n{body}" for (target, path), body in parts.items())
    case.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _write(Path(name))
