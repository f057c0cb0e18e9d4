"""Training a model in 16 bits without an edit: autocast, 16-bit weights with float32 copies, and the loss's scale.

Parameters stay in float32 in every case, so that a checkpoint holds the precise ones. Everything is a hook that gets
the module it runs for: a copy of the model, such as an average of its weights, computes with its own parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map

from lockstep.capture.recorder import Recorder

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_NORMS = (
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.LayerNorm,
    torch.nn.GroupNorm,
    torch.nn.RMSNorm,
)
"""Their parameters stay in float32, as in apex's O2."""

_F = TypeVar("_F", bound=Callable[..., Any])


def _not_compiled(hook: _F) -> _F:
    """Keep a hook out of compiled code: what it enters is left by another one."""
    return torch.compiler.disable(hook)  # type: ignore[no-any-return]


_entered: list[Any] = []
ran: set[str] = set()
"""Which of `autocast` and `weights` a forward has run with."""

_lent: list[list[tuple[torch.nn.Module, str, torch.nn.Parameter]]] = []


def use_autocast(root: torch.nn.Module, dtype: str) -> None:
    """Run the model's forward under autocast; what it returns is float32 again, as accelerate does."""
    root.register_forward_pre_hook(functools.partial(_enter_autocast, dtype))
    root.register_forward_hook(_leave_autocast, always_call=True)


@_not_compiled
def _enter_autocast(dtype: str, module: torch.nn.Module, inputs: Any) -> None:
    ran.add("autocast")
    entered = torch.autocast(_device_of(module), dtype=_DTYPES[dtype])
    entered.__enter__()
    _entered.append(entered)


@_not_compiled
def _leave_autocast(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    if _entered:
        _entered.pop().__exit__(None, None, None)
    return tree_map(_float32, outputs)


def use_low_weights(root: torch.nn.Module, dtype: str) -> None:
    """Run the model's forward with 16-bit copies of its weights; gradients arrive at the float32 ones."""
    root.register_forward_pre_hook(functools.partial(_lend, dtype), with_kwargs=True)
    root.register_forward_hook(_take_back, always_call=True)


@_not_compiled
def _lend(dtype: str, module: torch.nn.Module, inputs: Any, keywords: Any) -> tuple[Any, Any]:
    ran.add("weights")
    low = _DTYPES[dtype]
    copies: dict[int, torch.Tensor] = {}
    lent: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []
    for one in module.modules():
        if isinstance(one, _NORMS):
            continue
        for name, parameter in one._parameters.items():
            if parameter is None or parameter.dtype is not torch.float32:
                continue
            if id(parameter) not in copies:  # tied weights are one copy
                copies[id(parameter)] = parameter.to(low)
            lent.append((one, name, parameter))
            one._parameters[name] = copies[id(parameter)]  # type: ignore[assignment]
    _lent.append(lent)

    def lowered(value: Any) -> Any:
        is_float32 = isinstance(value, torch.Tensor) and value.dtype is torch.float32
        return value.to(low) if is_float32 else value

    return tree_map(lowered, (inputs, keywords))  # type: ignore[no-any-return]


@_not_compiled
def _take_back(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    for one, name, parameter in _lent.pop() if _lent else ():
        one._parameters[name] = parameter
    return tree_map(_float32, outputs)


def _float32(value: Any) -> Any:
    is_low = isinstance(value, torch.Tensor) and value.dtype in _DTYPES.values()
    return value.float() if is_low else value


def _device_of(module: torch.nn.Module) -> str:
    return next((one.device.type for one in module.parameters()), "cpu")


class LossScale:
    """Scales the loss before backward and each parameter's gradient back, so that float16 holds small gradients.

    Gradients are divided where they arrive, before they are accumulated or clipped. An update of which a gradient is
    not finite is left out. A dynamic scale is then halved, and doubled after 2 000 good updates in a row: the defaults
    of `torch.amp.GradScaler`. Both are kept in the optimizer's `state_dict`.

    Parameters
    ----------
    wanted
        "dynamic", or a static scale, a power of two: dividing by it rounds nothing.
    recorder
        Is told of the scale, and of updates that are left out, as of those of a script's own scaler.
    """

    KEY = "lockstep_loss_scale"
    """In the `state_dict` of each optimizer."""

    _FIRST, _INTERVAL = 65536.0, 2000

    def __init__(self, wanted: str | int, recorder: Recorder) -> None:
        self._recorder = recorder
        self._dynamic = wanted == "dynamic"
        self.scale = self._FIRST if self._dynamic else float(wanted)
        self.good = 0
        self._of_the_script = False

    def keep_in(self, optimizer: Optimizer) -> None:
        """Write scale and count into the optimizer's checkpoints, and read them back."""

        def add(_: Optimizer, values: dict[str, Any]) -> None:
            if not self._of_the_script:
                values[self.KEY] = {"scale": self.scale, "good": self.good}

        def take(_: Optimizer, values: dict[str, Any]) -> dict[str, Any]:
            kept = values.get(self.KEY)
            if kept is None:
                return values
            self.scale, self.good = kept["scale"], kept["good"]
            return {name: one for name, one in values.items() if name != self.KEY}

        optimizer.register_state_dict_post_hook(add)
        optimizer.register_load_state_dict_pre_hook(take)

    def leave_to_the_script(self) -> None:
        """The script has a scaler of its own, which does all of it."""
        self._of_the_script = True

    def begin(self, roots: Iterable[torch.nn.Module]) -> None:
        """Scale from now on what these modules are trained by."""
        if self._of_the_script:
            return
        trained = {id(one): one for root in roots for one in root.parameters() if one.requires_grad}
        for parameter in trained.values():
            parameter.register_hook(self._unscaled)
        setattr(torch.Tensor, "backward", self._scaled(torch.Tensor.backward))  # noqa: B010
        register_optimizer_step_pre_hook(self._before_update)

    def _unscaled(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self.scale

    def _scaled(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def backward(loss: torch.Tensor, gradient: Any = None, *rest: Any, **keywords: Any) -> None:
            start = torch.ones_like(loss) if gradient is None and loss.numel() == 1 else gradient
            self._recorder.loss_scaled(self.scale)
            return original(loss, start * self.scale, *rest, **keywords)

        return backward

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        """Leave an update out by taking its gradients away, and move a dynamic scale."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        gradients = [one.grad for one in parameters if one.grad is not None]
        if _all_finite(gradients):
            self.good += 1
        else:
            self.good = 0
            self._recorder.update_skipped()
            for one in parameters:
                one.grad = None
        if self._dynamic and not self.good:
            self.scale /= 2.0
        elif self._dynamic and self.good % self._INTERVAL == 0:
            self.scale *= 2.0


def _all_finite(gradients: Sequence[torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(one).all()) for one in gradients)
