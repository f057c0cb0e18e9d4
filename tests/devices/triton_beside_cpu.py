"""Triton's kernels beside the CPU's, on random tensors: `python triton_beside_cpu.py [--tensors 200] [--largest N]`.

On a machine without a GPU Triton's interpreter runs them: TRITON_INTERPRET=1. The exit code is 1 where one differs.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter

import numpy as np
import torch

from lockstep.devices.on_device.choice import Pending, are_equal
from lockstep.devices.on_device.taken import SMALL_BYTES
from lockstep.devices.on_device.triton_numbers import DTYPES, found_by_triton
from lockstep.devices.tensor_numbers import measured

STRIDES = ("contiguous", "unaligned", "transposed", "every second", "expanded")


def drawn(number: int, largest: int) -> tuple[str, torch.Tensor]:
    """A tensor of some dtype, size and strides, as the recorder hands it on: its elements in a row."""
    draw = np.random.default_rng(number)
    dtypes = sorted(DTYPES, key=str)
    dtype, strides = dtypes[number % len(dtypes)], STRIDES[number // len(dtypes) % len(STRIDES)]
    count = int(math.exp(draw.uniform(0, math.log(largest)))) if number % 20 else 0
    numbers = torch.from_numpy(draw.normal(0, 30, count + 3))
    if not dtype.is_floating_point and not dtype.is_signed:
        numbers = numbers.abs()
    tensor = numbers.to(dtype)
    if dtype.is_floating_point and number % 3 == 0 and count > 4:
        for place, value in enumerate((math.nan, math.inf, -math.inf, torch.finfo(dtype).tiny / 2)):
            tensor[place] = value
    return f"{dtype} {count} {strides}", laid_out(tensor, count, strides)


def laid_out(tensor: torch.Tensor, count: int, strides: str) -> torch.Tensor:
    """Some of a tensor's elements, in a row."""
    if strides == "contiguous":
        return tensor[:count].clone()
    if strides == "unaligned":
        return tensor[1 : count + 1]
    if strides == "transposed":
        width = max(1, math.isqrt(count))
        return tensor[: width * width].view(width, width).t().contiguous().view(-1)
    if strides == "every second":
        return tensor[:count:2].contiguous()
    return tensor[: max(count // 7, 0)].expand(7, -1).contiguous().view(-1)


def main() -> int:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--largest", type=int, default=1_000_000)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: Counter[str] = Counter()
    for number in range(given.tensors):
        name, flat = drawn(number, given.largest)
        if flat.nbytes <= SMALL_BYTES:
            found["copied as they are, being small"] += 1
            continue
        there = Pending(flat.to(device), found_by_triton, with_sketch=True).numbers()
        here = measured(flat, with_sketch=True)
        equal = are_equal(there, here)
        found["equal" if equal else "different"] += 1
        found["digests equal"] += there[0] == here[0]
        if not equal:
            print(f"{name}: {there[:2]} is not {here[:2]}")
    print(
        f"{given.tensors} tensors:", ", ".join(f"{count} {what}" for what, count in found.items())
    )
    return 1 if found["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
