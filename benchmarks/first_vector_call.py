"""How often the first vector function of a process comes out otherwise, and how often after Lockstep's preparation.

    python benchmarks/first_vector_call.py [--starts 600] [--threads 8] [--at-once 2]

Each start is a process forked from one that has loaded torch and computed nothing. It computes a layer of a
transformer up to its activation, that function twice, and whether both calls gave the same bits. More threads than
cores, and several processes at once, make it likelier (`docs/rooms/devices.md`).
"""

from __future__ import annotations

import argparse
import os

import torch

from lockstep.devices.vector_math import prepare_vector_math

FUNCTIONS = ("tanh", "exp", "sqrt")
DIFFERS = 10


def first_call_differs(name: str, threads: int, *, prepare: bool) -> bool:
    """Whether a function's first call in this process differs from its second in any bit."""
    torch.set_num_threads(threads)
    if prepare:
        prepare_vector_math()
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.layer_norm(torch.randn(512, 384, generator=generator), (384,))
    hidden = torch.addmm(torch.ones(1536), x, torch.randn(384, 1536, generator=generator) / 20)
    function = getattr(torch, name)
    first, second = function(hidden), function(hidden)
    return not torch.equal(first.nan_to_num(), second.nan_to_num())


def count(name: str, starts: int, threads: int, at_once: int, *, prepare: bool) -> int:
    """Of so many starts, those whose first call differs."""
    found = running = 0
    for number in range(starts):
        if not os.fork():
            code = 1
            try:
                code = DIFFERS if first_call_differs(name, threads, prepare=prepare) else 0
            finally:
                os._exit(code)
        running += 1
        while running >= at_once or (number == starts - 1 and running):
            code = os.waitstatus_to_exitcode(os.wait()[1])
            running -= 1
            if code not in (0, DIFFERS):
                raise SystemExit(f"a start ended with code {code}")
            found += code == DIFFERS
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=600)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    print("first call differs     bare   prepared")
    for name in FUNCTIONS:
        bare, prepared = (
            count(name, options.starts, options.threads, options.at_once, prepare=prepare)
            for prepare in (False, True)
        )
        print(f"{name:<18} {bare:>8} {prepared:>10}   of {options.starts}", flush=True)


if __name__ == "__main__":
    main()
