"""Work in fresh forks of a process that has imported everything and computed nothing.

So neither a thread count nor a random stream nor a patched module is left over from the case before.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Task:
    """Work for one fork: what it is called, what it does, and what it gives instead where it fails."""

    name: str
    work: Callable[[], Any]
    failed: Callable[[str], Any]


def pooled(
    tasks: Iterable[Task], jobs: int, directory: Path, *, timeout_s: float
) -> Iterator[tuple[str, Any]]:
    """Run tasks in forks, `jobs` at a time; yields what each gave, in order of ending."""
    waiting, running = deque(enumerate(tasks)), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            number, task = waiting.popleft()
            file = directory / f"answer-{number}"
            failure = _failure(task, file)
            child = forked(
                lambda task=task, file=file: _dump(file, task.work()), failure, leads=True
            )
            running[number] = (child, file, task.name, failure)
        time.sleep(0.02)
        for number, (child, file, name, failure) in list(running.items()):
            if not child.ended():
                if time.monotonic() - child.started < timeout_s:
                    continue
                child.kill()
                failure(f"took longer than {timeout_s:.0f} s")
            del running[number]
            if not file.exists():
                failure("the process died")
            yield name, pickle.loads(file.read_bytes())
            file.unlink()


def _failure(task: Task, file: Path) -> Callable[[str], None]:
    return lambda text: _dump(file, task.failed(text))


def _dump(file: Path, value: Any) -> None:
    file.with_suffix(".part").write_bytes(pickle.dumps(value))
    file.with_suffix(".part").rename(file)


@dataclass
class Child:
    """A forked process; where it leads a group, its own children end with it."""

    pid: int
    started: float
    leads: bool = False

    def ended(self) -> bool:
        """Whether it is over; asks once."""
        return os.waitpid(self.pid, os.WNOHANG)[0] != 0

    def wait(self, *, timeout_s: float) -> None:
        """Wait for its end, and end it where it takes too long."""
        while not self.ended():
            if time.monotonic() - self.started > timeout_s:
                self.kill()
                return
            time.sleep(0.01)

    def kill(self) -> None:
        """End it now."""
        (os.killpg if self.leads else os.kill)(self.pid, 9)
        os.waitpid(self.pid, 0)


def forked(work: Callable[[], Any], failed: Callable[[str], None], *, leads: bool = False) -> Child:
    """Run something in a fork; `failed` is called there with the traceback if it raises."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if leads:
        with suppress(OSError):  # both sides ask for it, as either may come first
            os.setpgid(pid, pid)
    if pid:
        return Child(pid, time.monotonic(), leads)
    try:
        work()
    except BaseException:
        failed(traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # a gloo process group may abort in an ordinary exit: torch's own fault
    raise AssertionError
