"""`record --on NAME`: what comes back is the local recording, however often the connection is lost."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ssh_host import Client, SshHost

from lockstep.cli.main import main
from lockstep.store.reader import open_recording
from lockstep_remote import link

RECORD = ("record", "--on", "gpu1", "-o", "there")
TRAINING = ("--", "python", "train.py")


def add(programs: Path, *more: str) -> None:
    assert main(["remote", "add", "gpu1", "gpu1", "--python", str(programs / "python"), *more]) == 0


def record_here(programs: Path) -> None:
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["lockstep", "record", "-o", "here", *TRAINING]
    done = subprocess.run(command, env=environment, executable=programs / "lockstep", check=False)
    assert done.returncode == 0


def test_a_recording_from_another_machine_agrees_with_the_local_one_though_each_stage_was_cut_off(
    host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a machine whose connection is lost once in each stage, twice while files come back
    add(programs)
    record_here(programs)
    printed = capfd.readouterr().out.splitlines()
    stages = [
        "missing",
        "<take",
        "take",
        "lay",
        "start",
        '"kind": "output"',
        '"kind": "file"',
        "records-",
    ]
    left = list(stages)

    def cut(command: str, data: bytes) -> int | None:
        verb = "<" * command.startswith("<") + command.split()[-1]
        met = [one for one in left if one == verb or (verb == "follow" and one.encode() in data)]
        for one in met[:1]:
            left.remove(one)
        return 0 if met else None

    host.cut = cut
    # when the same training is recorded there
    code = main([*RECORD, *TRAINING])
    # then it is the local one, and was printed once
    ended = capfd.readouterr()
    assert code == 0, ended.err
    assert left == []
    assert host.cuts == len(stages)
    assert ended.out.splitlines() == printed[-2:]
    assert "the connection is lost; connecting again" in ended.err
    assert main(["compare", "here", "there"]) == 0
    assert "equal bit by bit" in capfd.readouterr().out
    # and nothing of it is left on either machine
    assert list((host.home / ".lockstep" / "jobs").glob("*/tree/*")) == []
    assert [path for path in Path("there").rglob("*") if path.name.startswith(".")] == []
    assert not list(Path("~/.local/state/lockstep/remote").expanduser().glob("*"))


def test_a_recording_that_came_back_in_part_says_so_and_never_agrees_until_the_rest_is_here(
    host: SshHost,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # given a connection that is lost for good when all has come but the word that this is all
    add(programs)
    record_here(programs)
    monkeypatch.setattr(link, "PAUSES_S", ())
    gone = False

    def cut(command: str, data: bytes) -> int | None:
        nonlocal gone
        end = data.find(b'{"kind": "end"')
        if gone or end < 0:
            return 0 if gone else None
        gone = True
        return end

    host.cut = cut
    assert main([*RECORD, *TRAINING]) == 2
    told = capfd.readouterr().err
    assert "lockstep remote attach gpu1-" in told
    # then what is here is a recording that says what it is, and agrees with nothing
    recording = open_recording("there")
    assert recording.ranks["rank0"].is_closed
    assert any("a part of the recording" in sentence for sentence in recording.missing)
    assert main(["compare", "here", "there"]) != 0
    said = " ".join(" ".join(capfd.readouterr()).split())
    assert "AGREE" not in said
    assert "still on gpu1 in part" in said
    # when the machine is back, then `attach` brings the rest
    host.cut = lambda command, data: None
    assert main(["remote", "attach", "gpu1"]) == 0
    assert main(["compare", "here", "there"]) == 0


def test_a_training_that_fails_there_leaves_what_it_leaves_here(
    host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a script that ends before it trains
    add(programs)
    Path("train.py").write_text("import sys\nsys.exit(3)\n")
    # when it is recorded there, then the exit code is the script's, and nothing is left
    assert main([*RECORD, *TRAINING]) == 3
    assert "nothing was recorded" in capfd.readouterr().err
    assert [*Path().rglob("there*"), *Path("there").rglob("*")] == []


def test_what_lies_where_a_recording_goes_stays_unless_force_is_given(
    host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(programs)
    Path("there").mkdir()
    (Path("there") / "notes.txt").write_text("mine")
    # when something else is there, then nothing is sent
    assert main([*RECORD, "--force", *TRAINING]) == 2
    assert "is not a recording" in capfd.readouterr().err
    assert (Path("there") / "notes.txt").read_text() == "mine"
    assert not any(command.endswith((" take", " missing")) for command in host.commands)


def test_no_secret_stands_in_a_recording_a_log_a_file_there_or_a_list_of_processes(
    host: SshHost,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # given secrets in a file and in the environment, and a training that looks at every command line
    Path("secrets.env").write_text("# of the job\nexport DB_PASSWORD='pass-from-file'\n")
    Path(".gitignore").write_text("secrets.env\n")
    subprocess.run(["git", "init", "-q"], check=True)
    monkeypatch.setenv("HF_TOKEN", "token-from-here")
    add(programs, "--env-file", "secrets.env", "--env", "HF_TOKEN", "--env", "FACTOR=2")
    with Path("train.py").open("a") as script:
        script.write(
            "import contextlib, glob\n"
            "lines = []\n"
            "for name in glob.glob('/proc/[0-9]*/cmdline'):\n"
            "    with contextlib.suppress(OSError):\n"
            "        lines.append(open(name, 'rb').read())\n"
            "shown = [os.environ[name].encode() for name in ('DB_PASSWORD', 'HF_TOKEN')]\n"
            "print('processes', len(lines) > 0, any(one in line for one in shown for line in lines))\n"
            "print('variables', os.environ['DB_PASSWORD'][::-1], os.environ['HF_TOKEN'][::-1], os.environ['FACTOR'])\n"
        )
    # when it is recorded
    assert main([*RECORD, *TRAINING]) == 0
    # then it has them
    ended = capfd.readouterr()
    assert "variables elif-morf-ssap ereh-morf-nekot 2" in ended.out
    assert "processes True False" in ended.out
    # and they stand nowhere but in the file that has them
    places = [Path("there"), host.home, Path("~").expanduser()]
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    assert len(files) > 20
    for secret in (b"pass-from-file", b"token-from-here"):
        assert [path for path in files if secret in path.read_bytes()] == []
        assert secret.decode() not in ended.out + ended.err
        assert not any(secret.decode() in command for command in host.commands)


def test_a_job_goes_on_without_whoever_started_it_and_can_be_stopped_and_fetched(
    host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a training that writes a checkpoint and goes on until it is told to end
    add(programs)
    with Path("train.py").open("a") as script:
        script.write("torch.save(model.state_dict(), 'model.pt')\n")
        script.write("import signal\nprint('trained', flush=True)\nsignal.pause()\n")
    command = [str(programs / "lockstep"), *RECORD, *TRAINING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "trained\n":
            assert process.poll() is None
        # when the terminal is closed
        process.send_signal(signal.SIGHUP)
        process.wait()
    assert process.returncode == 130
    capfd.readouterr()
    # then it is listed, goes on, and ends when it is stopped
    assert main(["remote", "list", "--json"]) == 0
    (job,) = json.loads(capfd.readouterr().out)["jobs"]
    assert job["machine"] == "gpu1"
    assert main(["remote", "stop", job["key"]]) == 0
    assert "is told to end" in capfd.readouterr().out
    assert main(["remote", "attach", job["key"]]) == 143
    recording = open_recording("there")
    assert recording.ranks["rank0"].steps == (0, 1)
    assert not any("part of the recording" in sentence for sentence in recording.missing)
    # and the checkpoint stays where you are told
    told = capfd.readouterr().err
    assert "files that the command left there: 1 (" in told
    (checkpoint,) = (host.home / ".lockstep" / "jobs").glob("*/tree/model.pt")
    assert str(checkpoint.parent) in told
    shutil.rmtree(checkpoint.parents[1])


def test_a_verb_that_watches_runs_there_and_its_files_come_back(
    host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(programs)
    # when a training is watched there
    words = ["watch", "--on", "gpu1", "--events", "events.jsonl", "--json"]
    assert main([*words, *TRAINING]) == 0
    # then the answer is printed here, and the event file is here
    out = capfd.readouterr().out
    assert '"rules"' in out or '"steps"' in out
    lines = [json.loads(line) for line in Path("events.jsonl").read_text().splitlines()]
    assert len(lines) > 1


@pytest.mark.exhaustive
def test_checks_before_a_training_run_there_and_their_files_come_back(
    host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given a machine and a recording here
    When operators are listed and set-ups compared there
    Then the answers are printed here, and the table is here."""
    add(programs)
    record_here(programs)
    capfd.readouterr()

    listed = ["ops", "--on", "gpu1", "--target", "mps", "--no-rerun", "-o", "ops.csv"]
    main([*listed, *TRAINING])
    assert "mps" in capfd.readouterr().out
    assert "aten" in Path("ops.csv").read_text()
    assert main(["check", "--on", "gpu1", "--against", "here", "--json", *TRAINING]) == 0
    out = capfd.readouterr().out
    assert json.loads(out[out.index("{") :])["schema"] == 1


def test_what_a_verb_does_on_this_machine_alone_is_refused(
    host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    add(programs)
    for words, told in (
        (["watch", "--interactive", *TRAINING], "--interactive works on this machine only"),
        (
            ["gate", "golden", "--update", "--because", "x", *TRAINING],
            "--update works on this machine only",
        ),
        (["audit", "recording"], "give the command after --"),
        (["gate", "golden", *TRAINING], "golden: there is no such file"),
    ):
        assert main([words[0], "--on", "gpu1", *words[1:]]) == 2
        assert told in capfd.readouterr().err


@pytest.mark.cold
@pytest.mark.exhaustive
def test_lockstep_itself_is_sent_to_a_machine_that_has_only_its_packages(
    host: SshHost, client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a Python that has every package but Lockstep
    packages, python = tmp_path / "packages", tmp_path / "python-without"
    packages.mkdir()
    for place in (Path(one) for one in sys.path if one.endswith("site-packages")):
        for entry in place.iterdir():
            if (
                "lockstep" not in entry.name
                and entry.suffix != ".pth"
                and not (packages / entry.name).exists()
            ):
                (packages / entry.name).symlink_to(entry)
    base = shlex.quote(sys._base_executable)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {base} "$@"\n')
    python.chmod(0o755)
    add(tmp_path, "--python", str(python), "--force")
    # when a training is recorded there
    code = main([*RECORD, *TRAINING])
    # then Lockstep came along
    assert code == 0, capfd.readouterr().err
    (sent,) = (host.home / ".lockstep" / "lockstep").glob("*/lockstep/capture/recorder.py")
    assert sent.is_file()
