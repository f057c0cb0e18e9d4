"""Changing files in place: all or nothing, and undone byte for byte."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from trees import LAUNCH, contents, file_plan, plan_for, plan_of, plant

from lockstep.core.errors import CorruptError, OutputExistsError, UsageError
from lockstep_migrate.delivery import in_place
from lockstep_migrate.delivery.in_place import undo, write_in_place
from lockstep_migrate.delivery.writing import aside_of, locked
from lockstep_migrate.files.collection import collect
from lockstep_migrate.plan import NewFile, Plan

HERE = Path(__file__).parent
TREE = {
    "a.py": "x.cuda()\n",
    "deep/er/b.py": b"cuda\r\n# r\xe9",
    "same.py": "nothing\n",
    "data.bin": b"\0cuda",
}


def without_journal(root):
    return {name: data for name, data in contents(root).items() if not name.startswith(".lockstep")}


def test_only_changed_files_change(tmp_path):
    before = contents(plant(tmp_path, TREE))
    written = write_in_place(plan_for(tmp_path), tmp_path)
    assert [str(path) for path in written] == ["a.py", "deep/er/b.py"]
    after = without_journal(tmp_path)
    assert after == {**before, "a.py": b"x.npu()\n", "deep/er/b.py": b"npu\r\n# r\xe9"}


def test_without_work_nothing_is_written(tmp_path):
    before = contents(plant(tmp_path, {"a.py": "nothing\n"}))
    assert write_in_place(plan_for(tmp_path), tmp_path) == ()
    assert contents(tmp_path) == before


def test_undoing_restores_every_byte_and_leaves_no_trace(tmp_path):
    before = contents(plant(tmp_path, TREE))
    write_in_place(plan_for(tmp_path, adding=(LAUNCH,)), tmp_path)
    assert os.access(tmp_path / "new/run.sh", os.X_OK)
    undone = undo(tmp_path)
    assert contents(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.py",
        "data.bin",
        "deep",
        "same.py",
    ]
    assert [str(path) for path in undone.restored] == ["a.py", "deep/er/b.py"]
    assert [str(path) for path in undone.removed] == ["new/run.sh"]
    assert undone.runs_left == 0


def test_two_runs_are_undone_step_by_step(tmp_path):
    first = contents(plant(tmp_path, TREE))
    write_in_place(plan_for(tmp_path), tmp_path)
    second = without_journal(tmp_path)
    write_in_place(plan_for(tmp_path, old="npu", new="xpu"), tmp_path)
    assert undo(tmp_path).runs_left == 1
    assert without_journal(tmp_path) == second
    assert undo(tmp_path).runs_left == 0
    assert contents(tmp_path) == first
    with pytest.raises(UsageError, match="nothing to undo"):
        undo(tmp_path)


def test_modes_stay_and_links_are_written_through(tmp_path):
    plant(tmp_path, {"lib/real.py": "cuda\n"})
    (tmp_path / "lib/real.py").chmod(0o750)
    (tmp_path / "link.py").symlink_to("lib/real.py")
    collection = collect([tmp_path / "link.py"])
    write_in_place(plan_of(collection), collection.root)
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "lib/real.py").read_bytes() == b"npu\n"
    assert (tmp_path / "lib/real.py").stat().st_mode & 0o7777 == 0o750
    undo(tmp_path)
    assert (tmp_path / "link.py").is_symlink()
    assert (tmp_path / "lib/real.py").read_bytes() == b"cuda\n"
    assert (tmp_path / "lib/real.py").stat().st_mode & 0o7777 == 0o750


def test_a_file_under_two_names_is_changed_once(tmp_path):
    plant(tmp_path, {"real.py": "cuda\n"})
    (tmp_path / "link.py").symlink_to("real.py")
    collection = collect([tmp_path / "link.py", tmp_path / "real.py"])
    write_in_place(plan_of(collection), collection.root)
    assert (tmp_path / "real.py").read_bytes() == b"npu\n"
    undo(tmp_path)
    assert (tmp_path / "real.py").read_bytes() == b"cuda\n"


def test_edits_made_since_are_not_lost_unless_forced(tmp_path):
    plant(tmp_path, TREE)
    write_in_place(plan_for(tmp_path), tmp_path)
    (tmp_path / "a.py").write_text("my work\n")
    edited = contents(tmp_path)
    with pytest.raises(UsageError, match=r"a\.py: edited since"):
        undo(tmp_path)
    assert contents(tmp_path) == edited
    undo(tmp_path, force=True)
    assert (tmp_path / "a.py").read_text() == "x.cuda()\n"


def test_a_file_that_changed_since_it_was_read_is_not_touched(tmp_path):
    plant(tmp_path, TREE)
    plan = plan_for(tmp_path)
    (tmp_path / "deep/er/b.py").write_text("newer\n")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"b\.py: was changed"):
        write_in_place(plan, tmp_path)
    assert contents(tmp_path) == before


def test_a_file_in_the_way_of_a_new_one_needs_force(tmp_path):
    plant(tmp_path, {**TREE, "new/run.sh": "mine\n"})
    before = contents(tmp_path)
    plan = plan_for(tmp_path, adding=(LAUNCH,))
    with pytest.raises(OutputExistsError, match=r"run\.sh: exists already"):
        write_in_place(plan, tmp_path)
    assert contents(tmp_path) == before
    write_in_place(plan, tmp_path, force=True)
    undo(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("path", ["../out.sh", "/tmp/out.sh", "a/../../out.sh", "."])
def test_nothing_is_written_outside_the_root(tmp_path, path):
    plant(tmp_path / "root", {"a.py": "cuda\n"})
    news = (NewFile(PurePosixPath(path), b"x", "r"),)
    with pytest.raises(UsageError, match="leads out of"):
        write_in_place(plan_for(tmp_path / "root", adding=news), tmp_path / "root")
    assert contents(tmp_path) == {"root/a.py": b"cuda\n"}


def test_a_failure_changes_no_file_and_names_the_one(tmp_path):
    plant(tmp_path, {"a.py": "cuda\n", "b.py": "cuda\n"})
    # A folder where the new content of b.py has to wait.
    (aside_of(tmp_path / "b.py") / "x").mkdir(parents=True)
    before = contents(tmp_path)
    with pytest.raises(OutputExistsError, match=r"b\.py: cannot be written"):
        write_in_place(plan_for(tmp_path), tmp_path)
    assert contents(tmp_path) == before
    assert not (tmp_path / ".lockstep-migrate").exists()


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from trees import LAUNCH, plan_for
from lockstep_migrate.delivery.in_place import undo, write_in_place
left = int(sys.argv[3])
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
root = Path(sys.argv[2])
undo(root) if sys.argv[1] == "undo" else write_in_place(plan_for(root, adding=(LAUNCH,)), root)
"""


def die_after(steps, what, root):
    """Run in a process of its own that is killed after so many file operations; whether it was."""
    code = CHILD.format(here=str(HERE))
    result = subprocess.run(
        [sys.executable, "-c", code, what, str(root), str(steps)], capture_output=True, check=False
    )
    assert result.returncode in (0, -signal.SIGKILL), result.stderr.decode()
    return result.returncode != 0


@pytest.mark.parametrize("what", ["write", "undo"])
def test_whenever_it_is_killed_nothing_is_lost_and_undo_works(tmp_path, what):
    steps, killed = 0, True
    while killed:
        root = plant(tmp_path / str(steps), {"a.py": "cuda\n", "b.py": "cuda cuda\n"})
        before = contents(root)
        if what == "undo":
            write_in_place(plan_for(root, adding=(LAUNCH,)), root)
        killed = die_after(steps, what, root)
        for name, old in before.items():
            assert (root / name).read_bytes() in {old, old.replace(b"cuda", b"npu")}
        if (root / ".lockstep-migrate/1").exists():
            undo(root)
        after = without_journal(root)
        assert after == before, f"killed after {steps} operations"
        steps += 3
    assert steps > 15


def test_a_disk_that_takes_no_more_changes_no_file(tmp_path):
    plant(tmp_path, {"a.py": "cuda\n", "b.py": "cuda " * 2000})
    before = contents(tmp_path)
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
    write_in_place(plan, root)
except OutputExistsError as error:
    print(error)
"""
    for limit in (100, 4000, 9000):
        command = [sys.executable, "-c", code, str(tmp_path), str(limit)]
        result = subprocess.run(command, capture_output=True, check=True, text=True)
        assert "cannot be written (File too large); no file was changed" in result.stdout
        assert without_journal(tmp_path) == before
        assert not any(path.name.endswith(".part") for path in tmp_path.rglob("*"))


def change_list(root, **changes):
    path = root / ".lockstep-migrate/1/files.json"
    content = json.loads(path.read_bytes())
    content[0].update(changes)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("text", ["", "[1]", "{}x", '[{"path": "a.py"}]', "[" * 100_000])
def test_a_damaged_list_is_refused_in_words(tmp_path, text):
    plant(tmp_path, {"a.py": "x", ".lockstep-migrate/1/files.json": text})
    with pytest.raises(CorruptError, match=r"files\.json: is damaged"):
        undo(tmp_path)


def test_a_hostile_list_writes_nothing_outside(tmp_path):
    root = plant(tmp_path / "root", {"a.py": "cuda\n"})
    write_in_place(plan_for(root), root)
    change_list(root, path="../victim")
    with pytest.raises(UsageError, match="leads out of"):
        undo(root)


def test_kept_bytes_are_checked_before_they_are_put_back(tmp_path):
    plant(tmp_path, {"a.py": "cuda\n"})
    write_in_place(plan_for(tmp_path), tmp_path)
    (tmp_path / ".lockstep-migrate/1/0").write_bytes(b"other")
    with pytest.raises(CorruptError, match="missing or damaged"):
        undo(tmp_path)
    assert (tmp_path / "a.py").read_bytes() == b"npu\n"


def git(root, *words):
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "core.autocrlf=false"]
    return subprocess.run(
        ["git", "-C", str(root), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


def test_in_a_clean_git_tree_git_takes_it_back(tmp_path):
    before = contents(plant(tmp_path, TREE))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    written = write_in_place(plan_for(tmp_path), tmp_path)
    assert len(written) == 2
    assert not (tmp_path / ".lockstep-migrate").exists()
    assert git(tmp_path, "status", "--porcelain") == " M a.py\n M deep/er/b.py\n"
    words = shlex.split(in_place.way_back(tmp_path))
    assert words[:2] == ["git", "-C"]
    assert words[3:] == ["restore", "."]
    git(tmp_path, "restore", ".")
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("why", ["untracked", "edited", "new file", "no commit", "line ends"])
def test_what_git_could_not_bring_back_is_kept(tmp_path, why):
    before = contents(plant(tmp_path, TREE))
    git(tmp_path, "init", "-q")
    if why == "line ends":
        plant(tmp_path, {".gitattributes": "*.py text\n"})
    git(tmp_path, "add", "data.bin" if why == "untracked" else ".")
    if why != "no commit":
        git(tmp_path, "commit", "-qm", "all")
    if why == "edited":
        before["same.py"] = b"mine\n"
        (tmp_path / "same.py").write_text("mine\n")
    adding = (LAUNCH,) if why == "new file" else ()
    write_in_place(plan_for(tmp_path, adding=adding), tmp_path)
    assert in_place.way_back(tmp_path).startswith("lockstep migrate undo ")
    undo(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_names_that_are_no_text_come_back(tmp_path):
    name = os.fsdecode(b"caf\xe9.py")
    plant(tmp_path, {name: "cuda\n"})
    write_in_place(Plan("npu", (file_plan(PurePosixPath(name), b"cuda\n"),)), tmp_path)
    assert (tmp_path / name).read_bytes() == b"npu\n"
    undo(tmp_path)
    assert (tmp_path / name).read_bytes() == b"cuda\n"


HOLD = """
import os, sys
from pathlib import Path
from lockstep_migrate.delivery.writing import locked
with locked(Path(sys.argv[1])):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


def holder(lock):
    """A process that holds a lock until its input ends, and its number."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return child, child.stdout.readline().strip()


def test_a_second_run_at_once_is_refused_and_takes_nothing_away(tmp_path):
    root = plant(tmp_path, TREE)
    lock = root / ".lockstep-migrate"
    child, _ = holder(lock)
    with child:
        before = contents(root)
        with pytest.raises(UsageError, match="another run is changing files"):
            write_in_place(plan_for(root), root)
        assert contents(root) == before
        assert lock.is_dir()
        child.stdin.close()
    assert not lock.exists()
    write_in_place(plan_for(root), root)
    assert (root / "a.py").read_text() == "x.npu()\n"


def test_undoing_waits_for_no_run_at_once(tmp_path):
    root = plant(tmp_path, TREE)
    before = contents(root)
    write_in_place(plan_for(root), root)
    after = without_journal(root)
    with locked(root / ".lockstep-migrate"):
        with pytest.raises(UsageError, match="another run"):
            undo(root)
        assert without_journal(root) == after
    undo(root)
    assert contents(root) == before


def test_a_lock_of_a_killed_run_blocks_nobody(tmp_path):
    root = plant(tmp_path, TREE)
    lock = root / ".lockstep-migrate"
    child, _ = holder(lock)
    with child:
        child.kill()
    assert lock.is_dir()
    write_in_place(plan_for(root), root)
    assert (root / "a.py").read_text() == "x.npu()\n"
    undo(root)
    assert not lock.exists()


def test_an_edit_made_meanwhile_is_kept_and_the_others_are_done(tmp_path, monkeypatch):
    # given a person who edits a file after all new content is staged
    root = plant(tmp_path, TREE)
    before = contents(root)
    real = in_place._move_all

    def late(changes, root):
        (root / "a.py").write_text("my work\n")
        real(changes, root)

    monkeypatch.setattr(in_place, "_move_all", late)
    # then the edit stays, and undoing asks before it takes it away
    with pytest.raises(OutputExistsError, match=r"a\.py: edited while .* so left as edited"):
        write_in_place(plan_for(root), root)
    after = {**before, "a.py": b"my work\n", "deep/er/b.py": b"npu\r\n# r\xe9"}
    assert without_journal(root) == after
    with pytest.raises(UsageError, match=r"a\.py: edited since"):
        undo(root)
