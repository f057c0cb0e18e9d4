"""`python -m lockstep.kernels.every_loop` compiles all loops at once, as when an image is built.

It takes half a minute of two processors, and a second where they are kept already; no command then has to compile.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pkgutil import iter_modules

import lockstep.kernels
from lockstep.kernels.jit import available, compile_now, loops

MOST_PROCESSES = 4


def main() -> None:
    """Compile in several processes: the compiler takes one processor in each."""
    if not available():
        return
    modules = [
        f"{lockstep.kernels.__name__}.{found.name}"
        for found in iter_modules(lockstep.kernels.__path__)
    ]
    waiting = [
        (name, loop)
        for name in modules
        if name != __spec__.name
        for loop in loops(import_module(name))
    ]
    processes = min(MOST_PROCESSES, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        list(pool.map(compile_now, *zip(*waiting, strict=True)))


if __name__ == "__main__":
    main()
