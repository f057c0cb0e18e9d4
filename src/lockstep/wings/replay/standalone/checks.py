"""The checks of a written test: this file's text is part of each test. It knows torch and safetensors alone."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

FOLDER = Path(__file__).parent
DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))
ROUNDED_TWICE = ", rounded before the bias is added too"
"""Behind the name of a result: what kernels make of it that round a sum of products before they add a bias."""


def given() -> dict[str, torch.Tensor]:
    """The recorded tensors, laid in the memory of DEVICE as they were laid when they were recorded."""
    layouts = json.loads((FOLDER / "facts.json").read_text())["layouts"]
    memory: dict[int, torch.Tensor] = {}
    found = {}
    for name, tensor in load_file(FOLDER / "inputs.safetensors").items():
        layout = layouts.get(name)
        found[name] = tensor.to(DEVICE) if layout is None else laid(tensor, layout, memory)
    return found


def laid(
    tensor: torch.Tensor, layout: dict[str, Any], memory: dict[int, torch.Tensor]
) -> torch.Tensor:
    """A tensor with its strides; those that shared memory share it again."""
    shared = layout["memory"]
    if shared not in memory:
        memory[shared] = torch.zeros(layout["elements"], dtype=tensor.dtype, device=DEVICE)
    place = (tensor.shape, layout["strides"], layout["offset"])
    where = torch.arange(layout["elements"]).as_strided(*place).reshape(-1).to(DEVICE)
    memory[shared][where] = tensor.to(DEVICE).reshape(-1)
    return memory[shared].as_strided(*place)


def check(name: str, actual: torch.Tensor | None) -> None:
    """Hold a result against the same operator in double precision."""
    assert actual is not None, f"{name}: there is none"
    stored = load_file(FOLDER / "expected.safetensors")
    limits = json.loads((FOLDER / "facts.json").read_text())["limits"][name]
    twice = stored.get(name + ROUNDED_TWICE, stored[name])
    compare(name, as_real(actual.detach().cpu()), stored[name], limits, twice)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts side by side, where a tensor has both."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def compare(
    name: str,
    made: torch.Tensor,
    expected: torch.Tensor,
    limits: list[dict[str, Any]],
    twice: torch.Tensor,
) -> None:
    """Assert that a result is no further off than a sound kernel may be, small and large elements apart."""
    assert made.shape == expected.shape, f"{name}: shape {made.shape}, not {expected.shape}"
    if not expected.is_floating_point():
        others = int((made.to(expected.dtype) != expected).sum())
        assert not others, f"{name}: {others} of {expected.numel()} elements are others"
        return
    above = 0.0
    for limit in limits:
        here = ~(expected.abs() <= above) if above else torch.ones_like(expected, dtype=torch.bool)
        if limit["up_to"] is not None:
            here &= expected.abs() <= limit["up_to"]
            above = limit["up_to"]
        hold(name, made[here], expected[here], limit, twice[here])


def hold(
    name: str,
    made: torch.Tensor,
    expected: torch.Tensor,
    limit: dict[str, Any],
    twice: torch.Tensor,
) -> None:
    """Assert that some elements are no further off than a sound kernel may be, which may round `twice` instead."""
    odd = ~(made.isfinite() & expected.to(made.dtype).isfinite())
    same = (made == expected.to(made.dtype)) | (made.isnan() & expected.isnan())
    assert bool(same[odd].all()), f"{name}: NaN or Inf where there is none, or none where there is"
    off = (made.double() - expected)[~odd]
    norm = math.sqrt(float(expected[~odd].square().sum()))
    error = math.sqrt(float(off.square().sum()))
    error = error / norm if norm else error
    assert error <= limit["allowed"], (
        f"{name}: off by {error:.3g} of its norm; a sound kernel is off by at most"
        f" {limit['allowed']:.3g}; largest error of an element {float(off.abs().max()):.3g}"
    )
    if limit["allowed_misrounded"] is not None:
        dtype = getattr(torch, limit["rounded_to"])
        once, again = expected.to(dtype).double(), twice.to(dtype).double()
        outside = (made < torch.minimum(once, again)) | (made > torch.maximum(once, again))
        share = float(outside[~odd].double().mean())
        assert share <= limit["allowed_misrounded"], (
            f"{name}: {share:.2%} of its elements are not the nearest {limit['rounded_to']}; at a"
            f" sound kernel at most {limit['allowed_misrounded']:.2%}"
        )


def as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if isinstance(result, dict):
        result = tuple(result.values())
    if not isinstance(result, (list, tuple)):
        return ()
    return tuple(tensor for item in result for tensor in as_tuple(item))
