"""Faults that begin late, each with words of which one must stand in the answer's first lines; sound trainings."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.late.training import STEPS, Training

Fault = tuple[Callable[[int], Training], tuple[str, ...]]


def _sets(name: str, value: float) -> Callable[[Training], object]:
    return lambda training: training.optimizer.param_groups[0].update({name: value})


def _freezes(training: Training) -> None:
    training.net.requires_grad_(False)


def _stops_schedule(training: Training) -> None:
    training.schedule = None


def _forgets_state(training: Training) -> None:
    training.optimizer.state.clear()


def _other_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=10_000)


def _growing_scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=50, growth_factor=1.5)


def _grows(training: Training) -> None:
    training.scaler.set_growth_interval(5)
    training.scaler._growth_tracker.zero_()


def _scales_gradients(training: Training) -> None:
    for one in training.model.parameters():
        if one.grad is not None:
            one.grad.mul_(1.01)


def _drops_more(training: Training) -> None:
    training.drop.p = 0.3


def _mean_keeps_more(training: Training) -> None:
    training.keeps = 0.99


def _is_now(name: str, value: object) -> Callable[[Training], object]:
    return lambda training: setattr(training, name, value)


def _unfreezes(training: Training) -> None:
    training.net[1].requires_grad_(True)


def _grows_faster(training: Training) -> None:
    training.scaler.set_growth_factor(4.0)


def _wrong_if_large(hidden: torch.Tensor) -> torch.Tensor:
    return hidden * 1.003 if len(hidden) > 16 else hidden


def _draws_once(training: Training) -> None:
    torch.rand(1)


def _large_values(hidden: torch.Tensor) -> torch.Tensor:
    return torch.where(hidden > 1.5, hidden * 1.02, hidden)


FAULTS: dict[str, Fault] = {
    "weight decay": (
        lambda late: Training(late, _sets("weight_decay", 0.3)),
        ("weight_decay",),
    ),
    "rate": (lambda late: Training(late, _sets("lr", 1e-2)), ("lr ",)),
    "betas": (lambda late: Training(late, _sets("betas", (0.8, 0.999))), ("betas",)),  # type: ignore[arg-type]
    "schedule": (lambda late: Training(late, _stops_schedule), ("lr ",)),
    "freeze": (lambda late: Training(late, _freezes), ("trained parameters is",)),
    "resume": (lambda late: Training(late, _forgets_state), ("the state of",)),
    "loss scale": (
        lambda late: Training(late, _grows, scaler=_other_scaler()),
        ("growth_interval", "loss scale"),
    ),
    "epoch": (lambda late: Training(epoch=lambda n: min(n, late // 16 - 1)), ("batch",)),
    "draw": (lambda late: Training(late, _draws_once), ("random generator",)),
    "dropout": (lambda late: Training(late, _drops_more), ("dropout",)),
    "operator": (
        lambda late: Training(late, forward=lambda hidden: hidden * 1.003),
        ("mul", "forward"),
    ),
    "large values": (lambda late: Training(late, forward=_large_values), ("where", "forward")),
    "data": (lambda late: Training(late, batch=lambda x: x * 1.01), ("mul", "data", "forward")),
    "gradients": (
        lambda late: Training(late, update=_scales_gradients),
        ("mul", "optimizer", "gradient", "backward"),
    ),
    "mean": (lambda late: Training(late, _mean_keeps_more), ("mean",)),
    "mean stops": (lambda late: Training(late, _is_now("keeps", 1.0)), ("mean",)),
    "unfreeze": (
        lambda late: Training(late, _unfreezes, freezes_norm=True),
        ("trained parameters is", "0.1"),
    ),
    "loss scale factor": (
        lambda late: Training(late, _grows_faster, scaler=_growing_scaler()),
        ("growth_factor", "loss scale"),
    ),
    "larger shape": (
        lambda late: Training(late, forward=_wrong_if_large, doubles_from=late),
        ("mul", "forward"),
    ),
    "eps": (lambda late: Training(late, _sets("eps", 1e-4)), ("eps",)),
    "smoothing": (
        lambda late: Training(late, _is_now("smoothing", 0.1)),
        ("label_smoothing", "cross_entropy"),
    ),
    "clipping": (
        lambda late: Training(late, _is_now("clips", False), clips=True),
        ("clip",),
    ),
    "precision": (
        lambda late: Training(late, _is_now("low_precision", True)),
        ("bfloat16", "bf16", "autocast"),
    ),
    "not zeroed": (
        lambda late: Training(late, _is_now("zeroes", False)),
        ("zero", "gradient", "accumulate"),
    ),
}

SOUND: dict[str, Callable[[], Training]] = {
    "AdamW": Training,
    "SGD": lambda: Training(optimizer_class=lambda given, lr: torch.optim.SGD(given, 10 * lr, 0.9)),
    "scaler": lambda: Training(scaler=_other_scaler()),
    "another seed": lambda: Training(seed=7),
    "wide": lambda: Training(width=128),
    "high rate": lambda: Training(
        optimizer_class=lambda given, lr: torch.optim.Adam(given, 10 * lr)
    ),
    "Nesterov": lambda: Training(
        optimizer_class=lambda given, lr: torch.optim.SGD(given, 10 * lr, 0.9, nesterov=True)
    ),
    "RMSprop": lambda: Training(optimizer_class=torch.optim.RMSprop),
    "NAdam": lambda: Training(optimizer_class=torch.optim.NAdam),
    "clipped": lambda: Training(clips=True),
    "smoothed": lambda: Training(smoothing=0.1),
    "frozen norm": lambda: Training(freezes_norm=True),
    "low precision": lambda: Training(low_precision=True),
    "idle optimizer": lambda: Training(has_idle_optimizer=True),
    "larger batches": lambda: Training(doubles_from=STEPS // 2),
    "loss scale that grows": lambda: Training(scaler=_growing_scaler()),
}


def partner_of(name: str, late: int) -> Training:
    """Return the sound training that a fault is compared with."""
    partners: dict[str, Callable[[], Training]] = {
        "loss scale": lambda: Training(scaler=_other_scaler()),
        "loss scale factor": lambda: Training(scaler=_growing_scaler()),
        "unfreeze": lambda: Training(freezes_norm=True),
        "larger shape": lambda: Training(doubles_from=late),
        "clipping": lambda: Training(clips=True),
    }
    return partners.get(name, Training)()
