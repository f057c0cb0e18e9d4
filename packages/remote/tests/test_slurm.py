"""`record --on slurm`, beside stand-ins of Slurm's three commands; `make test-cluster` has a real Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ssh_host import Client

from lockstep.cli.main import main
from lockstep.plugin import manager
from lockstep.store.reader import open_recording
from lockstep_remote.executors import following, slurm
from lockstep_remote.hookspecs import JobPhase, JobState, JobWork

TRAINING = ("--", "python", "train.py")


@pytest.fixture
def jobs(client: Client, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which stand-ins of Slurm keep their jobs; they and a Python that starts at once are in PATH."""
    commands, kept = tmp_path / "commands", tmp_path / "jobs"
    kept.mkdir()
    commands.mkdir()
    text = Path(__file__).with_name("stand_in_slurm.py").read_text()
    for name in ("sbatch", "squeue", "scancel"):
        (commands / name).write_text(f"#!{sys.executable} -IS\n{text}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_SLURM", str(kept))
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(following, "LOOKS_EVERY_S", 0.05)
    monkeypatch.setattr(following, "LATE_S", 0.0)
    monkeypatch.setattr(slurm, "LOOKS_AFTER_S", (0.0,))
    monkeypatch.setattr(slurm, "LATE_S", 0.0)
    return kept


def test_a_training_recorded_as_a_job_is_the_one_recorded_here(
    jobs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a recording made here
    assert main(["record", "-o", "here", *TRAINING]) == 0
    losses = capfd.readouterr().out.splitlines()[-2:]
    # when the same training is recorded as a job that first has to wait
    on = "slurm:partition=main,nodelist=a,b,exclusive="
    assert main(["record", "--on", on, "-o", "there", *TRAINING]) == 0
    # then its lines are printed here once, and you are told why it waited and where the recording lies
    ended = capfd.readouterr()
    assert [line for line in ended.out.splitlines() if line in losses] == losses
    for told in ("job 1 is submitted", "job 1 waits: Resources", "job 1 wrote there"):
        assert ended.err.count(f"lockstep: slurm: {told}\n") == 1
    # and it had the options that were asked for, and left no file but the recording
    asked = json.loads((jobs / "1" / "asked").read_text())
    assert (asked["partition"], asked["nodelist"], asked["exclusive"]) == ("main", "a,b", "")
    assert sorted(path.name for path in Path().iterdir()) == ["here", "there", "train.py"]
    assert main(["compare", "here", "there"]) == 0
    assert "equal bit by bit" in capfd.readouterr().out


def test_a_job_of_another_cluster_is_asked_about_there(
    jobs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a site that sends jobs to another cluster
    Path("train.py").write_text("raise SystemExit(4)\n")
    # when a job is submitted, then its state is found
    assert main(["record", "--on", "slurm:comment=x", "-o", "there", *TRAINING]) == 4
    assert "job 1 waits: Resources" in capfd.readouterr().err


def test_a_job_whose_training_fails_ends_with_its_exit_code_after_its_last_lines(
    jobs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("import sys\nprint('no data', file=sys.stderr)\nsys.exit(3)\n")
    assert main(["record", "--on", "slurm", "-o", "there", *TRAINING]) == 3
    told = capfd.readouterr().err
    assert told.index("no data\n") < told.index("slurm: job 1 ended with exit code 3")
    assert sorted(path.name for path in Path().iterdir()) == ["train.py"]


def test_a_job_that_slurm_ends_has_no_exit_code_and_says_how_it_ended(
    jobs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "--on", "slurm:time=0", "-o", "there", *TRAINING]) == 2
    told = " ".join(capfd.readouterr().err.split())
    assert "CANCELLED DUE TO TIME LIMIT" in told
    assert "slurm: job 1 was ended before its command had ended (TIMEOUT)" in told


@pytest.mark.parametrize("partition", ["full", "main"])
def test_ctrl_c_cancels_a_job_that_waits_and_one_that_runs(
    jobs: Path, programs: Path, capfd: pytest.CaptureFixture[str], partition: str
) -> None:
    # given a job that waits for ever, or trains until it is told to end
    with Path("train.py").open("a") as script:
        script.write("import signal\nprint('trained', flush=True)\nsignal.pause()\n")
    command = ["lockstep", "record", "--on", f"slurm:partition={partition}", "-o", "there"]
    with subprocess.Popen(
        [*command, *TRAINING], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        awaited = "waits: Priority\n" if partition == "full" else "trained\n"
        for line in process.stdout:
            if line.endswith(awaited):
                break
        # when Ctrl-C is pressed
        process.send_signal(signal.SIGINT)
        told = process.stdout.read()
    # then the job is cancelled, and what was recorded by then is closed
    assert process.returncode == 130, told
    assert "job 1 is cancelled" in told
    assert (jobs / "1" / "state").read_text() == "CANCELLED|"
    if partition == "main":
        assert open_recording("there").ranks["rank0"].steps == (0, 1)
    else:
        assert not Path("there").exists()


def test_a_closed_terminal_leaves_the_job_and_says_how_to_end_it(
    jobs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["lockstep", "record", "--on", "slurm:partition=full", "-o", "there", *TRAINING]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "waits" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        told = process.stderr.read()
    assert process.returncode == 130
    assert "goes on; scancel 1 ends it" in told
    assert (jobs / "1" / "state").read_text().startswith("PENDING")


@pytest.mark.parametrize(
    ("on", "more", "words"),
    [
        ("slurm:partition=nowhere", (), "slurm: sbatch: error: invalid partition specified"),
        ("slurm:gpus", (), "'gpus' is not OPTION=VALUE"),
        ("slurm:time=1,time=2", (), "time stands there twice"),
        ("slurm:output=x", (), "Lockstep sets --output of sbatch itself"),
        ("slurn", (), "no machine is called slurn, and no job system; job systems are"),
        ("slurm", ("--inputs-of", "nowhere"), "nowhere: there is no such file"),
        ("slurm", ("-o", "taken"), "taken: exists already"),
    ],
)
def test_what_cannot_be_a_job_is_said_before_anything_waits(
    jobs: Path,
    capfd: pytest.CaptureFixture[str],
    on: str,
    more: tuple[str, ...],
    words: str,
) -> None:
    Path("taken").mkdir()
    (Path("taken") / "notes.txt").write_text("mine")
    assert main(["record", "--on", on, "-o", "there", *more, *TRAINING]) == 2
    assert words in " ".join(capfd.readouterr().err.split())
    assert not list(jobs.iterdir())
    assert sorted(path.name for path in Path().iterdir()) == ["taken", "train.py"]


def test_a_machine_without_slurm_is_told_where_to_run_it(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(jobs))
    assert main(["record", "--on", "slurm", "-o", "there", *TRAINING]) == 2
    assert "sbatch is not in your PATH" in capfd.readouterr().err


def test_kubernetes_without_its_client_names_the_extra(
    jobs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    on = ("--on", "kubernetes:image=train", "-o", "s3://bucket/ref")
    assert main(["record", *on, *TRAINING]) == 2
    assert "pip install 'lockstep-numerics[kubernetes]'" in capfd.readouterr().err


class FarAway:
    """A job system of a plug-in, whose jobs write on a machine that this one does not see."""

    name = "far-away"
    shares_files = True
    key = "7"
    ends_by = "far-away end 7"

    def submit(self, work: JobWork) -> FarAway:
        self.work = work
        return self

    def look(self) -> JobState:
        return JobState(JobPhase.ENDED, "", 0)

    def printed(self) -> tuple[bytes, bytes]:
        return b"trained there\n", b""

    def cancel(self) -> None:
        raise AssertionError("nobody pressed Ctrl-C")

    def clean(self) -> None:
        self.cleaned = True


def test_a_plug_in_adds_a_job_system_and_a_recording_that_is_not_here_is_no_success(
    jobs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a plug-in with a job system
    system = FarAway()
    plugin = type("Plugin", (), {"lockstep_executors": staticmethod(lambda: [system])})
    from lockstep.plugin import hookimpl

    hookimpl(plugin.lockstep_executors)
    manager().register(plugin, "far")
    try:
        # when a job ends well and nothing is here
        code = main(["record", "--on", "far-away:size=2", "-o", "there", *TRAINING])
    finally:
        manager().unregister(plugin)
    # then it was given the work, and you are told that the recording is missing
    ended = capfd.readouterr()
    assert code == 2
    assert ended.out == "trained there\n"
    assert "there is not here" in " ".join(ended.err.split())
    assert system.work.options == {"size": "2"}
    assert system.work.words[-3:] == TRAINING
    assert system.cleaned
