"""A recording of a real training of PyTorch's: with call stacks, arguments and the set-up of a process."""

from __future__ import annotations

import runpy
from pathlib import Path

from lockstep.core.arguments import path_of

SCRIPT = '''\
"""Two steps of a tiny training."""

import torch

import lockstep

state = torch.random.get_rng_state()
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(4, 3), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(3, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-6)
inputs = torch.randn(5, 4)
with lockstep.record(RECORDING, model=model, steps="0:2", save=SAVE):
    for _ in range(2):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
torch.random.set_rng_state(state)
'''
"""What is trained; written beside the recording as `train.py`."""


def record_training(path: Path | str, *, save: str = "tensors") -> Path:
    """Run `SCRIPT` in this process, and record it.

    The state of torch's random generator is put back; two recordings hold the same numbers.

    Parameters
    ----------
    path
        A directory that is not there yet; its folder gets a `train.py`.
    save
        As of `lockstep record --save`.

    Returns
    -------
    Path
        Where it lies.

    Raises
    ------
    OutputExistsError
        If something is there, or it cannot be written.
    """
    path = path_of("path", path)
    script = path.absolute().with_name("train.py")
    script.write_text(SCRIPT, encoding="utf-8")
    given = {"RECORDING": path, "SAVE": save}
    runpy.run_path(str(script), init_globals=given)
    return path
