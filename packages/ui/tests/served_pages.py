"""A server of `lockstep ui` for tests, and what is asked of it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Answer:
    status: int
    text: str
    headers: dict[str, str]


@dataclass
class Served:
    """A server over a folder."""

    folder: Path
    port: int
    token: str

    def get(self, path: str = "", method: str = "GET", **headers: str) -> Answer:
        return self.ask(f"/{self.token}/{path}", method, **headers)

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, text, named)

    def post(self, path: str, body: str, **headers: str) -> Answer:
        """What is answered to something that is sent; without an `Origin` as no browser sends it."""
        return self.ask(f"/{self.token}/{path}", "POST", body, **headers)

    def json(self, path: str) -> dict[str, Any]:
        """What is answered, read."""
        found: dict[str, Any] = json.loads(self.get(path).text)
        return found

    def keys(self) -> dict[str, str]:
        """The key of each run by its name."""
        return {one["name"]: one["key"] for one in self.json("runs")["runs"]}

    def answer(self, graph: str) -> dict[str, Any]:
        """What comparing two runs found, once it is done."""
        for _ in range(1200):
            state = self.json(f"{graph}/state")
            if "progress" not in state:
                found: dict[str, Any] = state["answer"]
                return found
            threading.Event().wait(0.1)
        raise AssertionError("comparing does not end")


def environment(folder: Path) -> dict[str, str]:
    """Where what is followed is announced apart from what else runs here."""
    return {**os.environ, "XDG_STATE_HOME": str(folder.with_name(folder.name + "-state"))}


@contextmanager
def serving(*folders: Path, programs: Path) -> Iterator[Served]:
    """A server over these folders, of that folder's `lockstep`; what it says at its end is no traceback."""
    process = subprocess.Popen(
        [str(programs / "lockstep"), "ui", *map(str, folders)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(folders[0]),
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{20,})/\n", line)
    assert found, line
    try:
        yield Served(folders[0], int(found[1]), found[2])
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    assert "Traceback" not in said
