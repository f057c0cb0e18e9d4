"""Which file is the main script, which modules it imports, and what is added to start it."""

import subprocess
from pathlib import Path, PurePosixPath

import pytest
from places import HEAD

from lockstep.core.errors import UsageError
from lockstep_migrate.distributed.launch import launch_script
from lockstep_migrate.distributed.project_modules import imported_modules
from lockstep_migrate.distributed.script import WRAP
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.files.collection import collect
from lockstep_migrate.options import Distribution, MigrationOptions
from lockstep_migrate.plan import Outcome
from lockstep_migrate.project import plan_collection
from lockstep_migrate.targets import migration_targets

MAIN = (
    HEAD
    + """
from data import loader_of
from net.wide import Net
model = Net()
loader = DataLoader([1.0])
for epoch in range(2):
    for x in loader:
        model(x).sum().backward()
"""
)


@pytest.fixture
def project(tmp_path):
    files = {
        "train.py": MAIN,
        "data.py": HEAD + "loader = DataLoader([1.0])\n",
        "net/__init__.py": "",
        "net/wide.py": "import torch\nfrom .deep import x\ntorch.save(1, 'a')\n",
        "net/deep.py": "import torch\nloss.backward()\n",
        "apart.py": "import torch\ntorch.save(1, 'b')\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def planned(project, main, **options):
    distribution = Distribution(Path(main))
    return plan_collection(
        collect([project]), MigrationOptions(distribution=distribution, **options)
    )


def touched(plan):
    return {
        str(file.path)
        for file in plan.files
        for item in file.mentions
        if item.rule.startswith("distributed/")
    }


def test_the_main_script_changes_and_its_modules_are_listed(project):
    plan = planned(project, "train.py")
    assert touched(plan) == {"train.py", "data.py", "net/wide.py", "net/deep.py"}
    assert [str(file.path) for file in plan.files if file.changed] == ["train.py"]
    assert [str(new.path) for new in plan.new_files] == ["run_distributed.sh"]


def test_the_launcher_starts_a_single_script_by_its_new_name(project):
    script = project / "train.py"
    for started in ("new.py", ""):
        options = MigrationOptions(distribution=Distribution(script, started=started))
        (new,) = plan_collection(collect([script]), options).new_files
        assert f'"$here"/{started or "train.py"} ' in new.data.decode()


@pytest.mark.parametrize("main", ["train.py", "./train.py", "absolute"])
def test_the_main_script_may_be_given_in_several_ways(project, main, monkeypatch):
    monkeypatch.chdir(project)
    given = project / "train.py" if main == "absolute" else main
    assert planned(project, given).new_files


def test_a_main_script_that_is_not_there_is_an_error(project):
    with pytest.raises(UsageError, match=r"nowhere\.py"):
        planned(project, "nowhere.py")


def test_without_distribution_nothing_is_distributed(project):
    plan = plan_collection(collect([project]), MigrationOptions())
    assert not touched(plan)
    assert not plan.new_files


def test_a_script_that_cannot_follow_gets_no_launcher(project):
    (project / "train.py").write_text("import torch\n")
    plan = planned(project, "train.py")
    assert not plan.new_files
    rows = [row for row in plan.rows() if row.rule.startswith("distributed")]
    assert [row.outcome for row in rows] == [Outcome.LISTED]
    assert all(row.rule != WRAP or row.outcome is Outcome.LISTED for row in rows)


def test_imports_are_followed_and_cycles_end():
    trees = {
        PurePosixPath(name): parse(text)
        for name, text in {
            "a/main.py": "import b\nfrom . import c\nimport torch",
            "a/b.py": "import main\nfrom d.e import f",
            "a/c.py": "from .b import x",
            "a/d/e.py": "",
            "b.py": "",
        }.items()
    }
    found = imported_modules(PurePosixPath("a/main.py"), trees)
    assert sorted(map(str, found)) == ["a/b.py", "a/c.py", "a/d/e.py"]


def test_the_launcher_does_not_replace_a_file():
    taken = {PurePosixPath("run_distributed.sh"), PurePosixPath("run_distributed_2.sh")}
    target = migration_targets()["npu"]
    new = launch_script(PurePosixPath("main.py"), target, taken)
    assert str(new.path) == "run_distributed_3.sh"
    assert new.executable


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_the_launcher_starts_torchrun(tmp_path, nodes):
    # given a torchrun that tells its arguments
    (tmp_path / "torchrun").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    new = launch_script(PurePosixPath("sub/it's main.py"), migration_targets()["npu"])
    script = tmp_path / "run.sh"
    script.write_bytes(new.data)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "NPROC_PER_NODE": "4",
        "NNODES": nodes,
        "NODE_RANK": "1",
        "MASTER_ADDR": "first",
    }
    # when it is started from elsewhere
    done = subprocess.run(
        ["sh", str(script), "--lr", "a b"], cwd="/", env=environment, capture_output=True, text=True
    )
    # then every word arrives
    words = done.stdout.split("|")[:-1]
    assert words[-3:] == [f"{tmp_path}/sub/it's main.py", "--lr", "a b"]
    assert "--nproc_per_node=4" in words
    assert ("--standalone" in words) == (nodes == "1")
    assert ("--master_addr=first" in words) == (nodes == "2")


@pytest.mark.parametrize(
    ("target", "module"), [("npu", "torch.npu"), ("neutral", "torch.accelerator")]
)
def test_the_launcher_counts_the_targets_devices(target, module):
    new = launch_script(PurePosixPath("main.py"), migration_targets()[target])
    assert f"{module}.device_count()" in new.data.decode()


# -- requests that cannot be carried out


def test_a_model_that_is_no_variable_of_the_main_script_is_refused_with_those_that_are(project):
    (project / "train.py").write_text(MAIN + "opt = SGD(model.parameters())\n")
    options = MigrationOptions(distribution=Distribution(Path("train.py"), "nope"))
    with pytest.raises(UsageError, match=r"--model nope: train\.py .* look like models: model$"):
        plan_collection(collect([project]), options)


def test_one_of_several_models_that_is_missing_is_named(project):
    options = MigrationOptions(distribution=Distribution(Path("train.py"), "model, other"))
    with pytest.raises(UsageError, match=r"--model other: .*give the name of the model's variable"):
        plan_collection(collect([project]), options)


def test_a_model_of_another_name_is_taken_where_it_is_there(project):
    (project / "train.py").write_text(MAIN.replace("model", "wide_net"))
    options = MigrationOptions(distribution=Distribution(Path("train.py"), "wide_net"))
    assert plan_collection(collect([project]), options).new_files


def test_the_usual_name_that_is_missing_is_listed(project):
    (project / "train.py").write_text(MAIN.replace("model", "wide_net"))
    plan = planned(project, "train.py")
    assert not plan.new_files
    assert "distributed/model" in {row.rule for row in plan.rows()}


def test_many_processes_are_refused_for_a_machine_with_one_device(project):
    with pytest.raises(UsageError, match="--distributed --to mps: a machine has one device"):
        planned(project, "train.py", target="mps")
    assert planned(project, "train.py", target="npu").new_files
