"""`seed_all`, as ptdbg_ascend and mindstudio-probe have it."""

from __future__ import annotations

import os

from lockstep.options import truth_of
from lockstep.recorder import seed_everything, seed_generators
from lockstep_interop_names.faces.told import told


@told
def seed_all(seed: int = 1234, mode: bool = False) -> None:
    """Fix Python's, NumPy's and torch's random numbers. Dropout stays as it is.

    seed: From 0 to 2**32 - 1.
    mode: Whether deterministic algorithms are asked for as well.
    """
    (seed_everything if truth_of("mode", mode) else seed_generators)(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
