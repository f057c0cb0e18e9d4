"""Machines: what is kept of them, and what is said of one that cannot be reached or cannot train."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import asyncssh
import pytest
from ssh_host import Client, SshHost

from lockstep.cli.main import main
from lockstep.core.members import OWN_PACKAGES
from lockstep.core.version import VERSION
from lockstep_remote.bundle import MOST_BYTES, lockstep_itself, tree_around


def told(capfd: pytest.CaptureFixture[str]) -> str:
    return " ".join(capfd.readouterr().err.split())


def test_a_machine_is_added_listed_changed_and_removed(
    client: Client, capfd: pytest.CaptureFixture[str]
) -> None:
    # given no machine
    assert main(["remote", "list"]) == 0
    assert "no machine is known yet" in capfd.readouterr().out
    # when one is added
    Path("job.env").write_text("DATA=/data\n")
    assert (
        main(
            ["remote", "add", "gpu1", "me@host:2222", "--env-file", "job.env", "--env", "HF_TOKEN"]
        )
        == 0
    )
    # then it is listed, its file is this user's alone, and its name is taken
    capfd.readouterr()
    assert main(["remote", "list", "--json"]) == 0
    (machine,) = json.loads(capfd.readouterr().out)["machines"]
    assert (machine["address"], machine["variables"]) == ("me@host:2222", ["HF_TOKEN"])
    file = client.home / ".config" / "lockstep" / "machines.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["remote", "add", "gpu1", "other"]) == 2
    assert "gpu1 is me@host:2222 already" in told(capfd)
    assert main(["remote", "add", "gpu1", "other", "--force"]) == 0
    # and is gone when it is removed
    assert main(["remote", "remove", "gpu1"]) == 0
    assert main(["record", "--on", "gpu1", "-o", "ref", "--", "python", "train.py"]) == 2
    assert "no machine is called gpu1" in told(capfd)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpu1", "me@host", "--env", "DB_PASSWORD=hunter2"], "looks like a secret"),
        (["gpu1", "me@host", "--env", "A-B=1"], "write NAME=VALUE"),
        (["gpu1", "me@ho st"], "is not a machine"),
        (["slurm", "me@host"], "slurm is a job system of --on"),
        (["gpu1", "-oProxyCommand=x"], "No such option"),
        (["../x", "me@host"], "is not a name"),
        (["gpu1", "me@host", "--env-file", "none"], "cannot be read"),
        (["gpu1", "me@host", "--env-file", "train.py"], "line 1 is not NAME=VALUE"),
    ],
)
def test_what_cannot_be_a_machine_is_refused_and_no_value_is_said(
    client: Client, arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("hunter2\n")
    assert main(["remote", "add", *arguments]) == 2
    said = told(capfd)
    assert words in said
    assert "hunter2" not in said
    assert not (client.home / ".config").exists()


def test_a_machine_says_what_it_has(
    host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main(["remote", "add", "gpu1", "gpu1", "--python", str(programs / "python")])
    assert main(["remote", "test", "gpu1"]) == 0
    said = capfd.readouterr().out
    assert f"Python {'.'.join(map(str, sys.version_info[:3]))}" in said
    assert "torch 2" in said


def test_a_machine_behind_another_is_reached_by_proxy_jump(
    client: Client, host: SshHost, tmp_path: Path, programs: Path
) -> None:
    # given a machine that ssh reaches through gpu1
    with SshHost(tmp_path / "inner", client.public_key, programs).listening() as inner:
        client.knows("inner", inner, "ProxyJump gpu1")
        main(["remote", "add", "inner", "inner", "--python", str(programs / "python")])
        # then Lockstep does as well
        assert main(["remote", "test", "inner"]) == 0
    assert (tmp_path / "inner" / ".lockstep").is_dir()
    assert host.commands == []


def test_a_machine_on_the_way_whose_key_nobody_would_check_is_refused(
    client: Client, host: SshHost, capfd: pytest.CaptureFixture[str]
) -> None:
    client.config("jump", host, "UserKnownHostsFile none")
    client.config("inner", host, "ProxyJump jump")
    main(["remote", "add", "inner", "inner"])
    assert main(["remote", "test", "inner"]) == 2
    assert "UserKnownHostsFile none would trust any key of jump" in told(capfd)
    assert host.connections == []


def test_an_unknown_and_a_changed_host_key_are_refused_with_what_to_do(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with SshHost(tmp_path / "there", client.public_key).listening() as host:
        # given a machine whose key nobody has checked, though the configuration asks to trust all
        client.config("gpu1", host, "StrictHostKeyChecking no", "UserKnownHostsFile none")
        main(["remote", "add", "gpu1", "gpu1"])
        # then it is refused, with the key to check
        assert main(["remote", "test", "gpu1"]) == 2
        said = told(capfd)
        assert "host key of 127.0.0.1 is not known" in said
        assert host.key.get_fingerprint() in said
        # and one that has another key than before is refused in other words
        client.config("gpu2", host)
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
        (client.ssh / "known_hosts").write_text(f"[127.0.0.1]:{host.port} {other}")
        main(["remote", "add", "gpu2", "gpu2"])
        assert main(["remote", "test", "gpu2"]) == 2
        assert "host key of 127.0.0.1 has changed" in told(capfd)
        assert host.commands == []


def test_a_key_that_the_machine_does_not_know_and_a_machine_that_is_down(
    client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = Client(tmp_path / "other")
    with SshHost(tmp_path / "there", other.public_key).listening() as host:
        client.knows("gpu1", host)
        main(["remote", "add", "gpu1", "gpu1"])
        assert main(["remote", "test", "gpu1"]) == 2
        assert "does not let you in" in told(capfd)
    assert main(["remote", "test", "gpu1"]) == 2
    assert "cannot be reached (nothing listens there)" in told(capfd)


def test_a_python_that_cannot_train_is_told_in_a_sentence(
    client: Client, host: SshHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    real = shlex.quote(sys.executable)
    pythons = {
        "bare": f'exec {real} -I -S "$@"',
        "old": f'shift; code=$1; shift; exec {real} -c "import sys; sys.version_info = (3, 8, 1); $code" "$@"',
        "broken": "echo it is broken >&2; exit 1",
    }
    for name, text in pythons.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    expected = {
        "bare": "has no click",
        "old": "is Python 3.8, and Lockstep needs 3.10 or newer",
        "broken": "fails there: it is broken",
        "none": "there is no",
    }
    for name, words in expected.items():
        main(["remote", "add", "gpu1", "gpu1", "--force", "--python", str(tmp_path / name)])
        assert main(["record", "--on", "gpu1", "-o", "ref", "--", "python", "train.py"]) == 2
        said = told(capfd)
        assert words in said, said
        assert not Path("ref").exists()
    assert "-m pip install" in _said_of_bare(tmp_path, capfd)


def _said_of_bare(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    main(["remote", "add", "gpu1", "gpu1", "--force", "--python", str(tmp_path / "bare")])
    main(["remote", "test", "gpu1"])
    return told(capfd)


def test_a_full_disk_there_is_told_in_a_sentence(
    host: SshHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a machine whose disk takes no file of what is sent
    full = tmp_path / "full"
    full.write_text(
        f"#!{sys.executable}\n"
        "import errno, pathlib, sys\n"
        "real = pathlib.Path.open\n"
        "def opened(self, mode='r', *rest, **more):\n"
        "    if mode == 'wb' and 'objects' in self.parts:\n"
        "        raise OSError(errno.ENOSPC, 'No space left on device', str(self))\n"
        "    return real(self, mode, *rest, **more)\n"
        "pathlib.Path.open = opened\n"
        "at = sys.argv.index('-c')\n"
        "code, sys.argv[:] = sys.argv[at + 1], sys.argv[at:at + 1] + sys.argv[at + 2:]\n"
        "exec(code)\n"
    )
    full.chmod(0o755)
    with Path("train.py").open("a") as script:
        script.write("# that was not sent before\n")
    main(["remote", "add", "gpu1", "gpu1", "--python", str(full)])
    # then that is said, and nothing is left here
    assert main(["record", "--on", "gpu1", "-o", "ref", "--", "python", "train.py"]) == 2
    assert "the disk is full at" in told(capfd)
    assert not Path("ref").exists()


def test_without_its_package_the_extra_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("link", "running", "bringing"):
        monkeypatch.delitem(sys.modules, f"lockstep_remote.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    main(["remote", "add", "gpu1", "gpu1"])
    assert main(["record", "--on", "gpu1", "-o", "ref", "--", "python", "train.py"]) == 2
    assert "pip install 'lockstep-numerics[remote]'" in told(capfd)


def test_lockstep_itself_is_the_core_and_its_members_with_what_names_their_plug_ins() -> None:
    # when Lockstep is gathered for another machine
    sent = {one.name for one in lockstep_itself().files}
    # then both packages are there, each with its entry points, and nothing of their tests
    for package, file in (("lockstep", "comparison.py"), ("lockstep_remote", "agent.py")):
        assert f"{package}/{file}" in sent
    for distribution in ("lockstep_numerics", "lockstep_remote"):
        assert f"{distribution}-{VERSION}.dist-info/entry_points.txt" in sent
    assert {name.split("/")[0] for name in sent if "dist-info" not in name} <= OWN_PACKAGES


def test_what_is_sent_is_the_repository_with_changes_and_new_files_and_no_recording(
    client: Client, tmp_path: Path
) -> None:
    # given a repository with a change, a new file, an ignored one, a deleted one and a recording
    for name in ("kept.py", "changed.py", "deleted.py", "sub/deep.py"):
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text("before")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "."], check=True)
    Path("changed.py").write_text("after")
    Path("deleted.py").unlink()
    Path("new.py").touch()
    Path(".gitignore").write_text("data\n")
    Path("data").write_text("large")
    Path("ref/rank0").mkdir(parents=True)
    Path("ref/manifest.json").write_text('{"schema": 1, "command": []}')
    Path("ref/rank0/calls.parquet").touch()
    # when it is gathered from a folder inside of it
    sent = tree_around(Path("sub").absolute())
    # then it is what the script needs
    assert sent.root == Path.cwd()
    names = {one.name for one in sent.files}
    assert names == {".gitignore", "changed.py", "kept.py", "new.py", "sub/deep.py", "train.py"}
    # and has another name when a file has another content, the same when it has the same
    before = sent.digest
    assert tree_around(Path.cwd()).digest == before
    Path("kept.py").write_text("other")
    assert tree_around(Path.cwd()).digest != before


def test_a_folder_that_is_no_repository_and_is_large_is_not_sent(
    client: Client, host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Path("data.bin").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    main(["remote", "add", "gpu1", "gpu1", "--python", str(programs / "python")])
    assert main(["record", "--on", "gpu1", "-o", "ref", "--", "python", "train.py"]) == 2
    assert "is not a repository of git and holds 268 MB" in told(capfd)
    assert not Path("ref").exists()
