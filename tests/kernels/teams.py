"""Who runs a task in tests: more threads than there are processors, all at once."""

from __future__ import annotations

import threading
from typing import Any

from lockstep.kernels.jit import Task


def threads(task: Task, addresses: Any, shares: int) -> None:
    """A `Runner` of four threads, which begin together."""
    begin = threading.Barrier(4)

    def work() -> None:
        begin.wait()
        task(addresses)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
