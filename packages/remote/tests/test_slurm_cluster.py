"""`record --on slurm` on a real Slurm of one node: `make test-cluster` runs it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from slurm_node import slurm_node
from ssh_host import Client

from lockstep.cli.main import main
from lockstep.store.reader import open_recording

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(shutil.which("slurmctld") is None, reason="make test-cluster has Slurm"),
]
TRAINING = ("--", "python", "train.py")


@pytest.fixture(scope="session")
def configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Slurm of one node."""
    with slurm_node(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture(autouse=True)
def at_slurm(client: Client, configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of Slurm mean that one, and `python` and `lockstep` those that run these tests."""
    monkeypatch.setenv("SLURM_CONF", str(configuration))
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


def answer(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def started(*options: str) -> subprocess.Popen[str]:
    """A recording as a job, by a process whose lines are read."""
    command = ["lockstep", "record", "--on", ",".join(("slurm:time=50", *options)), "-o", "there"]
    return subprocess.Popen(
        [*command, *TRAINING], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def read_until(process: subprocess.Popen[str], end: str) -> str:
    """Return the lines up to one that ends like this."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.rstrip().endswith(end):
            return "".join(lines)
    raise AssertionError("".join(lines))


def number_in(told: str) -> str:
    return told.partition("slurm: job ")[2].partition(" ")[0]


def test_a_held_job_says_why_it_waits_and_its_recording_agrees_with_the_local_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["record", "-o", "here", *TRAINING]) == 0
    capfd.readouterr()
    # given a job that is held
    with started("hold=") as process:
        told = read_until(process, "waits: JobHeldUser")
        # when it is released
        answer("scontrol", "release", number_in(told))
        told = read_until(process, "wrote there")
    # then it runs, and made the same recording
    assert process.returncode == 0
    assert main(["compare", "here", "there"]) == 0
    assert "equal bit by bit" in capfd.readouterr().out
    assert sorted(path.name for path in Path().iterdir()) == ["here", "there", "train.py"]


def test_ctrl_c_cancels_the_job_and_the_recording_is_closed() -> None:
    with Path("train.py").open("a") as script:
        script.write("import signal\nprint('trained', flush=True)\nsignal.pause()\n")
    with started() as process:
        told = read_until(process, "trained")
        process.send_signal(signal.SIGINT)
        told += read_until(process, "is cancelled")
    assert process.returncode == 130
    assert open_recording("there").ranks["rank0"].steps == (0, 1)
    state = answer(
        "squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={number_in(told)}"
    )
    assert state in ("CANCELLED", "FAILED")


def test_a_training_that_fails_ends_with_its_exit_code_after_its_last_lines(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Path("train.py").write_text("import sys\nprint('no data', file=sys.stderr)\nsys.exit(3)\n")
    assert main(["record", "--on", "slurm:time=50", "-o", "there", *TRAINING]) == 3
    told = capfd.readouterr().err
    assert told.index("no data\n") < told.index("ended with exit code 3")


def test_a_job_that_is_killed_has_no_exit_code_and_agrees_with_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["record", "-o", "here", *TRAINING]) == 0
    # given a job that trains on
    with Path("train.py").open("a") as script:
        script.write("import os, signal\nprint(os.getpid(), os.getppid(), 'trained', flush=True)\n")
        script.write("signal.pause()\n")
    with started() as process:
        told = read_until(process, "trained")
        training, recorder = map(int, told.split()[-3:-1])
        # when its script is killed, so that Slurm ends the rest
        answer("scancel", "--signal=USR1", "--batch", number_in(told))
        assert process.stdout is not None
        told = " ".join(process.stdout.read().split())
    end(training, recorder)
    # then that is said, and what it left agrees with nothing
    assert process.returncode == 2
    assert "was ended before its command had ended (" in told
    capfd.readouterr()
    assert main(["compare", "here", "there"]) != 0
    assert "AGREE" not in capfd.readouterr().out


def end(training: int, recorder: int) -> None:
    """End what outlived the script of its job: the cgroups of a cluster would, and this Slurm has none."""
    with suppress(ProcessLookupError):
        waits = os.pidfd_open(recorder)
        try:
            os.kill(training, signal.SIGKILL)
            select.select([waits], [], [], 60)
        finally:
            os.close(waits)
