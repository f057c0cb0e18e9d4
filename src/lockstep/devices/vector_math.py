"""The vector functions of torch's math library, called once before several threads call them.

A build of torch for x86 hands tanh, exp, sqrt and others of float32 and float64 to oneMKL's vector math. That finds out
on the first call of any of them which kernels suit the processor, and notes it in a variable of the process in two
writes: a second thread that reads it in between takes kernels of half the bits for its share of that one call
(https://github.com/pytorch/pytorch/issues/188792; oneMKL 2024.2, with which torch 2.13 is built).
"""

from __future__ import annotations

from functools import cache

import torch

NAMES = (
    "acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10", "log2", "sin", "sqrt", "tan", "tanh",
)  # fmt: skip
"""Functions that returned other bits in float32 and float64 with that variable as it is between the two writes.

Of some 60 elementwise functions and activations no other did, but for those made of these, as `pow(x, 0.5)`. None did
in bfloat16 and float16, which torch computes by itself (torch 2.13.0, AVX-512)."""


@cache
def prepare_vector_math() -> None:
    """Have each vector function choose its kernels on the calling thread alone, once a process.

    No bit of a later result changes, no random number is drawn and no thread starts. Variables of the
    environment that steer the library, as `MKL_CBWR`, take no effect after it, as after any call of it. The caller sees
    to it that no mode of torch is at work.
    """
    for dtype in (torch.float32, torch.float64):
        half = torch.full((1,), 0.5, dtype=dtype, device="cpu")
        for name in NAMES:
            getattr(torch, name)(half)
