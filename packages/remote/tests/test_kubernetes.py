"""`record --on kubernetes`, beside a server on loopback that answers as its API; no cluster was asked."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from recorded_kubernetes import RUNNING, UNSCHEDULED, RecordedKubernetes, terminated, waiting
from ssh_host import Client

from lockstep.cli.main import main
from lockstep_remote.executors import following, kubernetes_job

pytest.importorskip("kubernetes", reason="the extra lockstep-remote[kubernetes] is not installed")
ON = "kubernetes:image=registry/train:1,gpus=2,memory=8Gi,time=30,secret=storage,folder=/app"
RECORD = ("-o", "s3://bucket/ref", "--", "python", "train.py")
LOG = [
    "2026-01-01T00:00:01.5Z one\n",
    "2026-01-01T00:00:01.500000001Z two\n",
    "2026-01-01T00:00:02Z three\n",
    "2026-01-01T00:00:02Z three\n",
    "2026-01-01T00:00:02.25Z four\n",
    "2026-01-01T00:00:03Z cut",
]
Given = Callable[..., RecordedKubernetes]


@pytest.fixture
def cluster(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Given]:
    """A way to start a server, which KUBECONFIG then names."""
    monkeypatch.setattr(following, "LOOKS_EVERY_S", 0.01)
    monkeypatch.setattr(kubernetes_job, "LOOKS_AFTER_S", 0.0)
    with ExitStack() as started:

        def start(statuses: list[Any], log: list[str] | None = None) -> RecordedKubernetes:
            server = started.enter_context(
                RecordedKubernetes(statuses, LOG if log is None else log)
            )
            monkeypatch.setenv("KUBECONFIG", str(server.configuration(tmp_path / "kube.json")))
            return server

        yield start


def test_a_job_says_why_it_waits_prints_each_line_once_and_is_removed_at_its_end(
    cluster: Given, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a pod that waits for GPUs and its image, then trains
    states = [None, UNSCHEDULED, waiting("ImagePullBackOff", "Back-off pulling"), RUNNING, RUNNING]
    server = cluster([*states, RUNNING, terminated(0, "Completed")])
    # when a training is recorded there
    assert main(["record", "--on", ON, *RECORD]) == 0
    # then each reason is said, and each line printed once
    ended = capfd.readouterr()
    assert ended.out == "one\ntwo\nthree\nthree\nfour\ncut"
    for told in (
        "waits: it has no pod yet",
        "waits: Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        "waits: ImagePullBackOff: Back-off pulling",
        "runs",
    ):
        assert ended.err.count(f" {told}\n") == 1
    # and the Job had what was asked for, and is gone
    ((name, job),) = server.jobs.items()
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "lockstep", "record", "--output", *RECORD[1:]]
    assert container["image"] == "registry/train:1"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2", "memory": "8Gi"}
    assert container["envFrom"] == [{"secretRef": {"name": "storage"}}]
    assert container["workingDir"] == "/app"
    assert (job["spec"]["backoffLimit"], job["spec"]["activeDeadlineSeconds"]) == (0, 1800)
    assert server.deleted == [(name, "Background")]
    assert [path.name for path in Path().iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("last", "code", "told"),
    [
        (terminated(3, "Error"), 3, "ended with exit code 3\n"),
        (terminated(137, "OOMKilled"), 137, "ended with exit code 137 (OOMKilled)"),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, 2, "(Evicted: low on memory)"),
    ],
)  # fmt: skip
def test_a_job_that_fails_ends_with_its_exit_code_or_says_that_it_has_none(
    cluster: Given, capfd: pytest.CaptureFixture[str], last: dict[str, Any], code: int, told: str
) -> None:
    cluster([RUNNING, last])
    assert main(["record", "--on", ON, *RECORD]) == code
    ended = capfd.readouterr()
    assert ended.out.endswith("cut")
    assert told in ended.err


def test_a_job_whose_time_is_over_has_no_exit_code(
    cluster: Given, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a Job whose pod Kubernetes has removed
    server = cluster([RUNNING, None])
    server.conditions = [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]
    assert main(["record", "--on", ON, *RECORD]) == 2
    assert "(DeadlineExceeded), so there is no exit code" in " ".join(
        capfd.readouterr().err.split()
    )


def test_ctrl_c_deletes_the_job(cluster: Given, capfd: pytest.CaptureFixture[str]) -> None:
    # given a pod that trains until it is told to end, and a Ctrl-C once it does
    server = cluster([RUNNING])
    answer = server.answer

    def press(method: str, target: str, body: Any) -> tuple[int, Any]:
        if target.partition("?")[0].endswith("/log") and not server.deleted:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return answer(method, target, body)

    server.answer = press  # type: ignore[method-assign]
    assert main(["record", "--on", ON, *RECORD]) == 130
    assert server.deleted[0][1] == "Foreground"
    assert "is cancelled" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("kubernetes:image=forbidden", *RECORD), "no right to create (HTTP 403)"),
        (("kubernetes", *RECORD), "it needs image="),
        (("kubernetes:image=x,partition=y", *RECORD), "partition is no option; options are"),
        (("kubernetes:image=x,time=soon", *RECORD), "write whole minutes"),
        (("kubernetes:image=x,context=none", *RECORD), "there is no way to a cluster"),
        (
            ("kubernetes:image=x", "-o", "ref", *RECORD[2:]),
            "give an address, as in s3://bucket/ref",
        ),
    ],
)
def test_what_cannot_be_a_job_is_told(
    cluster: Given, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    server = cluster([RUNNING])
    assert main(["record", "--on", *words]) == 2
    assert told in " ".join(capfd.readouterr().err.split())
    assert not server.jobs
    assert [path.name for path in Path().iterdir()] == ["train.py"]
