"""The facts of one update: hyper-parameters, which parameters train, generators, and the norms of gradients."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch.optim.optimizer import Optimizer

from lockstep.capture.tensors.shards import local_part
from lockstep.core.step_rows import SCALER
from lockstep.devices.methods import item, numel, to
from lockstep.devices.tensor_numbers import raw_bytes

HYPER_PARAMETERS = (
    "lr", "weight_decay", "momentum", "dampening", "nesterov", "betas", "eps", "alpha", "rho",
    "lambd", "amsgrad", "maximize", "centered",
)  # fmt: skip
"""Hyper-parameters that a script sets. An optimizer may keep others in a group, which it computes of gradients."""

MOST_GROUPS = 4
"""Groups of parameters that are told one by one; of the others there is one digest and one norm."""

EACH_STEP, STRIDE = 16, 8
"""Norms of gradients are taken of so many first steps, and of every so many after them."""


def settings_of(optimizer: Optimizer, prefix: str) -> dict[str, float | str]:
    """Return the hyper-parameters of each group, and a digest of which parameters require a gradient."""
    found: dict[str, float | str] = {}
    others: list[str] = []
    for number, group in enumerate(optimizer.param_groups):
        own = dict(_hyper_parameters(group))
        if number < MOST_GROUPS:
            found |= {f"{prefix}{number}.{name}": value for name, value in own.items()}
        else:
            others += [f"{number}.{name}={value:.9g}" for name, value in own.items()]
    if others:
        found[f"{prefix}others"] = _digest("\n".join(others).encode())
    found[f"{prefix}trained"] = _trained(optimizer)
    return found


def _hyper_parameters(group: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name in HYPER_PARAMETERS:
        value = group.get(name)
        several = isinstance(value, (tuple, list))
        for place, one in enumerate(value if several else (value,)):  # type: ignore[arg-type]
            if isinstance(one, torch.Tensor) and one.device.type == "cpu" and numel(one) == 1:
                one = item(one)
            if isinstance(one, (bool, int, float)) and math.isfinite(one):
                yield (f"{name}.{place}" if several else name), float(one)


def settings_of_scaler(scaler: Any) -> dict[str, float | str]:
    """Return a gradient scaler's factor, and how a script has set it to grow and to shrink."""
    found: dict[str, float | str] = {"scale": float(scaler.get_scale())}
    for name in ("growth_factor", "backoff_factor", "growth_interval"):
        read = getattr(scaler, f"get_{name}", None)
        if read is not None:
            found[f"{SCALER}{name}"] = float(read())
    return found


def _trained(optimizer: Optimizer) -> str:
    """How many parameters require a gradient, of how many, and a digest of which."""
    flags = bytes(one.requires_grad for group in optimizer.param_groups for one in group["params"])
    return f"{sum(flags)} of {len(flags)}, {_digest(flags)}"


def _digest(data: bytes) -> str:
    return xxhash.xxh32_hexdigest(data)


def generator_digests() -> dict[str, str]:
    """Return digests of the states of the process's global generators; nothing is drawn."""
    _, words, gauss = random.getstate()
    found = {
        "python": _digest(f"{hash(words)} {gauss}".encode()),  # of whole numbers: the same anywhere
        "numpy": _digest(_of_numpy(np.random.get_state(legacy=True))),
        "torch": _digest(raw_bytes(torch.get_rng_state()).tobytes()),
    }
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():  # kept on the host: seed and offset
        found["torch.cuda"] = _digest(bytes(cuda.get_rng_state().tolist()))
    return found


def _of_numpy(state: Any) -> bytes:
    """The state of NumPy's global generator, which a script may have replaced by one of a different algorithm."""
    if isinstance(state, tuple):
        return b"".join([state[1].tobytes(), repr(state[2:]).encode()])
    return repr(state).encode()


def takes_norms(step: int) -> bool:
    """Whether the norms of gradients are taken at a step: as reading all of them costs time, not at each."""
    return step < EACH_STEP or step % STRIDE == 0


def gradient_norms(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the norm of the gradient of each group, of those after `MOST_GROUPS` together, where they lie."""
    groups = [[one.grad for one in group["params"]] for group in optimizer.param_groups]
    if len(groups) > MOST_GROUPS:
        rest = [one for group in groups[MOST_GROUPS:] for one in group]
        groups = [*groups[:MOST_GROUPS], rest]
    return [_norm([part for one in group if (part := _own(one)) is not None]) for group in groups]


def _own(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """The dense part of a gradient that this rank has."""
    if gradient is None:
        return None
    local = local_part(gradient)
    own = gradient if local is None else local
    return own if own.layout is torch.strided and numel(own) else None


def _norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of all of them; each device that holds some is asked once."""
    if not gradients:
        return torch.zeros(())
    devices: dict[torch.device, list[torch.Tensor]] = {}
    for one in gradients:
        devices.setdefault(one.device, []).append(one)
    norms = [_norm_on_device(those) for those in devices.values()]
    if len(norms) == 1:
        return norms[0]
    return _norm_on_device([one.to(norms[0].device) for one in norms])


def _norm_on_device(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    norms = [to(one, torch.float32) for one in torch._foreach_norm(list(gradients))]
    # Not by `torch.stack`, which the script may have wrapped.
    whole: torch.Tensor = _ATEN.linalg_vector_norm.default(_ATEN.stack.default(norms))
    return whole


_ATEN = torch.ops.aten
