"""The demo's two trainings, each on a machine of its own whose connection is lost twice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ssh_host import Client, SshHost

from lockstep.cli.main import main

EXAMPLES = Path(__file__).parents[3] / "examples"
TRAINING = ("python", "examples/digits_lstm.py", "--steps", "2")
FAULT = ("--fault", "backward")


def losing(host: SshHost) -> None:
    """Lose the connection of a machine twice, while files come back."""
    left = [b'"kind": "file"', b"tensors-"]

    def cut(command: str, data: bytes) -> int | None:
        met = [
            one for one in left if command.endswith(" follow") and command[0] != "<" and one in data
        ]
        for one in met[:1]:
            left.remove(one)
        return 0 if met else None

    host.cut = cut


@pytest.mark.exhaustive
def test_the_demo_on_two_machines_gives_the_answer_of_the_local_one(
    client: Client,
    host: SshHost,
    tmp_path: Path,
    programs: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # given the demo's script, here and on two machines
    Path("examples").mkdir()
    for script in EXAMPLES.glob("*.py"):
        shutil.copy(script, "examples")
    with SshHost(tmp_path / "second", client.public_key, programs).listening() as second:
        client.knows("gpu2", second)
        losing(host)
        losing(second)
        # when both trainings are recorded in both ways
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        for machine, name, more in (("gpu1", "reference", ()), ("gpu2", "candidate", FAULT)):
            add = ["remote", "add", machine, machine, "--python", str(programs / "python")]
            assert main(add) == 0
            record = ["record", "--save", "tensors", "-o"]
            assert main([*record, f"there-{name}", "--on", machine, "--", *TRAINING, *more]) == 0
            local = [programs / "lockstep", *record, f"here-{name}", "--", *TRAINING, *more]
            assert subprocess.run(local, env=environment, check=False).returncode == 0
        assert (host.cuts, second.cuts) == (2, 2)
    # then they are compared to the same answer
    answers = []
    for side in ("here", "there"):
        capfd.readouterr()
        assert main(["compare", f"{side}-reference", f"{side}-candidate"]) == 1
        answers.append(capfd.readouterr().out.replace(f"{side}-", ""))
    assert answers[0].startswith("DIVERGED at step 0, backward of encoder.lstm")
    assert answers[0] == answers[1]
    # and each agrees with its local one to the last bit
    for name in ("reference", "candidate"):
        assert main(["compare", f"here-{name}", f"there-{name}"]) == 0
        assert "equal bit by bit" in capfd.readouterr().out
