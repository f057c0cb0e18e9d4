"""`compare --where-it-lies`: the larger recording stays where it is, and the answer is the local one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from ssh_host import Client, SshHost

from lockstep.cli.main import main
from lockstep.testing import MadeTraining, write_recording

BOTH = ("gpu1:runs/ref", "gpu2:cand")


@pytest.fixture
def local(host: SshHost, programs: Path, capfd: pytest.CaptureFixture[str]) -> tuple[str, int]:
    """Two recordings here, of which the larger is on the machine `gpu1` too, and the answer of comparing them here."""
    write_recording("ref", MadeTraining(whole=True, steps=3))
    wrong = MadeTraining(steps=2, alter={"relu": lambda value: value * np.float32(1.05)})
    write_recording("cand", wrong)
    shutil.rmtree(host.home / "runs", ignore_errors=True)
    shutil.copytree("ref", host.home / "runs" / "ref")
    assert main(["remote", "add", "gpu1", "gpu1", "--python", str(programs / "python")]) == 0
    capfd.readouterr()
    code = main(["compare", "ref", "cand", "-o", "local"])
    return capfd.readouterr().out, code


def _answer(printed: str) -> str:
    """What was printed, but for what to do next, in which places are named."""
    answer, next_step, _ = printed.partition("What next")
    assert answer.startswith("DIVERGED at step 0, forward of net")
    assert next_step
    return answer


def _numbers(folder: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path(folder, "comparison.json").read_text())
    del found["what_next"]
    return found


@pytest.mark.exhaustive
def test_two_recordings_on_two_machines_give_the_local_answer_letter_for_letter(
    local: tuple[str, int],
    host: SshHost,
    client: Client,
    tmp_path: Path,
    programs: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Given recordings on two machines, the second of which loses its connection
    When they are compared where they lie
    Then the smaller goes to the larger, the answer is the local one, and nothing stays on either machine."""
    with SshHost(tmp_path / "second", client.public_key, programs).listening() as second:
        client.knows("gpu2", second)
        shutil.copytree("cand", second.home / "cand")
        assert main(["remote", "add", "gpu2", "gpu2", "--python", str(programs / "python")]) == 0
        second.cut = lambda command, data: (
            0 if not second.cuts and b'"kind": "file"' in data else None
        )
        capfd.readouterr()

        code = main(["compare", "--where-it-lies", *BOTH, "-o", "there"])

        ended = capfd.readouterr()
        assert second.cuts == 1
        assert not [one for one in second.commands if one.endswith(" start")]
    assert _answer(ended.out) == _answer(local[0]), ended.err
    assert code == local[1] == 1
    assert "gpu2:cand goes to gpu1" in ended.err
    assert _numbers("there") == _numbers("local")
    assert ".lockstep" not in ended.out  # a place that is gone by now
    assert f"wrote {Path.cwd()}/there/comparison.json" in ended.out
    assert not [*(host.home / ".lockstep" / "jobs").iterdir()]
    assert (host.home / "runs" / "ref" / "manifest.json").exists()


@pytest.mark.exhaustive
def test_the_smaller_one_comes_here_where_the_larger_one_is(
    local: tuple[str, int], host: SshHost, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.move("cand", host.home / "runs" / "cand")

    code = main(["compare", "--where-it-lies", "ref", "gpu1:runs/cand"])

    ended = capfd.readouterr()
    assert "gpu1:runs/cand goes to this machine" in ended.err
    assert _answer(ended.out) == _answer(local[0])
    assert code == local[1]


@pytest.mark.exhaustive
def test_a_recording_that_is_not_there_is_said(
    local: tuple[str, int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--where-it-lies", "gpu1:runs/ref", "gpu1:runs/none"]) == 2
    assert "runs/none: there is no such recording" in capfd.readouterr().err
    assert main(["compare", "--where-it-lies", "gpu1:runs/ref", "none"]) == 2
    assert "give NAME:PATH for one on a machine" in capfd.readouterr().err
