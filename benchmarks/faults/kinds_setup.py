"""Faults around the passes: optimizer, parameters, batch, random seed, gradients on their way, several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from kinds import Amount, FaultKind, Planted, Target, middle, register
from kinds_code import drops
from sites import OperatorCall, Place
from torch import Tensor, nn
from training import Training

_NOWHERE = [Target(Place("", "", 0))]


def _parameters(training: Training) -> list[Target]:
    """Every parameter of some size, with the module that owns it."""
    return [
        Target(Place(name.rpartition(".")[0], "", 0), parameter=name)
        for name, parameter in training.model.named_parameters()
        if parameter.numel() > 8
    ]


def _parameter(training: Training, planted: Planted) -> nn.Parameter:
    return training.model.get_parameter(planted.target.parameter)


# ------------------------------------------------------------------------------------- optimizer

Change = Callable[[dict[str, Any], float], None]


def _setting(name: str, change: Change, needs: Callable[[Training], bool], amount: Amount) -> None:
    def plant(training: Training, planted: Planted) -> None:
        change(training.settings, planted.amount)

    register(
        FaultKind(
            name, "optimizer", ("optimizer",), plant, amount=amount, any_module=True,
            targets=lambda training: _NOWHERE if needs(training) else [],
        )
    )  # fmt: skip


def _is_adaptive(training: Training) -> bool:
    return training.optimizer is not torch.optim.SGD


def _change_rate(settings: dict[str, Any], amount: float) -> None:
    settings["lr"] *= 1 + amount


def _change_epsilon(settings: dict[str, Any], amount: float) -> None:
    settings["eps"] = 1e-8 * amount


def _change_memory(settings: dict[str, Any], amount: float) -> None:
    if "momentum" in settings:
        settings["momentum"] *= 1 - amount
    else:
        settings["betas"] = (0.9 * (1 - amount), 0.999)


def _change_decay(settings: dict[str, Any], amount: float) -> None:
    settings["weight_decay"] = settings.get("weight_decay", 0.01) * (1 + amount)


_setting("learning-rate", _change_rate, lambda training: True, Amount(0.005, 0.1))
_setting("optimizer-epsilon", _change_epsilon, _is_adaptive, Amount(20, 200))
_setting("optimizer-momentum", _change_memory, lambda training: True, Amount(0.01, 0.1))
_setting(
    "weight-decay", _change_decay, lambda training: "momentum" not in training.settings
    or "weight_decay" in training.settings, Amount(0.2, 1.0),
)  # fmt: skip


def _per_parameter(
    name: str,
    group: str,
    phases: tuple[str, ...],
    plant: Callable[[Training, Planted], None],
    amount: Amount,
    *,
    late: bool = False,
) -> None:
    register(
        FaultKind(
            name, group, phases, plant, targets=_parameters, amount=amount, may_start_late=late
        )
    )


def _wrong_step(training: Training, planted: Planted) -> None:
    """The optimizer takes a step of another length in one parameter."""
    wanted = _parameter(training, planted)

    class Wrong(training.optimizer):  # type: ignore[name-defined,misc]
        count = 0

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            before = wanted.clone()
            result = super().step(closure)
            if Wrong.count >= planted.from_step:
                wanted.copy_(before + (wanted - before) * (1 + planted.amount))
            Wrong.count += 1
            return result

    Wrong.__name__, Wrong.__qualname__ = (
        training.optimizer.__name__,
        training.optimizer.__qualname__,
    )
    Wrong.__module__ = training.optimizer.__module__
    training.optimizer = Wrong


def _frozen(training: Training, planted: Planted) -> None:
    """One parameter was never given to the optimizer."""
    wanted = _parameter(training, planted)
    training.trainable = lambda model: [item for item in model.parameters() if item is not wanted]


_OPTIMIZER = ("optimizer",)
_per_parameter(
    "one-parameter-step", "optimizer", _OPTIMIZER, _wrong_step, Amount(0.02, 0.2), late=True
)
_per_parameter("parameter-not-trained", "optimizer", _OPTIMIZER, _frozen, Amount(0, 0))


def _wrong_clip(training: Training, planted: Planted) -> None:
    assert training.clip_norm is not None
    training.clip_norm *= 1 + planted.amount


register(
    FaultKind(
        "clip-norm", "optimizer", ("backward", "optimizer"), _wrong_clip, amount=Amount(0.02, 0.2),
        any_module=True,
        targets=lambda training: _NOWHERE if training.clip_norm is not None else [],
    )
)  # fmt: skip


# ------------------------------------------------------------------------------ parameters, buffers


def _scaled_start(training: Training, planted: Planted) -> None:
    with torch.no_grad():
        _parameter(training, planted).mul_(1 + planted.amount)


def _redrawn_start(training: Training, planted: Planted) -> None:
    parameter = _parameter(training, planted)
    generator = torch.Generator().manual_seed(int(planted.amount))
    drawn = torch.randn(parameter.shape, generator=generator).to(parameter.device)
    with torch.no_grad():
        parameter.copy_(drawn * parameter.std() + parameter.mean())


def _half_start(training: Training, planted: Planted) -> None:
    parameter = _parameter(training, planted)
    with torch.no_grad():
        parameter.copy_(parameter.half())


_INIT = ("init",)
_per_parameter("init-scaled", "init", _INIT, _scaled_start, Amount(2e-4, 2e-3))
_per_parameter("init-redrawn", "init", _INIT, _redrawn_start, Amount(1, 1000))
_per_parameter("init-fp16", "init", _INIT, _half_start, Amount(0, 0))


def _buffers(training: Training) -> list[Target]:
    """Constants that go into what is computed; running statistics do so in evaluation only."""
    return [
        Target(Place(name.rpartition(".")[0], "", 0), parameter=name)
        for name, buffer in training.model.named_buffers()
        if buffer.is_floating_point() and buffer.numel() > 1 and "running" not in name
    ]


def _wrong_buffer(training: Training, planted: Planted) -> None:
    training.model.get_buffer(planted.target.parameter).mul_(1 + planted.amount)


register(
    FaultKind(
        "constant-buffer", "buffer", ("init", "data", "forward"), _wrong_buffer, targets=_buffers,
        amount=Amount(1e-3, 1e-2),
    )
)  # fmt: skip


def _hooked_parameter(training: Training, planted: Planted) -> None:
    parameter = _parameter(training, planted)
    parameter.register_hook(lambda gradient: gradient * (1 + planted.amount))


_per_parameter(
    "parameter-gradient-hook", "backward", ("backward",), _hooked_parameter, Amount(0.01, 0.05)
)


# ----------------------------------------------------------------------------------------- batch


def _data(
    name: str, change: Callable[[Tensor, float], Tensor], needs: Callable[[str, Tensor], bool],
    amount: Amount,
) -> None:  # fmt: skip
    """Register a fault of the first tensor in the batch that `needs` accepts."""

    def fitting(training: Training) -> str | None:
        items = training.batches[0].items()
        return next((key for key, tensor in items if needs(key, tensor)), None)

    def plant(training: Training, planted: Planted) -> None:
        key = fitting(training)
        assert key is not None
        for batch in training.batches[planted.from_step :]:
            batch[key] = change(batch[key].clone(), planted.amount)

    register(
        FaultKind(
            name, "data", ("data",), plant, amount=amount, may_start_late=True,
            targets=lambda training: _NOWHERE if fitting(training) else [],
        )
    )  # fmt: skip


def _shuffled(tensor: Tensor, amount: float) -> Tensor:
    return tensor.roll(1, dims=0)


def _normalised(tensor: Tensor, amount: float) -> Tensor:
    return (tensor - amount) / (1 + amount)


def _one_changed(tensor: Tensor, amount: float) -> Tensor:
    element = middle(tensor)
    if tensor.is_floating_point():
        element.add_(amount)
    else:
        element.copy_((element + 1) % (int(tensor.max()) + 1))
    return tensor


def _other_labels(tensor: Tensor, amount: float) -> Tensor:
    return tensor.roll(1, dims=-1)


def _is_input(key: str, tensor: Tensor) -> bool:
    return key != "labels"


_data("batch-shuffled", _shuffled, _is_input, Amount(0, 0))
_data(
    "batch-normalised",
    _normalised,
    lambda key, tensor: tensor.is_floating_point(),
    Amount(0.002, 0.02),
)
_data("batch-one-element", _one_changed, _is_input, Amount(0.05, 0.5))
_data("labels-shifted", _other_labels, lambda key, tensor: key == "labels", Amount(0, 0))


# ------------------------------------------------------------------------------------ randomness


def _other_seed(training: Training, planted: Planted) -> None:
    training.run_seed += 1


def _drawing(call: OperatorCall) -> Target | None:
    return Target(call.place) if drops(call) else None


register(
    FaultKind(
        "random-seed", "random", ("forward",), _other_seed, fit=_drawing, random=True,
        any_module=True,
    )
)  # fmt: skip


# -------------------------------------------------------------------------------- several ranks


def _unreduced(training: Training, planted: Planted) -> None:
    """Gradients stay as each rank has them."""

    @contextmanager
    def no_sync() -> Iterator[None]:
        with training.model.no_sync():  # type: ignore[operator,union-attr]
            yield

    training.around_step.append(no_sync)


def _summed(training: Training, planted: Planted) -> None:
    """Gradients are added over the ranks, not averaged."""

    def add_up(state, bucket):  # type: ignore[no-untyped-def] # torch reads annotations, as objects
        reduced = torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return reduced.then(lambda future: future.value()[0])

    training.model.register_comm_hook(None, add_up)  # type: ignore[operator,union-attr]


for _name, _plant in (("all-reduce-missing", _unreduced), ("all-reduce-summed", _summed)):
    register(
        FaultKind(
            _name, "ranks", ("backward", "optimizer"), _plant, any_module=True, ranks=2,
            targets=lambda training: _NOWHERE,
        )
    )  # fmt: skip
