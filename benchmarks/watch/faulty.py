"""Trainings with one thing wrong, and the rules that fire on each: the trainings of `benchmarks/watch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import sound
import torch
from sound import Training, classes, fit, mlp, regression, two_ranks
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Planted:
    """A training with one thing wrong.

    `fires` are the rules that have to fire, `may_fire` those that may beside them: what follows from the first. `notes`
    are the rules that have to give a note.
    """

    train: Training
    fires: frozenset[str]
    may_fire: frozenset[str]
    notes: frozenset[str]


PLANTED: dict[str, Planted] = {}


def planted(
    *fires: str, may_fire: tuple[str, ...] = (), notes: tuple[str, ...] = ()
) -> Callable[[Training], Training]:
    """List a training."""

    def listed(training: Training) -> Training:
        PLANTED[training.__name__] = Planted(training, *map(frozenset, (fires, may_fire, notes)))
        return training

    return listed


@planted("loss-scale-falling")
def fp16_scale_falls(steps: int) -> None:
    """Now and then a gradient overflows whatever the factor is."""
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    for number, (x, y) in enumerate(classes(steps)):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        if number % 4 == 3:
            model[0].weight.grad.mul_(1e38).mul_(1e10)
        scaler.step(optimizer)
        scaler.update()


@planted("loss-scale-falling", "not-finite", may_fire=("exploding-gradient", "low-headroom"))
def fp16_overflows_in_forward(steps: int) -> None:
    """Scores that no factor helps: every step is skipped."""
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in classes(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x) * 60000.0, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@planted(
    "exploding-gradient",
    may_fire=("loss-spike", "gradient-norm-spike", "gradient-clipped-away"),
)
def exploding_rnn(steps: int) -> None:
    """A recurrent net over long series, whose weights are above 1; clipping keeps it alive."""
    model = sound.Sequence(nn.RNN, nonlinearity="relu")
    nn.init.orthogonal_(model.inner.weight_hh_l0, gain=2.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x, y in sound.sums(steps, length=40):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@planted("dead-relu", "zero-gradient")
def dead_relus(steps: int) -> None:
    model = mlp()
    nn.init.constant_(model[0].bias, -100.0)
    fit(model, regression(steps), F.mse_loss, torch.optim.SGD(model.parameters(), lr=1e-2))


@planted("parameter-without-gradient")
def detached_layer(steps: int) -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = mlp(out=16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).detach())

    model = Detached()
    fit(model, classes(steps), F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


def with_batch(
    steps: int, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], *, at: int = 40
) -> Iterator[tuple[Tensor, Tensor]]:
    """One batch is another than it should be."""
    for number, (x, y) in enumerate(regression(steps)):
        yield change(x, y) if number == at else (x, y)


@planted("loss-spike", "gradient-norm-spike")
def outlier_in_a_batch(steps: int) -> None:
    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, y.index_fill(0, torch.tensor([5]), 1000.0)

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    fit(model, with_batch(steps, change), F.mse_loss, optimizer)


@planted("loss-spike", "gradient-norm-spike", may_fire=("exploding-gradient",))
def batch_of_another_scale(steps: int) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = with_batch(steps, lambda x, y: (x * 255.0, y))
    for x, y in batches:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@planted("loss-spike", may_fire=("gradient-norm-spike",))
def shuffled_labels(steps: int) -> None:
    model = mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches = (
        (x, y.roll(1) if number == 40 else y) for number, (x, y) in enumerate(classes(steps))
    )
    fit(model, batches, F.cross_entropy, optimizer)


@planted("batch-not-finite", "loss-not-finite", may_fire=("not-finite",))
def nan_in_the_batch(steps: int) -> None:
    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.index_fill(0, torch.tensor([3]), torch.nan), y

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    fit(model, with_batch(steps, change), F.mse_loss, optimizer)


@planted("batch-constant")
def constant_inputs(steps: int) -> None:
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = ((torch.full_like(x, 0.5), y) for x, y in classes(steps))
    fit(model, batches, F.cross_entropy, optimizer)


@planted("batch-repeated")
def stuck_loader(steps: int) -> None:
    model = mlp()
    batches = list(regression(20))
    batches += [batches[-1]] * (steps - 20)
    fit(model, batches, F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-3))


@planted("learning-rate-zero")
def rate_of_zero(steps: int) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, regression(steps), F.mse_loss, optimizer, lambda step: max(0, 20 - step) // 20)


@planted("weight-unchanged", may_fire=("parameter-without-optimizer",))
def swallowed_by_bf16(steps: int) -> None:
    model = mlp().bfloat16()
    for one in model.parameters():
        nn.init.constant_(one, 0.0) if one.ndim == 1 else nn.init.uniform_(one, 0.1, 0.2)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.ndim > 1], lr=1e-7)
    batches = ((x.bfloat16(), y.bfloat16()) for x, y in regression(steps))
    fit(model, batches, F.mse_loss, optimizer)


@planted("saturated-sigmoid", may_fire=("vanishing-gradient", "zero-gradient"))
def saturated_sigmoids(steps: int) -> None:
    """Inputs that nobody has normalised."""
    model = mlp(act=nn.Sigmoid)
    batches = ((x * 3000.0, y) for x, y in regression(steps))
    fit(model, batches, F.mse_loss, torch.optim.SGD(model.parameters(), lr=1e-2))


@planted("saturated-tanh", may_fire=("vanishing-gradient", "zero-gradient"))
def saturated_tanhs(steps: int) -> None:
    model = mlp(act=nn.Tanh)
    batches = ((x * 3000.0, y) for x, y in regression(steps))
    fit(model, batches, F.mse_loss, torch.optim.SGD(model.parameters(), lr=1e-3))


@planted("constant-weights")
def weights_of_one_number(steps: int) -> None:
    model = mlp()
    nn.init.constant_(model[0].weight, 0.1)
    fit(model, regression(steps), F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-3))


@planted("update-too-small")
def rate_far_too_small(steps: int) -> None:
    model = mlp()
    fit(model, regression(steps), F.mse_loss, torch.optim.Adam(model.parameters(), lr=5e-6))


@planted("update-too-large", may_fire=("loss-spike", "gradient-norm-spike", "saturated-tanh"))
def rate_far_too_large(steps: int) -> None:
    """Each step throws the weights to and fro."""
    model = mlp(out=4, act=nn.Tanh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2.0, weight_decay=0.4)
    batches = ((x + 0.1 * torch.randn_like(x), y.flip(0)) for x, y in classes(steps))
    fit(model, batches, F.cross_entropy, optimizer)


@planted("replicas-differ")
def drifting_replica(steps: int) -> None:
    """From step 30 on one rank's optimizer takes another rate."""
    with two_ranks() as rank:
        model = nn.parallel.DistributedDataParallel(mlp(out=4))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + rank * (step >= 30))
        for number, (x, y) in enumerate(classes(2 * steps)):
            if number % 2 == rank:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                rates.step()


@planted("low-headroom")
def scores_near_overflow(steps: int) -> None:
    model = mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in classes(steps):
        optimizer.zero_grad()
        scores = model(x).half()
        scores = scores / scores.detach().abs().amax() * 250.0
        loss = F.cross_entropy((scores * 200.0).float() / 50000.0, y)
        loss.backward()
        optimizer.step()


@planted("flushed-to-zero", may_fire=("vanishing-gradient", "zero-gradient"))
def gradients_without_a_scale(steps: int) -> None:
    """A loss that is divided until its gradient is below what float16 holds."""
    model = mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in classes(steps):
        optimizer.zero_grad()
        (F.cross_entropy(model(x).half().float(), y) * 1e-6).backward()
        optimizer.step()


@planted("saturated-dtype")
def clamped_overflow(steps: int) -> None:
    """As hardware computes that saturates: what overflows float16 stops at its largest number."""
    model = mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in classes(steps):
        optimizer.zero_grad()
        narrow = (model(x) * 1e4).to(torch.float8_e4m3fn).float()
        F.cross_entropy(model(x) + 0.0 * narrow, y).backward()
        optimizer.step()
