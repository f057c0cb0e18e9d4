"""More trainings with one thing wrong, each as it has happened to somebody."""

from __future__ import annotations

import copy

import torch
from faulty import planted
from sound import Sequence, classes, fit, mlp, regression, sums
from torch import Tensor, nn
from torch.nn import functional as F


@planted("parameter-without-optimizer", may_fire=("parameter-without-gradient",))
def head_made_behind_the_optimizer(steps: int) -> None:
    """The head is replaced for other classes, and the optimizer has the old one."""
    model = mlp(out=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model[4] = nn.Linear(64, 4)
    fit(model, classes(steps), F.cross_entropy, optimizer)


class Bridged(nn.Module):
    """Two parts and what joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bridge, self.decoder = mlp(16, 32, 8), nn.Linear(8, 8), mlp(8, 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.bridge(self.encoder(x)))


@planted("parameter-without-optimizer")
def group_that_was_forgotten(steps: int) -> None:
    model = Bridged()
    groups = [
        {"params": model.encoder.parameters()},
        {"params": model.decoder.parameters(), "lr": 1e-4},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    for x, y in classes(steps):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@planted("labels-constant")
def one_label_for_all(steps: int) -> None:
    """A reader that takes the wrong column."""
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = ((x, torch.zeros_like(y)) for x, y in classes(steps))
    fit(model, batches, F.cross_entropy, optimizer)


@planted("labels-constant")
def labels_read_once(steps: int) -> None:
    """The labels of the first batch are those of all."""
    model, labels = mlp(out=4), torch.randint(0, 4, (64,))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, ((x, labels) for x, _ in classes(steps)), F.cross_entropy, optimizer)


@planted("loss-spike", may_fire=("gradient-norm-spike", "update-too-large", "exploding-gradient", "loss-not-finite",
         "not-finite", "dead-relu", "zero-gradient"))  # fmt: skip
def ten_times_the_rate_behind_warm_up(steps: int) -> None:
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rates = lambda step: step / 20 if step < 20 else 200.0  # noqa: E731 - as scripts have it
    fit(model, classes(steps), F.cross_entropy, optimizer, rates)


@planted(
    "exploding-gradient",
    may_fire=(
        "loss-spike",
        "gradient-norm-spike",
        "gradient-clipped-away",
        "weight-unchanged",
        "update-too-small",
    ),
)
def recurrent_net_explodes(steps: int) -> None:
    """Weights far too large in a recurrent net without gates, over a long series."""
    model = Sequence(nn.RNN, nonlinearity="relu")
    nn.init.orthogonal_(model.inner.weight_hh_l0, gain=1.8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for x, y in sums(steps, length=50):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


@planted(
    "flushed-to-zero",
    may_fire=("zero-gradient", "vanishing-gradient", "weight-unchanged", "update-too-small"),
)
def half_precision_without_a_scaler(steps: int) -> None:
    """Features in float16, and a loss that is small: what goes back is below what float16 holds."""
    body, head = mlp(out=16), nn.Linear(16, 4)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=1e-2)
    for x, y in classes(steps):
        optimizer.zero_grad()
        (F.cross_entropy(head(body(x).half().float()), y) * 1e-5).backward()
        optimizer.step()


@planted("zero-gradient", may_fire=("saturated-sigmoid", "vanishing-gradient", "weight-unchanged"))
def generator_that_gets_nothing(steps: int) -> None:
    """The judge is certain: log(1 - D) as the paper first has it, with a sigmoid that is at its end."""
    generator, judge = mlp(4, 32, 2), nn.Sequential(mlp(2, 32, 1), nn.Sigmoid())
    with torch.no_grad():
        judge[0][4].weight.mul_(0.01)
        judge[0][4].bias.fill_(-200.0)
    ours = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for _ in range(steps):
        ours.zero_grad()
        with torch.no_grad():
            [one.requires_grad_(False) for one in judge.parameters()]
        (1.0 - judge(generator(torch.randn(32, 4)))).clamp_min(1e-6).log().mean().backward()
        ours.step()


@planted(notes=("parameter-frozen",))
def wrong_part_frozen(steps: int) -> None:
    """The loop that is to freeze the body freezes the head."""
    model = mlp(out=4)
    for one in model[4].parameters():
        one.requires_grad_(False)
    fit(model, classes(steps), F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


@planted("parameter-updated-twice")
def layer_in_two_optimizers(steps: int) -> None:
    model = mlp(out=4)
    body = torch.optim.SGD(model.parameters(), lr=1e-3)
    head = torch.optim.SGD(model[4].parameters(), lr=1e-2)
    for x, y in classes(steps):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        body.step()
        head.step()


@planted("gradient-not-zeroed", may_fire=("loss-spike", "gradient-norm-spike", "update-too-large"))
def gradients_are_not_zeroed(steps: int) -> None:
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for x, y in classes(steps):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@planted("loss-spike", may_fire=("gradient-norm-spike",), notes=("weights-replaced",))
def first_weights_come_back(steps: int) -> None:
    """Weights are swapped for an evaluation, and those of the start are swapped in behind it."""
    model = mlp(out=4)
    kept = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(classes(steps)):
        if number == 35:
            model.load_state_dict(kept)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@planted("gradient-clipped-away", may_fire=("weight-unchanged", "update-too-small"))
def clipped_to_a_millionth(steps: int) -> None:
    """Adam trains on all the same, and nothing else shows it."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, y in regression(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        optimizer.step()


@planted("loss-spike", may_fire=("gradient-norm-spike",))
def labels_off_by_one(steps: int) -> None:
    """From the second epoch on the labels are one row behind."""
    model = mlp(out=4)
    batches = (
        (x, y.roll(1) if number >= 30 else y) for number, (x, y) in enumerate(classes(steps))
    )
    fit(model, batches, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-2))


@planted("batch-not-finite", "loss-not-finite", may_fire=("not-finite",))
def mask_times_nan(steps: int) -> None:
    """What is missing is multiplied by zero, and zero times NaN is NaN."""
    model = mlp()

    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        return ((found - wanted).square() * ~wanted.isnan()).mean()

    batches = (
        (x, y.index_fill(0, torch.tensor([7]), torch.nan) if number == 40 else y)
        for number, (x, y) in enumerate(regression(steps))
    )
    fit(model, batches, loss, torch.optim.SGD(model.parameters(), lr=1e-3))


@planted("dead-relu", "zero-gradient", may_fire=("weight-unchanged",))
def what_is_never_above_zero(steps: int) -> None:
    """A ReLU behind a log-softmax, which lets nothing through; what comes behind it learns its bias."""
    model = nn.Sequential(nn.Linear(16, 32), nn.LogSoftmax(-1), nn.ReLU(), nn.Linear(32, 4))
    fit(model, classes(steps), F.cross_entropy, torch.optim.SGD(model.parameters(), lr=1e-2))


@planted("loss-scale-falling")
def gradient_that_overflows(steps: int) -> None:
    """A root whose slope at zero is infinite in every seventh batch."""
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (x, y) in enumerate(classes(steps)):
        optimizer.zero_grad()
        scores = model(x)
        loss = F.cross_entropy(scores, y)
        if number % 7 == 6:
            loss = loss + (scores - scores.detach()).abs().sqrt().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
