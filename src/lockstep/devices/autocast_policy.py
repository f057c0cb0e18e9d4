"""In which dtype autocast computes each operator on a device, asked of torch itself.

Devices differ: `layer_norm` of bfloat16 numbers gives float32 on a GPU and bfloat16 on a CPU. Torch has no table that
says so. But each operator's rule for a device is among its kernels, and applies to tensors without elements
(`FakeTensor`), also for a device that this machine lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from lockstep.devices.tensor_numbers import dtype_name

_ATEN = torch.ops.aten

_OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear": lambda x: _ATEN.linear.default(x, x),
    "matmul": lambda x: _ATEN.matmul.default(x, x),
    "bmm": lambda x: _ATEN.bmm.default(x[None], x[None]),
    "conv2d": lambda x: _ATEN.conv2d.default(x[None, None], x[None, None]),
    "conv_transpose2d": lambda x: _ATEN.conv_transpose2d.input(x[None, None], x[None, None]),
    "scaled_dot_product_attention": lambda x: _ATEN.scaled_dot_product_attention.default(
        x[None, None], x[None, None], x[None, None]
    ),
    "layer_norm": lambda x: _ATEN.layer_norm.default(x, [4]),
    "group_norm": lambda x: _ATEN.group_norm.default(x, 2),
    "softmax": lambda x: _ATEN.softmax.int(x, -1),
    "log_softmax": lambda x: _ATEN.log_softmax.int(x, -1),
    "softplus": lambda x: _ATEN.softplus.default(x),
    "mse_loss": lambda x: _ATEN.mse_loss.default(x, x),
    "l1_loss": lambda x: _ATEN.l1_loss.default(x, x),
    "smooth_l1_loss": lambda x: _ATEN.smooth_l1_loss.default(x, x),
    "sum": lambda x: _ATEN.sum.default(x),
    "prod": lambda x: _ATEN.prod.default(x),
    "cumsum": lambda x: _ATEN.cumsum.default(x, 0),
    "norm": lambda x: _ATEN.norm.Scalar(x),
    "exp": lambda x: _ATEN.exp.default(x),
    "log": lambda x: _ATEN.log.default(x),
    "pow": lambda x: _ATEN.pow.Tensor_Scalar(x, 2),
    "rsqrt": lambda x: _ATEN.rsqrt.default(x),
    "reciprocal": lambda x: _ATEN.reciprocal.default(x),
    "cosine_similarity": lambda x: _ATEN.cosine_similarity.default(x, x),
}
"""Operators that trainings call and that some device's autocast has a rule for, each with a call of it."""


def policy_of(device: str, dtype: torch.dtype) -> dict[str, str]:
    """Return the dtype that autocast gives the results of each operator; those that it leaves alone are absent.

    Parameters
    ----------
    device
        A device type that torch knows, as `cuda`; no such device has to be there.
    dtype
        What autocast was asked for.

    Returns
    -------
    dict
        Empty where torch cannot tell: then no difference is explained by it.

    Examples
    --------
    >>> policy_of("cuda", torch.bfloat16)["layer_norm"], "layer_norm" in policy_of("cpu", torch.bfloat16)
    ('float32', False)
    """
    # In a thread of its own: autocast, modes and gradients are a thread's, and the caller may be inside of several.
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(_asked_alone, device, dtype).result()


def _asked_alone(device: str, dtype: torch.dtype) -> dict[str, str]:
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes half a second

    try:
        torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_enabled(device, True)
        with torch.no_grad(), torch._C.DisableTorchFunction(), FakeTensorMode():
            return _asked(device, dtype)
    except (RuntimeError, NotImplementedError):
        return {}
    finally:
        torch.set_autocast_enabled(device, False)


def _asked(device: str, dtype: torch.dtype) -> dict[str, str]:
    # Not `torch.empty`, which a recorded script may have replaced.
    low, full = (
        _ATEN.empty.memory_format([4, 4], dtype=one, device=device)
        for one in (dtype, torch.float32)
    )
    found = {}
    for name, call in _OPERATORS.items():
        try:
            of_low, of_full = call(low).dtype, call(full).dtype
        except (RuntimeError, NotImplementedError, TypeError):
            continue  # this device has no such operator, so no training there calls it
        if of_low != dtype or of_full != torch.float32:
            found[name] = dtype_name(of_low if of_low != dtype else of_full)
    return found
