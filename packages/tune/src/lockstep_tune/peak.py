"""`python -m lockstep_tune.peak`: how many FLOP/s this machine reaches at most, measured by a large product.

In a process of its own, so that nothing of it is left in the training's or in the one that reads the profile.
"""

from __future__ import annotations

import json
import sys
import time

import torch

_SIZE = 1024
_REPEATS = 8


def _main() -> None:
    if int(sys.argv[1]):
        torch.set_num_threads(int(sys.argv[1]))
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    matrix = torch.ones(_SIZE, _SIZE, device=device)
    took = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        (matrix @ matrix)[0, 0].item()  # waits for the device
        took.append(time.perf_counter() - began)
    # The product of two n by n matrices takes n^3 products and as many sums.
    sys.stdout.write(json.dumps(2 * _SIZE**3 / min(took)))


if __name__ == "__main__":
    _main()
