# ruff: noqa: E501 - lines of logs are as long as they are
"""`lockstep diagnose`: one log's messages in the order of cause and consequence, however they stand in it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from lockstep.cli.main import main
from lockstep_check.logs import known_messages

ASCEND = """\
step 40 loss 2.1180
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/me/pretrain.py", line 158, in main
[rank3]:     total += loss.detach().item()
[rank3]: RuntimeError: operator():build/compiler_depend.ts:25 NPU function error: AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507035
[rank3]: [ERROR] 2026-03-02-09:14:58 (PID:4242, Device:3, RankID:3) ERR00100 PTA call acl api failed
[rank3]: [Error]: The vector core execution is abnormal.
[rank3]: EZ9999: Inner Error!
[rank3]: EZ9999: [PID: 4242] 2026-03-02-09:14:58.311.406 The error from device(chipId:3, dieId:0), serial number is 11, there is an exception of aivec error, core id is 29, error code = 0x800000
[rank3]: EZ9999:  The extend info: errcode:(0x800000, 0, 0) errorStr: The DDR address of the MTE instruction is out of range. fixp_error0 info: 0x2
W0302 09:14:59.120 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 4219 closing signal SIGTERM
"""
TIMEOUTS = """\
[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=22, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
[rank2]: Traceback (most recent call last):
[rank2]:   File "/home/me/train.py", line 31, in collate
[rank2]:     return samples["pixels"]
[rank2]: KeyError: 'pixels'
"""
ENGINE = """\
[rank1]: RuntimeError: [ERROR] 2026-07-01-00:40:04 (PID:176930, Device:0, RankID:1) ERR02200 DIST call hccl api failed.
EI0006: [PID: 176930] 2026-07-01-00:40:04.135.732 Getting socket times out. Reason: no answer
EJ0001: [PID: 176931] 2026-07-01-00:39:58.135.732 Failed to initialize the HCCP process.
"""
KILLED = """\
[rank1]: RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed.
  exitcode  : -9 (pid: 4242)
[1234.5] Out of memory: Killed process 4242 (python) total-vm:53012344kB, anon-rss:31211232kB
"""
ASSERTION = """\
RuntimeError: CUDA error: device-side assert triggered
../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.
"""


def answers(log: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """The findings of a log, the first answer first."""
    path = folder / "train.log"
    path.write_text(log)
    main(["diagnose", "--json", str(path)])
    findings: list[dict[str, object]] = json.loads(capsys.readouterr().out)["findings"]
    return findings


@pytest.mark.parametrize(
    ("log", "first", "echoes"),
    [
        (ASCEND, "cann-core-code", {"pta-code", "cann-code", "acl-code"}),
        (TIMEOUTS, "python-exception", {"nccl-watchdog-timeout", "torchrun-child-failed"}),
        (ENGINE, "cann-code", {"hccl-socket-timeout", "pta-code"}),
        (KILLED, "out-of-memory-killer", {"loader-killed", "exit-status"}),
        (ASSERTION, "cuda-assert-class", {"cuda-device-assert"}),
    ],
    ids=["ascend", "timeouts", "engine", "killed", "assertion"],
)
def test_the_cause_is_told_before_what_follows_from_it_and_explains_it(
    log: str,
    first: str,
    echoes: set[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given a log in which echoes stand before and behind the message that explains them
    told = answers(log, tmp_path, capsys)
    # then that one comes first, and the others name it as what explains them
    assert told[0]["id"] == first
    assert told[0]["explained_by"] is None
    explained = {str(one["id"]): one["explained_by"] for one in told if one["explained_by"]}
    assert echoes <= set(explained)
    assert all(
        why == {"id": first, "file": told[0]["file"], "line": told[0]["line"]}
        for why in explained.values()
    )


def test_two_causes_stay_in_the_order_in_which_they_stand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given two causes of which none is an echo: the twin in which nothing may be moved or explained away
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\nIndexError: index out of range in self\n"
    told = answers(log, tmp_path, capsys)
    assert [one["id"] for one in told] == ["cuda-out-of-memory", "index-out-of-range"]
    assert [one["explained_by"] for one in told] == [None, None]


def test_an_exception_that_was_raised_while_another_was_handled_follows_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a chain of two exceptions, and the same two without the chain
    chain = "\nDuring handling of the above exception, another exception occurred:\n\n"
    first = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nKeyError: 1\n'
    second = 'Traceback (most recent call last):\n  File "a.py", line 3, in g\nSystemError: no\n'
    # then the second is explained by the first, and only where it is chained
    told = answers(first + chain + second, tmp_path, capsys)
    assert [(one["code"], one["role"]) for one in told] == [
        ("KeyError", "exception"),
        ("SystemError", "echo"),
    ]
    told = answers(second + first, tmp_path, capsys)
    assert [one["code"] for one in told] == ["SystemError", "KeyError"]


def test_an_echo_alone_is_told_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    (told,) = answers(log, tmp_path, capsys)
    assert (told["id"], told["role"], told["explained_by"]) == (
        "torchrun-child-failed",
        "echo",
        None,
    )


def test_causes_in_the_logs_of_several_ranks_are_told_in_order_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a folder with a log a rank, of which the second failed first
    (tmp_path / "rank0.log").write_text("2026-03-02 09:15:10 step 7\nValueError: bad batch\n")
    (tmp_path / "rank1.log").write_text("2026-03-02 09:14:58 step 7\nKeyError: 'pixels'\n")
    # when both are looked through
    assert main(["diagnose", "--json", str(tmp_path)]) == 1
    told = json.loads(capsys.readouterr().out)["findings"]
    # then the earlier one comes first
    assert [one["code"] for one in told] == ["KeyError", "ValueError"]
    assert told[0]["time"] == "2026-03-02T09:14:58"


def test_an_exception_is_told_with_its_rank_and_the_scripts_own_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = answers(TIMEOUTS, tmp_path, capsys)
    assert (told[0]["rank"], told[0]["frame"]) == (2, "/home/me/train.py:31 in collate")
    main(["diagnose", str(tmp_path)])
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "The first cause: a dictionary, configuration or table lacks a key (KeyError: 'pixels')"
        in said
    )
    assert "code: /home/me/train.py:31 in collate" in said


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (
            "OSError: [Errno 28] No space left on device: '/dev/shm/psm_3f2a'\n",
            "shared-memory-full",
        ),
        ("OSError: [Errno 28] No space left on device: 'out/model.pt'\n", "disk-full"),
    ],
)
def test_no_space_in_shared_memory_is_not_the_disk(
    log: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [one["id"] for one in answers(log, tmp_path, capsys)] == [name]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("RuntimeError: NPU function error: aclrtSynchronizeStream, error code is 507034", "did not end on the vector core"),
        ("EL0004: [PID: 42] 2026-01-02-03:04:05 Failed to allocate memory requested by HCCL module.", "no memory left"),
        ("E50034: [PID: 42] 2026-01-02-03:04:05 the dtype must be float16", "does not take this dtype"),
        ("RuntimeError: call aclnnMatmul failed, detail: error code is 561003", "kernel is not installed"),
        ("EB7777: [PID: 42] 2026-01-02-03:04:05 something new", "kernel compiler"),
        ("error code is 507777", "failed while it ran"),
    ],
)  # fmt: skip
def test_a_code_is_explained_by_its_row_and_else_by_its_family(
    line: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (told,) = answers(line, tmp_path, capsys)
    assert words in str(told["title"])
    assert str(told["source"]).startswith(("CANN", "pyACL"))


@pytest.mark.parametrize(
    "line",
    [
        "EL0004x is a label",
        "step 507034 of 561003",
        "error code is 0",
        "loss 1.2E50034",
        "error code is 999999",
    ],
)
def test_what_only_looks_like_a_code_is_nothing(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answers(line, tmp_path, capsys) == []


def test_every_row_of_every_table_has_its_words_and_its_source() -> None:
    tables = sorted((Path(known_messages.__file__).parent / "codes").glob("*.csv"))
    assert tables
    for table in tables:
        with table.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                assert all(row[column] for column in ("about", "cure", "source")), row
                assert known_messages.Role(row["role"])
