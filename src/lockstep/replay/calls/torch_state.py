"""Keep torch's state while a call runs again: its settings, its plain kernels, and the calls it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from lockstep.replay.calls.refusals import CannotReplay

REFUSALS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
    OverflowError,
    LookupError,
)
"""What torch raises where a call cannot be made with these arguments or this dtype."""


@contextmanager
def torch_may_refuse() -> Iterator[None]:
    """Say what torch refuses as a reason why a call cannot be run again. Raises CannotReplay if it does."""
    try:
        yield
    except CannotReplay:
        raise
    except REFUSALS as error:
        first = str(error).partition("\n")[0] or type(error).__name__
        raise CannotReplay(f"torch refuses: {first}") from error


@contextmanager
def leaving_no_trace(random_state: torch.Tensor | None = None) -> Iterator[None]:
    """Leave no trace: neither in the random stream, which begins as it did, nor in the list of warnings."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if random_state is not None:
            torch.set_rng_state(random_state)
        yield


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Run without oneDNN; `torch.backends.mkldnn.flags` does the same with a warning about TF32."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)
