"""A server on loopback that answers as the API of Kubernetes: Jobs are kept, states of their pod come from a list."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

JOBS = "/apis/batch/v1/namespaces/team/jobs"
PODS = "/api/v1/namespaces/team/pods"


def waiting(reason: str, told: str = "") -> dict[str, Any]:
    """The status of a pod whose container cannot start yet."""
    state = {"waiting": {"reason": reason, **({"message": told} if told else {})}}
    return {"phase": "Pending", "containerStatuses": [{"name": "lockstep", "state": state}]}


UNSCHEDULED = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
         "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}
    ],
}  # fmt: skip
RUNNING = {
    "phase": "Running",
    "containerStatuses": [{"name": "lockstep", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
}  # fmt: skip


def terminated(code: int, reason: str) -> dict[str, Any]:
    """The status of a pod whose container has ended."""
    state = {"terminated": {"exitCode": code, "reason": reason}}
    phase = "Failed" if code else "Succeeded"
    return {"phase": phase, "containerStatuses": [{"name": "lockstep", "state": state}]}


class RecordedKubernetes:
    """The server.

    Parameters
    ----------
    statuses
        The status of the pod at each question, the last one from then on; None where there is no pod.
    log
        Lines with their times; as many come at each question as `lines_a_look` says more.
    """

    def __init__(
        self, statuses: list[dict[str, Any] | None], log: list[str], *, lines_a_look: int = 2
    ) -> None:
        self.statuses, self.log, self.lines_a_look = statuses, log, lines_a_look
        self.jobs: dict[str, Any] = {}
        self.conditions: list[dict[str, str]] = []
        self.deleted: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self._looks = self._reads = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> RecordedKubernetes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def configuration(self, path: Path) -> Path:
        """Write the file that KUBECONFIG names."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1", "kind": "Config", "current-context": "here",
                    "clusters": [{"name": "c", "cluster": {"server": url}}],
                    "users": [{"name": "u", "user": {"token": "t"}}],
                    "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
                }
            )
        )  # fmt: skip
        return path

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        """Return the status and the body of an answer."""
        parts = urlsplit(target)
        self.asked.append(f"{method} {parts.path}")
        if method == "POST" and parts.path == JOBS:
            if body["spec"]["template"]["spec"]["containers"][0]["image"] == "forbidden":
                return 403, {
                    "kind": "Status",
                    "message": "jobs.batch is forbidden: no right to create",
                }
            self.jobs[body["metadata"]["name"]] = body
            return 201, body
        name = parts.path.rpartition("/")[2]
        if parts.path.startswith(JOBS) and method == "DELETE":
            policy = (
                parse_qs(parts.query).get("propagationPolicy", [""])[0] or body["propagationPolicy"]
            )
            self.deleted.append((name, policy))
            if policy == "Foreground":
                self.statuses[:] = [terminated(143, "Error")]
            return 200, {"kind": "Status", "status": "Success"}
        if parts.path.startswith(JOBS):
            return 200, {**self.jobs[name], "status": {"conditions": self.conditions}}
        if parts.path == PODS:
            status = self.statuses[min(self._looks, len(self.statuses) - 1)]
            self._looks += 1
            pod = {"metadata": {"name": "pod-1"}, "status": status}
            return 200, {"kind": "PodList", "items": [] if status is None else [pod]}
        if parts.path == f"{PODS}/pod-1/log":
            status = self.statuses[min(self._looks, len(self.statuses)) - 1] or {}
            if status.get("phase") == "Pending":
                return 400, {"kind": "Status", "message": "container is waiting to start"}
            self._reads += 1
            ended = self._looks >= len(self.statuses)
            # it begins before what was told last, as with `sinceSeconds`
            end = len(self.log) if ended else self._reads * self.lines_a_look
            begin = max(0, (self._reads - 1) * self.lines_a_look - 2)
            return 200, "".join(self.log[begin:end])
        return 404, {"kind": "Status", "message": f"{parts.path} is not found"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        recorded = self

        def answered(self: BaseHTTPRequestHandler) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            code, value = recorded.answer(self.command, self.path, json.loads(sent) if sent else {})
            data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(code)
            kind = "text/plain" if isinstance(value, str) else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        methods = {f"do_{name}": answered for name in ("GET", "POST", "DELETE")}
        quiet = {"log_message": lambda *_: None}
        return type("Handler", (BaseHTTPRequestHandler,), {**methods, **quiet})
