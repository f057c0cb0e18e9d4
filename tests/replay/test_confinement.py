"""What a confined process may not do; the same process may, before it is confined."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.replay.process.confinement import TCP_SINCE, landlock_version

TRIES = """
import json, os, socket, sys
import numpy as np
from lockstep.replay.process.confinement import confine, limit, room_bytes

folder, port, memory_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
kept = os.path.join(folder, "kept")

def run():
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)

def connect():
    socket.create_connection(("127.0.0.1", port)).close()

def done():
    tries = {
        "make": lambda: os.rmdir(os.mkdir(kept + ".new") or kept + ".new"),
        "write": lambda: os.close(os.open(kept, os.O_WRONLY)),
        "cut": lambda: os.truncate(kept, 4),
        "link": lambda: os.unlink(os.symlink(kept, kept + ".link") or kept + ".link"),
        "rename": lambda: os.rename(os.rename(kept, kept + ".new") or kept + ".new", kept),
        "run": run,
        "connect": connect,
        "take": lambda: np.empty(2 * room_bytes(memory_bytes), np.uint8),
        "read": lambda: open(kept).read(),
        "list": lambda: os.listdir(folder),
        "take some": lambda: np.ones(memory_bytes // 32),
    }
    found = []
    for name, one in tries.items():
        try:
            one()
        except (OSError, MemoryError):
            continue
        found.append(name)
    return found

before = done()
confine()
limit(memory_bytes)
print(json.dumps([before, done()]))
"""


@pytest.mark.skipif(landlock_version() < TCP_SINCE, reason="the system has limits alone")
def test_a_confined_process_reads_and_computes_and_no_more(tmp_path: Path) -> None:
    # given a file, somebody who listens, and a process that tries everything before and after
    (tmp_path / "kept").write_text("kept")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        run = subprocess.run(
            [sys.executable, "-c", TRIES, str(tmp_path), str(port), str(256 << 20)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    before, after = json.loads(run.stdout)
    # then only what a re-run needs is left
    assert before == [
        "make", "write", "cut", "link", "rename", "run", "connect", "take", "read", "list",
        "take some",
    ]  # fmt: skip
    assert after == ["read", "list", "take some"]
