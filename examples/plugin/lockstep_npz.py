"""Reads another tool's dumps: a folder of `step-N.npz`, a tensor for each key `CALL|MODULE|OPERATOR|ROLE|NAME`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from lockstep.plugin import Reader, hookimpl
from lockstep.recordings import ReadCall, ReadTensor, Role


@hookimpl
def lockstep_readers() -> list[Reader]:
    """Makes `lockstep compare`, `show` and `extract` take such folders."""
    return [Reader("npz", lambda path: any(path.glob("step-*.npz")), read)]


def read(folder: Path) -> Iterator[ReadCall]:
    """Yield the calls, step by step."""
    files = {int(path.stem.removeprefix("step-")): path for path in folder.glob("step-*.npz")}
    for step, path in sorted(files.items()):
        with np.load(path, allow_pickle=False) as arrays:
            keys = [key.split("|") for key in arrays.files]
            for (_, module, op), call in groupby(keys, lambda key: tuple(key[:3])):
                tensors = [ReadTensor(Role(key[3]), key[4], arrays["|".join(key)]) for key in call]
                yield ReadCall(step, module, op, tensors)
