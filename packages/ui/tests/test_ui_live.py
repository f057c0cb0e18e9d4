"""A training that `lockstep watch` follows: it shows up in the pages, waits when it is asked to, and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served_pages import Served, environment

SCRIPT = """
import pathlib, sys, torch
here = pathlib.Path(sys.argv[1])
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while not (here / "stop").exists():
    optimizer.zero_grad()
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    step += 1
    (here / "count").write_text(str(step))
"""


def until(what: Callable[[], Any]) -> Any:
    for _ in range(1200):
        if found := what():
            return found
        threading.Event().wait(0.1)
    raise AssertionError("does not come")


@pytest.mark.exhaustive
def test_a_followed_training_is_paused_and_goes_on(
    served: Served, tmp_path: Path, programs: Path
) -> None:
    def count() -> int:
        try:
            return int((tmp_path / "count").read_text() or 0)
        except FileNotFoundError:
            return 0

    def at_rest() -> bool:
        before = count()
        threading.Event().wait(0.5)
        return count() == before

    def asked(what: str) -> dict[str, Any]:
        origin = f"http://127.0.0.1:{served.port}"
        found: dict[str, Any] = json.loads(
            served.post(f"live/{live['key']}/{what}", "", Origin=origin).text
        )
        return found

    # given a training that is watched
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [
        str(programs / "lockstep"),
        "watch",
        "--",
        sys.executable,
        str(tmp_path / "train.py"),
        str(tmp_path),
    ]
    training = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(served.folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        live = until(lambda: next(iter(served.json("runs")["live"]), None))
        assert "train.py" in live["command"]
        assert not live["paused"]
        until(lambda: count() > 3)

        # when
        assert asked("pause") == {"paused": True}

        # then it waits, and goes on when it is asked to
        until(at_rest)
        assert at_rest()
        assert served.json("runs")["live"][0]["paused"]
        waiting = count()
        assert asked("go-on") == {"paused": False}
        until(lambda: count() > waiting)
        # and to pause needs this server's own page
        assert served.post(f"live/{live['key']}/pause", "").status == 403
    finally:
        (tmp_path / "stop").touch()
        _, said = training.communicate(timeout=300)
    assert training.returncode == 0, said
    assert served.json("runs")["live"] == []
    assert "ended" in str(asked("pause"))
