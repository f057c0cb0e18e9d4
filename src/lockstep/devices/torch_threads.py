"""Running compiled tasks on torch's own threads.

Between two operators torch's threads spin for a while, waiting for the next: threads of our own would have to share
the processors with them, and gain nothing. So a task is given to the same OpenMP runtime that torch uses, as one more
parallel region (https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html).
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lockstep.kernels.jit import Task
from lockstep.kernels.team import alone


def on_torchs_threads(task: Task, addresses: Any, shares: int) -> None:
    """A `lockstep.kernels.team.Runner`: the threads that torch would use, or this one where they cannot be had."""
    threads = min(shares, torch.get_num_threads())
    parallel = _parallel() if threads > 1 else None
    if parallel is None:
        alone(task, addresses, shares)
    else:
        parallel(task.address, addresses, threads, 0)


@cache
def _parallel() -> Any:
    """`GOMP_parallel(function, data, threads, flags)` of the runtime that torch was linked with.

    GNU's runtime has it, and Intel's and LLVM's have it under the same name; None on platforms where it is another one.
    """
    if not torch.backends.openmp.is_available():
        return None
    for library in sorted(Path(torch.__file__).with_name("lib").glob("*torch_cpu.*")):
        try:
            function: Any = ctypes.CDLL(
                str(library)
            ).GOMP_parallel  # searches what it depends on, too
        except (OSError, AttributeError):
            continue
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        function.restype = None
        return function
    return None
