"""An output folder holds everything that the input does, migrated, or is not there."""

import os
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from trees import LAUNCH, contents, plan_of, plant

from lockstep.core.errors import OutputExistsError, UsageError
from lockstep_migrate.delivery.output import write_tree
from lockstep_migrate.files.collection import collect
from lockstep_migrate.plan import Failure, NewFile

HERE = Path(__file__).parent
TREE = {
    "train.py": "x.cuda()\n",
    "sub/b.py": "nothing\n",
    "sub/data.bin": bytes(range(256)),
    "run.sh": "cuda\n",
    "latin.py": b"# r\xe9 cuda\r\n",
}


@pytest.fixture
def source(tmp_path):
    root = plant(tmp_path / "in", TREE)
    (root / "run.sh").chmod(0o755)
    (root / "empty").mkdir()
    (root / "sub").chmod(0o750)
    return root


def migrate(path, out, adding=(), **options):
    collection = collect([path] if isinstance(path, Path) else path, exclude=[out])
    return write_tree(plan_of(collection, adding=adding), collection, out, **options)


def leftovers(folder):
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]


def test_the_whole_folder_is_copied_with_its_changes(source, tmp_path):
    out = tmp_path / "deep/er/out"
    before = contents(source)
    assert migrate(source, out, adding=(LAUNCH,)) == out
    assert contents(source) == before
    assert contents(out) == {
        **before,
        "train.py": b"x.npu()\n",
        "run.sh": b"npu\n",
        "latin.py": b"# r\xe9 npu\r\n",
        "new/run.sh": LAUNCH.data,
    }
    assert (out / "empty").is_dir()
    assert (out / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (out / "sub").stat().st_mode & 0o777 == 0o750
    assert os.access(out / "new/run.sh", os.X_OK)
    assert out.stat().st_mode == source.stat().st_mode
    assert leftovers(tmp_path) == []


def test_links_lead_to_the_output_or_out_of_both(source, tmp_path):
    outside = plant(tmp_path / "outside", {"o.py": "x"})
    links = {
        "rel.py": "sub/b.py",
        "sub/abs.py": source / "train.py",
        "far": outside,
        "near": "../outside",
        "loop": ".",
        "dead": "nowhere",
    }
    for name, target in links.items():
        (source / name).symlink_to(target)
    out = tmp_path / "a/b/out"
    migrate(source, out)
    assert {name: str((out / name).readlink()) for name in links} == {
        "rel.py": "sub/b.py",
        "sub/abs.py": "../train.py",
        "far": str(outside),
        "near": str(outside),
        "loop": ".",
        "dead": "nowhere",
    }


def test_an_empty_folder_is_taken(source, tmp_path):
    (tmp_path / "out").mkdir()
    migrate(source, tmp_path / "out")
    assert (tmp_path / "out/train.py").read_bytes() == b"x.npu()\n"


def test_what_is_there_already_needs_force_and_what_is_foreign_stays(source, tmp_path):
    out = plant(tmp_path / "out", {"train.py": "old", "mine.txt": "mine"})
    before = contents(out)
    with pytest.raises(OutputExistsError, match=r"out: exists already; use --force"):
        migrate(source, out)
    assert contents(out) == before
    migrate(source, out, force=True)
    migrate(source, out, force=True)
    assert (out / "train.py").read_bytes() == b"x.npu()\n"
    assert (out / "mine.txt").read_text() == "mine"
    assert leftovers(tmp_path) == []


def test_a_file_is_no_output_folder(source, tmp_path):
    plant(tmp_path, {"out": "x"})
    for force in (False, True):
        with pytest.raises(OutputExistsError, match="is a file"):
            migrate(source, tmp_path / "out", force=force)
    assert (tmp_path / "out").read_text() == "x"


@pytest.mark.parametrize("out", [".", "..", "../.."])
def test_the_input_is_never_overwritten(source, out):
    before = contents(source)
    with pytest.raises(UsageError, match="holds the input"):
        migrate(source, source / out, force=True)
    assert contents(source) == before


def test_an_output_inside_the_input_is_not_read_again(source):
    migrate(source, source / "out")
    first = contents(source / "out")
    migrate(source, source / "out", force=True)
    assert contents(source / "out") == first
    assert not any(name.startswith("out") for name in first)


def test_one_file_goes_into_a_folder_or_gets_a_new_name(source, tmp_path):
    migrate(source / "train.py", tmp_path / "folder")
    assert contents(tmp_path / "folder") == {"train.py": b"x.npu()\n"}
    migrate(source / "train.py", tmp_path / "else/other.py", adding=(LAUNCH,))
    assert contents(tmp_path / "else") == {"other.py": b"x.npu()\n", "new/run.sh": LAUNCH.data}
    with pytest.raises(OutputExistsError, match=r"other\.py: exists already"):
        migrate(source / "train.py", tmp_path / "else/other.py")
    migrate(source / "train.py", tmp_path / "else/other.py", force=True)


@pytest.mark.parametrize("out", ["train.py", ".", "same.py"])
def test_one_file_never_overwrites_itself(source, out):
    (source / "same.py").symlink_to("train.py")
    before = contents(source)
    with pytest.raises(UsageError, match="use --in-place"):
        migrate(source / "train.py", source / out, force=True)
    assert contents(source) == before


def test_several_paths_keep_their_places(source, tmp_path):
    migrate([source / "train.py", source / "sub"], tmp_path / "out")
    assert set(contents(tmp_path / "out")) == {"train.py", "sub/b.py", "sub/data.bin"}


def test_a_failure_leaves_no_folder_and_names_the_file(source, tmp_path):
    news = (NewFile(PurePosixPath("train.py/x.sh"), b"x", "r"),)
    with pytest.raises(OutputExistsError, match=r"out/train\.py/x\.sh: cannot be written"):
        migrate(source, tmp_path / "out", adding=news)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_an_output_below_a_file_is_refused(source, tmp_path):
    plant(tmp_path, {"file": "x"})
    with pytest.raises(OutputExistsError, match=r"file/out: cannot be written"):
        migrate(source, tmp_path / "file/out")


def test_a_folder_in_place_of_a_file_stops_forced_writing_with_whole_files(source, tmp_path):
    out = plant(tmp_path / "out", {"sub/b.py/in.the.way": "x", "latin.py": "old"})
    with pytest.raises(
        OutputExistsError, match=r"sub/b\.py: cannot be written.*each of them whole"
    ):
        migrate(source, out, force=True)
    assert (out / "latin.py").read_bytes() in {b"old", b"# r\xe9 npu\r\n"}
    assert (out / "sub/b.py/in.the.way").read_text() == "x"
    assert leftovers(tmp_path) == []


def test_no_file_is_written_outside_the_output(source, tmp_path):
    with pytest.raises(UsageError, match="leads out of"):
        migrate(source, tmp_path / "out", adding=(NewFile(PurePosixPath("../x"), b"", "r"),))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_a_disk_that_takes_no_more_leaves_nothing_behind(source, tmp_path):
    plant(source, {"large.bin": b"x" * 100_000})
    code = f"""
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from trees import plan_of
from lockstep.core.errors import OutputExistsError
from lockstep_migrate.delivery.output import write_tree
from lockstep_migrate.files.collection import collect
collection = collect([Path(sys.argv[1])])
plan = plan_of(collection)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
try:
    write_tree(plan, collection, Path(sys.argv[2]))
except OutputExistsError as error:
    print(error)
"""
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, check=True, text=True)
    assert (
        "out/large.bin: cannot be written (File too large); nothing was left behind"
        in result.stdout
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


CHILD = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from trees import plan_of
from lockstep_migrate.delivery.output import write_tree
from lockstep_migrate.files.collection import collect
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
collection = collect([Path(sys.argv[1])])
plan = plan_of(collection)
for name in ("replace", "open", "mkdir"):
    dying(name)
write_tree(plan, collection, Path(sys.argv[2]))
"""


def test_whenever_it_is_killed_the_output_is_complete_or_not_there(source, tmp_path):
    before = contents(source)
    steps, code = 0, -signal.SIGKILL
    while code:
        out = tmp_path / "out"
        command = [sys.executable, "-c", CHILD, str(source), str(out), str(steps)]
        code = subprocess.run(command, check=False).returncode
        assert code in (0, -signal.SIGKILL)
        assert out.exists() == (code == 0)
        steps += 4
    assert contents(out) == {
        **before,
        "train.py": b"x.npu()\n",
        "run.sh": b"npu\n",
        "latin.py": b"# r\xe9 npu\r\n",
    }
    assert contents(source) == before
    assert steps > 12


def test_a_file_that_failed_but_can_be_copied_is_copied(source, tmp_path):
    collection = collect([source])
    plan = plan_of(collection)
    plan = type(plan)("npu", plan.files, (Failure(PurePosixPath("sub/data.bin"), "is no text"),))
    write_tree(plan, collection, tmp_path / "out")
    assert (tmp_path / "out/sub/data.bin").read_bytes() == TREE["sub/data.bin"]


def test_folders_keep_their_modes_and_take_reports(source, tmp_path):
    source.chmod(0o555)
    (source / "sub").chmod(0o550)
    out = migrate(source, tmp_path / "out")
    assert out.stat().st_mode & 0o777 == 0o755
    assert (out / "sub").stat().st_mode & 0o777 == 0o750
    (source / "sub").chmod(0o755)
    source.chmod(0o755)
