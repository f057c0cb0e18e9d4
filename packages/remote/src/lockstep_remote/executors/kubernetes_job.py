"""Kubernetes: `--on kubernetes:image=IMAGE,gpus=1` runs a verb as a Job of one pod, by the official Python client."""

from __future__ import annotations

import importlib
import io
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.terminal import message, shell_line
from lockstep_remote.executors.following import JobError
from lockstep_remote.hookspecs import JobPhase, JobState, JobWork, SubmittedJob

LOOKS_AFTER_S = 2.0
"""The pause between two questions to the API server."""
GRACE_S = 60
"""How long a pod that is ended may take to close its recording and upload the rest."""
KEPT_S = 3600
"""How long Kubernetes keeps a Job that has ended where nobody follows it."""
ANSWER_S = 60.0
OVERLAP_S = 10
"""Logs are asked for from so many seconds before the last question; lines that are known are left out."""

_OPTIONS = frozenset(
    {"context", "cpus", "folder", "gpu-resource", "gpus", "image", "memory", "namespace", "secret", "service-account",
     "time"}
)  # fmt: skip
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z")


class Kubernetes:
    """The job system Kubernetes, whose pods see no file of this machine."""

    name = "kubernetes"
    shares_files = False

    def submit(self, work: JobWork) -> SubmittedJob:
        """Create a Job that runs the work in its image."""
        given = work.options
        unknown = sorted(given.keys() - _OPTIONS)
        if unknown or not given.get("image"):
            wrong = f"{unknown[0]} is no option" if unknown else "it needs image="
            raise UsageError(
                f"--on kubernetes: {wrong}; options are {', '.join(sorted(_OPTIONS))}, as in --on"
                " kubernetes:image=registry/train:1,gpus=1"
            )
        name = f"lockstep-{secrets.token_hex(4)}"
        manifest = _manifest(name, work)
        clients = _Clients(given.get("context"), given.get("namespace"))
        clients.created(manifest)
        return _KubernetesJob(name, clients)


def _manifest(name: str, work: JobWork) -> dict[str, Any]:
    """The Job: one pod, which runs once."""
    given = work.options
    limits = {
        resource: given[option]
        for option, resource in (
            ("gpus", given.get("gpu-resource", "nvidia.com/gpu")),
            ("cpus", "cpu"),
            ("memory", "memory"),
        )
        if option in given
    }
    container: dict[str, Any] = {
        "name": "lockstep", "image": given["image"], "command": ["python", "-m", "lockstep", *work.words],
        "resources": {"limits": limits},
    }  # fmt: skip
    if "folder" in given:
        container["workingDir"] = given["folder"]
    if "secret" in given:
        container["envFrom"] = [{"secretRef": {"name": given["secret"]}}]
    pod: dict[str, Any] = {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_S, "containers": [container],
    }  # fmt: skip
    if "service-account" in given:
        pod["serviceAccountName"] = given["service-account"]
    labels = {"app.kubernetes.io/managed-by": "lockstep"}
    job: dict[str, Any] = {
        "backoffLimit": 0, "ttlSecondsAfterFinished": KEPT_S,
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }  # fmt: skip
    if "time" in given:
        job["activeDeadlineSeconds"] = _seconds(given["time"])
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": job,
    }  # fmt: skip


def _seconds(minutes: str) -> int:
    if not minutes.isdecimal() or int(minutes) < 1:
        raise UsageError(f"--on kubernetes:time={minutes}: write whole minutes, as in time=30")
    return 60 * int(minutes)


class _Clients:
    """The two APIs that are asked, and the namespace."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        try:
            kubernetes = importlib.import_module("kubernetes")
        except ModuleNotFoundError as error:
            raise UsageError(
                f"--on kubernetes: {error.name} is not installed here: pip install 'lockstep-numerics[kubernetes]'"
            ) from error
        try:
            _configure(kubernetes.config, context)
        except kubernetes.config.ConfigException as error:
            raise UsageError(
                f"--on kubernetes: there is no way to a cluster ({message(str(error))}); set KUBECONFIG, or try"
                " `kubectl cluster-info`"
            ) from error
        self._refused = kubernetes.client.ApiException
        self._batch, self._core = kubernetes.client.BatchV1Api(), kubernetes.client.CoreV1Api()
        self.namespace = namespace or _namespace(kubernetes.config, context)

    def created(self, manifest: dict[str, Any]) -> None:
        """Create the Job."""
        self._asked(self._batch.create_namespaced_job, self.namespace, manifest)

    def job(self, name: str) -> Mapping[str, Any] | None:
        """Return the Job, None where it is gone."""
        return self._values(self._batch.read_namespaced_job, name, self.namespace)

    def pod(self, name: str) -> Mapping[str, Any] | None:
        """Return the pod of a Job, None where there is none yet."""
        selector = f"job-name={name}"
        found = self._values(
            self._core.list_namespaced_pod, self.namespace, label_selector=selector
        )
        items = found.get("items", []) if found else []
        return items[0] if items else None

    def log(self, pod: str, since_s: int | None) -> bytes:
        """Return what a pod printed, each line with its time; nothing where its container has not begun."""
        since = {} if since_s is None else {"since_seconds": since_s}
        asked = self._core.read_namespaced_pod_log
        return self._asked(asked, pod, self.namespace, timestamps=True, missing=(400, 404), **since)

    def remove(self, name: str, policy: str) -> None:
        """Delete the Job with its pods; one that is gone is no mistake."""
        asked = self._batch.delete_namespaced_job
        self._asked(asked, name, self.namespace, propagation_policy=policy, missing=(404,))

    def _values(
        self, ask: Callable[..., Any], *words: Any, **more: Any
    ) -> Mapping[str, Any] | None:
        data = self._asked(ask, *words, missing=(404,), **more)
        return json.loads(data) if data else None

    def _asked(
        self, ask: Callable[..., Any], *words: Any, missing: tuple[int, ...] = (), **more: Any
    ) -> bytes:
        """The bytes of an answer, which no class of the client has to know; b"" for the codes in `missing`."""
        try:
            answer = ask(*words, **more, _preload_content=False, _request_timeout=ANSWER_S)
            status, data = int(answer.status), bytes(answer.data)
        except self._refused as error:
            status, data = int(error.status or 0), str(error.body or error.reason or "").encode()
        except LockstepError:
            raise
        except Exception as error:  # urllib3's, and those of each way to log in
            why = message(str(error))[:300]
            raise JobError(f"kubernetes: the API server does not answer ({why})") from error
        if status in missing:
            return b""
        if not 200 <= status < 300:
            raise JobError(f"kubernetes: {_why(data)} (HTTP {status})")
        return data


def _why(data: bytes) -> str:
    """The message of a Status object, or the text itself."""
    text = data.decode("utf-8", errors="replace")
    try:
        return message(str(json.loads(text)["message"]))
    except (ValueError, KeyError, TypeError):
        return message(text)[:300]


def _configure(config: Any, context: str | None) -> None:
    """Log in by KUBECONFIG or `~/.kube/config`; without either as a pod of the cluster."""
    named = os.environ.get("KUBECONFIG") or None
    if named or context or Path("~/.kube/config").expanduser().exists():
        config.load_kube_config(config_file=named, context=context)
    else:
        config.load_incluster_config()


def _namespace(config: Any, context: str | None) -> str:
    """The namespace of a context, `default` where it names none."""
    try:
        named = os.environ.get("KUBECONFIG") or None
        contexts, active = config.list_kube_config_contexts(config_file=named)
    except config.ConfigException:  # in a pod of the cluster
        return "default"
    chosen = next((one for one in contexts if one["name"] == context), active)
    return str(chosen["context"].get("namespace") or "default")


class _KubernetesJob:
    """A Job that Kubernetes has taken."""

    def __init__(self, name: str, clients: _Clients) -> None:
        self.key = name
        self._clients = clients
        self._log = _PodLog()
        self._pod = ""
        self._next = self._read = -math.inf
        self._state = JobState(JobPhase.WAITS)

    @property
    def ends_by(self) -> str:
        """The command line that ends it."""
        return shell_line(["kubectl", "delete", "job", self.key, "-n", self._clients.namespace])

    def look(self) -> JobState:
        """Return its state, by its pod and its own conditions."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOKS_AFTER_S
            pod = self._clients.pod(self.key)
            if pod is not None:
                self._pod = str(pod["metadata"]["name"])
            state = None if pod is None else _state_of_pod(pod)
            if state is None or (state.phase is JobPhase.ENDED and state.exit_code is None):
                state = _state_of_job(self._clients.job(self.key), state)
            self._state = state
        return self._state

    def printed(self) -> tuple[bytes, bytes]:
        """Return what the pod printed since the last call; Kubernetes does not part output and errors."""
        now = time.monotonic()
        is_last = self._state.phase is JobPhase.ENDED
        if not self._pod or not (is_last or now >= self._read + LOOKS_AFTER_S):
            return b"", b""
        begun = self._log.has_begun and math.isfinite(self._read)
        since_s = math.ceil(now - self._read) + OVERLAP_S if begun else None
        found = self._log.more(self._clients.log(self._pod, since_s), is_last=is_last)
        self._read = now
        return found, b""

    def cancel(self) -> None:
        """Delete the Job; its pod gets SIGTERM, and some time to end."""
        self._clients.remove(self.key, "Foreground")
        self._next = -math.inf

    def clean(self) -> None:
        """Delete the Job with its pod."""
        self._clients.remove(self.key, "Background")


def _state_of_pod(pod: Mapping[str, Any]) -> JobState:
    """What a pod says (Kubernetes API, PodStatus)."""
    status = pod.get("status", {})
    states = [one.get("state", {}) for one in status.get("containerStatuses", [])]
    ended = next((one["terminated"] for one in states if "terminated" in one), None)
    if ended is not None:
        reason = str(ended.get("reason", ""))
        told = reason if reason not in ("Completed", "Error") else ""
        return JobState(JobPhase.ENDED, told, int(ended["exitCode"]))
    if status.get("phase") in ("Succeeded", "Failed"):
        return JobState(JobPhase.ENDED, _words(status))
    if any("running" in one for one in states):
        return JobState(JobPhase.RUNS)
    waiting = next((one["waiting"] for one in states if "waiting" in one), None)
    if waiting is not None:
        return JobState(JobPhase.WAITS, _words(waiting))
    conditions = status.get("conditions", [])
    unscheduled = [
        one
        for one in conditions
        if one.get("type") == "PodScheduled" and one.get("status") == "False"
    ]
    return JobState(JobPhase.WAITS, _words(unscheduled[0]) if unscheduled else "")


def _state_of_job(job: Mapping[str, Any] | None, pod: JobState | None) -> JobState:
    """What a Job says whose pod is not there, or ended without an exit code."""
    if job is None:
        return JobState(JobPhase.ENDED, "the Job is deleted")
    for one in job.get("status", {}).get("conditions", []):
        if one.get("status") == "True" and one.get("type") in ("Failed", "Complete"):
            return JobState(JobPhase.ENDED, _words(one))
    return pod if pod is not None else JobState(JobPhase.WAITS, "it has no pod yet")


def _words(values: Mapping[str, Any]) -> str:
    """Reason and message of a status, on one line."""
    parts = [str(values[key]) for key in ("reason", "message") if values.get(key)]
    return message(": ".join(parts))[:300]


class _PodLog:
    """The lines of a pod, each once: a log is asked for by time, and comes with lines that were there before."""

    def __init__(self) -> None:
        self._last = ""
        self._at_last = 0

    @property
    def has_begun(self) -> bool:
        """Whether a line has come."""
        return bool(self._last)

    def more(self, data: bytes, *, is_last: bool) -> bytes:
        """Return the text of lines that were not there before; one without an end waits, except at the last time."""
        found, again = [], 0
        for line in io.BytesIO(data):
            if not (line.endswith(b"\n") or is_last):
                break
            stamp, _, text = line.partition(b" ")
            key = _sortable(stamp.decode("ascii", errors="replace"))
            if key < self._last:
                continue
            if key == self._last:
                again += 1
                if again <= self._at_last:
                    continue
            else:
                self._last, again = key, 1
                self._at_last = 0
            self._at_last = max(self._at_last, again)
            found.append(text)
        return b"".join(found)


def _sortable(stamp: str) -> str:
    """A time of RFC 3339 with nine digits after the second: Kubernetes leaves zeros at the end out."""
    found = _STAMP.fullmatch(stamp)
    return f"{found[1]}.{found[2] or '':0<9}" if found else stamp
