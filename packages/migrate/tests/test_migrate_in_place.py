"""Changing files in place: all or nothing, and only where git can take it back."""

import os
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from trees import LAUNCH, contents, file_plan, plan_for, plan_of, plant

from lockstep.core.errors import OutputExistsError, UsageError
from lockstep_migrate.delivery import in_place
from lockstep_migrate.delivery.in_place import write_in_place
from lockstep_migrate.delivery.writing import aside_of
from lockstep_migrate.files.collection import collect
from lockstep_migrate.plan import NewFile, Plan

HERE = Path(__file__).parent
TREE = {
    "a.py": "x.cuda()\n",
    "deep/er/b.py": b"cuda\r\n# r\xe9",
    "same.py": "nothing\n",
    "data.bin": b"\0cuda",
}


def git(root, *words):
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "core.autocrlf=false"]
    return subprocess.run(
        ["git", "-C", str(root), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


def committed(root, files):
    """A git tree in which everything is committed."""
    plant(root, files)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "all")
    return root


def sources(root):
    return {name: data for name, data in contents(root).items() if not name.startswith(".git/")}


def test_the_command_that_is_returned_takes_everything_back(tmp_path):
    # given a clean tree, of which two files change and one is added
    before = sources(committed(tmp_path, TREE))
    # when
    way_back = write_in_place(plan_for(tmp_path, adding=(LAUNCH,)), tmp_path)
    # then
    assert sources(tmp_path) == {
        **before,
        "a.py": b"x.npu()\n",
        "deep/er/b.py": b"npu\r\n# r\xe9",
        "new/run.sh": LAUNCH.data,
    }
    assert os.access(tmp_path / "new/run.sh", os.X_OK)
    subprocess.run(way_back, shell=True, check=True)
    assert sources(tmp_path) == before
    assert git(tmp_path, "status", "--porcelain") == ""


def test_without_work_nothing_is_written(tmp_path):
    before = contents(plant(tmp_path, {"a.py": "nothing\n"}))
    assert write_in_place(plan_for(tmp_path), tmp_path) == ""
    assert contents(tmp_path) == before


@pytest.mark.parametrize("why", ["no tree", "untracked", "edited", "no commit", "line ends"])
def test_what_git_could_not_bring_back_needs_force(tmp_path, why):
    # given a tree that differs from what git holds
    plant(tmp_path, TREE)
    if why == "line ends":
        plant(tmp_path, {".gitattributes": "*.py text\n"})
    if why != "no tree":
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "data.bin" if why == "untracked" else ".")
    if why not in ("no tree", "no commit"):
        git(tmp_path, "commit", "-qm", "all")
    if why == "edited":
        (tmp_path / "same.py").write_text("mine\n")
    before = sources(tmp_path)
    # then nothing is written
    with pytest.raises(UsageError, match="is no clean git tree"):
        write_in_place(plan_for(tmp_path), tmp_path)
    assert sources(tmp_path) == before
    # unless that is asked for, and then nothing is promised
    assert write_in_place(plan_for(tmp_path), tmp_path, force=True) == ""
    assert (tmp_path / "a.py").read_bytes() == b"x.npu()\n"


def test_modes_stay_and_links_are_written_through(tmp_path):
    plant(tmp_path, {"lib/real.py": "cuda\n"})
    (tmp_path / "lib/real.py").chmod(0o750)
    (tmp_path / "link.py").symlink_to("lib/real.py")
    collection = collect([tmp_path / "link.py"])
    write_in_place(plan_of(collection), collection.root, force=True)
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "lib/real.py").read_bytes() == b"npu\n"
    assert (tmp_path / "lib/real.py").stat().st_mode & 0o7777 == 0o750


def test_a_file_under_two_names_is_changed_once(tmp_path):
    committed(tmp_path, {"real.py": "cuda\n"})
    (tmp_path / "link.py").symlink_to("real.py")
    collection = collect([tmp_path / "link.py", tmp_path / "real.py"])
    write_in_place(plan_of(collection), collection.root, force=True)
    assert (tmp_path / "real.py").read_bytes() == b"npu\n"


def test_a_file_that_changed_since_it_was_read_is_not_touched(tmp_path):
    committed(tmp_path, TREE)
    plan = plan_for(tmp_path)
    (tmp_path / "deep/er/b.py").write_text("newer\n")
    before = sources(tmp_path)
    with pytest.raises(UsageError, match=r"b\.py: was changed"):
        write_in_place(plan, tmp_path)
    assert sources(tmp_path) == before


def test_a_file_in_the_way_of_a_new_one_needs_force(tmp_path):
    before = sources(committed(tmp_path, {**TREE, "new/run.sh": "mine\n"}))
    plan = plan_for(tmp_path, adding=(LAUNCH,))
    with pytest.raises(OutputExistsError, match=r"run\.sh: exists already"):
        write_in_place(plan, tmp_path)
    assert sources(tmp_path) == before
    way_back = write_in_place(plan, tmp_path, force=True)
    subprocess.run(way_back, shell=True, check=True)
    assert sources(tmp_path) == before


@pytest.mark.parametrize("path", ["../out.sh", "/tmp/out.sh", "a/../../out.sh", "."])
def test_nothing_is_written_outside_the_root(tmp_path, path):
    plant(tmp_path / "root", {"a.py": "cuda\n"})
    news = (NewFile(PurePosixPath(path), b"x", "r"),)
    with pytest.raises(UsageError, match="leads out of"):
        write_in_place(plan_for(tmp_path / "root", adding=news), tmp_path / "root", force=True)
    assert contents(tmp_path) == {"root/a.py": b"cuda\n"}


def test_a_failure_changes_no_file_and_names_the_one(tmp_path):
    plant(tmp_path, {"a.py": "cuda\n", "b.py": "cuda\n"})
    # A folder where the new content of b.py has to wait.
    (aside_of(tmp_path / "b.py") / "x").mkdir(parents=True)
    before = contents(tmp_path)
    with pytest.raises(OutputExistsError, match=r"b\.py: cannot be written"):
        write_in_place(plan_for(tmp_path), tmp_path, force=True)
    assert contents(tmp_path) == before


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from trees import LAUNCH, plan_for
from lockstep_migrate.delivery.in_place import write_in_place
left = int(sys.argv[2])
def dying(name):
    real = getattr(Path, name)
    def call(self, *arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *arguments, **options)
    setattr(Path, name, call)
for name in ("replace", "open", "unlink", "mkdir", "rmdir"):
    dying(name)
root = Path(sys.argv[1])
write_in_place(plan_for(root, adding=(LAUNCH,)), root, force=True)
"""


def test_whenever_it_is_killed_every_file_is_old_or_new(tmp_path):
    steps, killed = 0, True
    while killed:
        root = plant(tmp_path / str(steps), {"a.py": "cuda\n", "b.py": "cuda cuda\n"})
        before = contents(root)
        code = CHILD.format(here=str(HERE))
        result = subprocess.run(
            [sys.executable, "-c", code, str(root), str(steps)], capture_output=True, check=False
        )
        assert result.returncode in (0, -signal.SIGKILL), result.stderr.decode()
        killed = result.returncode != 0
        for name, old in before.items():
            assert (root / name).read_bytes() in {old, old.replace(b"cuda", b"npu")}
        steps += 3
    assert steps > 6


def test_a_disk_that_takes_no_more_changes_no_file(tmp_path):
    before = contents(plant(tmp_path, {"a.py": "cuda\n", "b.py": "cuda " * 2000}))
    code = f"""
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from trees import plan_for
from lockstep.core.errors import OutputExistsError
from lockstep_migrate.delivery.in_place import write_in_place
root = Path(sys.argv[1])
plan = plan_for(root)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    write_in_place(plan, root, force=True)
except OutputExistsError as error:
    print(error)
"""
    for limit in (2, 4000):
        command = [sys.executable, "-c", code, str(tmp_path), str(limit)]
        result = subprocess.run(command, capture_output=True, check=True, text=True)
        assert "cannot be written (File too large); no file was changed" in result.stdout
        assert contents(tmp_path) == before


def test_names_that_are_no_text_are_written(tmp_path):
    name = os.fsdecode(b"caf\xe9.py")
    committed(tmp_path, {name: "cuda\n"})
    plan = Plan("npu", (file_plan(PurePosixPath(name), b"cuda\n"),))
    assert write_in_place(plan, tmp_path).startswith("git -C ")
    assert (tmp_path / name).read_bytes() == b"npu\n"


def test_an_edit_made_meanwhile_is_kept_and_the_others_are_done(tmp_path, monkeypatch):
    # given a person who edits a file after all new content is staged
    before = sources(committed(tmp_path, TREE))
    real = in_place._move_all

    def late(changes):
        (tmp_path / "a.py").write_text("my work\n")
        real(changes)

    monkeypatch.setattr(in_place, "_move_all", late)
    # then the edit stays
    with pytest.raises(OutputExistsError, match=r"a\.py: edited while .* so left as edited"):
        write_in_place(plan_for(tmp_path), tmp_path)
    after = {**before, "a.py": b"my work\n", "deep/er/b.py": b"npu\r\n# r\xe9"}
    assert sources(tmp_path) == after
