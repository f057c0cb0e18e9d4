"""How many threads re-runs compute with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from lockstep.core.records import Call

_WORTH_THREADS = 1 << 18
"""Elements of a call's largest tensor from which on several threads pay; below, they wait for each
other for longer than they compute, above all on a busy machine (13 times the processor time there)."""


@contextmanager
def threads_for(calls: Sequence[Call]) -> Iterator[None]:
    """Compute with one thread where the calls' tensors are small."""
    largest = max((record.content.numel for call in calls for record in call.records), default=0)
    if largest >= _WORTH_THREADS:
        yield
    else:
        with single_thread():
            yield


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
