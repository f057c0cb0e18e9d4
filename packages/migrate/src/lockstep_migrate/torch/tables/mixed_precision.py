"""The functions of apex.amp that this project calls, by torch.amp.

O1 runs the forward of each model under autocast and gives its results in float32; losses are scaled by a factor that
adapts itself by apex's rule. O0 changes nothing. O2 and O3, which keep weights in half precision, are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WINDOW = 2000
_scales: list[_Scale] = []
_scaled: set[torch.optim.Optimizer] = set()
_open = threading.local()


class _Scale:
    """The factor of a loss: doubled after 2000 steps without an overflow, halved by one."""

    def __init__(self, fixed: float | str | None, least: float | None, most: float) -> None:
        self.is_fixed = fixed not in (None, "dynamic")
        self.factor = float(fixed) if fixed is not None and self.is_fixed else min(most, 2.0**16)
        self.least, self.most, self.unskipped = least or 0.0, most, 0

    def update(self, *, overflow: bool) -> bool:
        """Adapt to a step; whether it has to be skipped."""
        if self.is_fixed:
            return False
        self.unskipped = 0 if overflow else self.unskipped + 1
        if overflow:
            self.factor = max(self.least, self.factor / 2)
        elif self.unskipped == _WINDOW:
            self.factor, self.unskipped = min(self.most, self.factor * 2), 0
        return overflow


def initialize(
    models: Any, optimizers: Any = None, enabled: bool = True, opt_level: str = "O1", *,
    loss_scale: float | str | None = None, num_losses: int = 1, verbosity: int = 1,
    min_loss_scale: float | None = None, max_loss_scale: float = 2.0**24, **others: Any,
) -> Any:  # fmt: skip
    """Prepare the models for mixed precision; they and the optimizers are given back."""
    if enabled and (
        opt_level not in ("O0", "O1") or any(one is not None for one in others.values())
    ):
        raise NotImplementedError(
            f"{opt_level} {others or ''}: torch.amp has no equal; use O1 alone"
        )
    _scales.clear()
    if enabled and opt_level == "O1":
        for model in _several(models):
            model.register_forward_pre_hook(_enter)
            model.register_forward_hook(_leave, always_call=True)
        given = (loss_scale, min_loss_scale, max_loss_scale)
        _scales.extend(_Scale(*given) for _ in range(num_losses))
    return models if optimizers is None else (models, optimizers)


@contextmanager
def scale_loss(
    loss: Any, optimizers: Any, loss_id: int = 0, model: Any = None, delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[Any]:  # fmt: skip
    """Give the scaled loss for its backward; after it gradients are unscaled, and a step that overflowed is skipped."""
    if not _scales:
        yield loss
        return
    scale, group = _scales[loss_id], _several(optimizers)
    fresh = () if delay_unscale else [one for one in group if one not in _scaled]
    before = {weight: weight.grad for one in fresh for weight in master_params(one)}
    for weight in before:
        weight.grad = None
    yield loss.float() * scale.factor
    if delay_unscale:
        _scaled.update(group)
        return
    finite = [_unscale(weight, scale, before) for one in group for weight in master_params(one)]
    _scaled.difference_update(group)
    if not delay_overflow_check and scale.update(overflow=not all(finite)):
        for one in group:
            _skip_once(one)


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    """The parameters that an optimizer updates."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict(destination: dict[str, Any] | None = None) -> dict[str, Any]:
    """The factors, as apex names them."""
    found = {} if destination is None else destination
    for number, scale in enumerate(_scales):
        found[f"loss_scaler{number}"] = {"loss_scale": scale.factor, "unskipped": scale.unskipped}
    return found


def load_state_dict(state: dict[str, Any]) -> None:
    """Go on with the factors of a checkpoint of apex's or of this module."""
    for scale, kept in zip(_scales, state.values(), strict=False):
        scale.factor, scale.unskipped = kept["loss_scale"], kept["unskipped"]


def _several(one: Any) -> list[Any]:
    return list(one) if isinstance(one, list | tuple) else [one]


def _enter(model: Any, given: Any) -> None:
    context = torch.amp.autocast(
        getattr(torch.accelerator.current_accelerator(), "type", "cuda"),
        dtype=torch.float16,
        enabled=torch.accelerator.is_available(),
    )
    context.__enter__()
    _open.contexts = [*getattr(_open, "contexts", ()), context]


def _leave(model: Any, given: Any, result: Any) -> Any:
    _open.contexts.pop().__exit__(None, None, None)
    return _in_float32(result)


def _in_float32(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.float() if result.dtype == torch.float16 else result
    if isinstance(result, dict):
        for name, one in result.items():
            result[name] = _in_float32(one)
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*map(_in_float32, result))
    elif isinstance(result, list | tuple):
        return type(result)(map(_in_float32, result))
    return result


def _unscale(weight: Any, scale: _Scale, before: dict[Any, Any]) -> bool:
    """Unscale the gradient and add what there was before; whether it is finite."""
    kept = before.get(weight)
    if weight.grad is None:
        weight.grad = kept
        return True
    with torch.no_grad():
        weight.grad.mul_(1 / scale.factor)
        values = weight.grad.coalesce().values() if weight.grad.is_sparse else weight.grad
        finite = bool(values.isfinite().all())
        if kept is not None:
            weight.grad = kept.add_(weight.grad)
    return finite


def _skip_once(optimizer: Any) -> None:
    if getattr(optimizer.step, "skips", False):
        return
    step = optimizer.step

    def skip(*_: Any, **__: Any) -> None:
        optimizer.step = step

    skip.skips = True  # type: ignore[attr-defined]
    optimizer.step = skip
