"""More sound trainings that no rule may fire on: what people do on purpose and what looks like a fault to a rule."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from sound import classes, fit, mlp, regression, sound
from torch import Tensor, nn
from torch.nn import functional as F


@sound
def critic_with_penalty(steps: int) -> None:
    """WGAN-GP: the gradient of the critic's last bias is 1 - 1, in every step."""
    generator, critic = mlp(4, 32, 2), mlp(2, 32, 1, nn.Tanh)
    ours = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    theirs = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for _ in range(steps):
        real, made = torch.randn(32, 2) + 2.0, generator(torch.randn(32, 4))
        between = torch.lerp(real, made.detach(), torch.rand(32, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        theirs.zero_grad()
        apart = critic(made.detach()).mean() - critic(real).mean()
        (apart + 10.0 * (slope.norm(dim=1) - 1.0).square().mean()).backward()
        theirs.step()
        ours.zero_grad()
        (-critic(made).mean()).backward()
        ours.step()


@sound
def critic_that_is_clamped(steps: int) -> None:
    """The first WGAN: something else than the optimizer changes the weights, in every step."""
    critic = mlp(2, 32, 1)
    optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        (critic(torch.randn(32, 2)).mean() - critic(torch.randn(32, 2) + 1.0).mean()).backward()
        optimizer.step()
        with torch.no_grad():
            for one in critic.parameters():
                one.clamp_(-0.05, 0.05)


@sound
def own_loss_scale(steps: int) -> None:
    """A loss scale that the script keeps itself; steps that overflow are left out, and the scale is halved."""
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scale = 2.0**24
    for number, (x, y) in enumerate(classes(steps)):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) * scale).backward()
        gradients = [one.grad for one in model.parameters()]
        if number in (1, 2, 30):
            gradients[0][0, 0] = torch.inf
        if not all(one.isfinite().all() for one in gradients):
            scale /= 2.0
            continue
        for one in gradients:
            one.div_(scale)
        optimizer.step()


@sound
def left_out_by_hand(steps: int) -> None:
    """Batches with outliers are left out by the script, behind their backward."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for number, (x, y) in enumerate(regression(steps)):
        optimizer.zero_grad()
        wanted = y * 1e4 if number % 15 == 14 else y
        F.mse_loss(model(x), wanted).backward()
        if nn.utils.clip_grad_norm_(model.parameters(), 10.0) < 1e4:
            optimizer.step()


@sound
def jumps_now_and_then(steps: int) -> None:
    """A loss that jumps every sixth step, to what it jumped to before."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = ((x, y + 12.0 * (number % 6 == 0)) for number, (x, y) in enumerate(regression(steps)))
    fit(model, batches, F.mse_loss, optimizer)


@sound
def policy_gradient(steps: int) -> None:
    """REINFORCE: returns are large now and then, and the loss has no floor."""
    policy = mlp(4, 32, 3, nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(steps):
        seen = torch.randn(64, 4)
        choice = torch.distributions.Categorical(logits=policy(seen))
        action = choice.sample()
        returns = (action == seen[:, :3].argmax(1)).float() * torch.distributions.Gamma(
            0.3, 0.3
        ).sample((64,))
        optimizer.zero_grad()
        (-(choice.log_prob(action) * (returns - returns.mean())).mean()).backward()
        optimizer.step()


@sound
def value_learning(steps: int) -> None:
    """DQN: a copy of the network is set anew every ten steps."""
    network = mlp(4, 32, 3)
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for number in range(steps):
        if number % 10 == 0:
            target.load_state_dict(network.state_dict())
        seen, then, action = torch.randn(64, 4), torch.randn(64, 4), torch.randint(0, 3, (64, 1))
        with torch.no_grad():
            wanted = seen[:, :1] + 0.9 * target(then).amax(1, keepdim=True)
        optimizer.zero_grad()
        F.smooth_l1_loss(network(seen).gather(1, action), wanted).backward()
        optimizer.step()


@sound
def harder_and_harder(steps: int) -> None:
    """A curriculum: more noise on the labels every fifteen steps, so that the loss rises."""
    model = mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for number, (x, y) in enumerate(classes(steps)):
            yield x + (number // 15) * torch.randn_like(x), y

    fit(model, batches(), F.cross_entropy, optimizer)


@sound
def warm_restarts(steps: int) -> None:
    """Cosine decay to next to zero, and back to the full rate."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rates = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10)
    for x, y in regression(steps):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        rates.step()


@sound
def sharpness_aware(steps: int) -> None:
    """SAM: the gradient of a first pass moves the weights, that of a second one trains them."""
    model = mlp(out=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for x, y in classes(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norm = nn.utils.get_total_norm([one.grad for one in model.parameters()])
        moves = [0.05 * one.grad / (norm + 1e-12) for one in model.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), moves)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            torch._foreach_sub_(list(model.parameters()), moves)
        optimizer.step()


class Experts(nn.Module):
    """Each row goes to the better one of the first two of four experts, the others are weighted by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(mlp(16, 16, 4) for _ in range(4))
        nn.init.constant_(self.router.bias, 0.0)
        with torch.no_grad():
            self.router.bias[3] = -100.0

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        best = F.one_hot(weights.argmax(-1), 4) * weights
        return sum(best[:, index, None] * one(x) for index, one in enumerate(self.experts))


@sound
def expert_that_is_not_chosen(steps: int) -> None:
    """Every expert computes, and one has never been chosen so far: its gradients are zero."""
    model = Experts()
    fit(model, classes(steps), F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


@sound
def first_of_all_is_right(steps: int) -> None:
    """MoCo: the labels are zeros, as the scores of what belongs together come first."""
    query = mlp(16, 32, 8)
    key = copy.deepcopy(query).requires_grad_(False)
    optimizer = torch.optim.SGD(query.parameters(), lr=3e-2)
    queue, labels = F.normalize(torch.randn(64, 8), dim=1), torch.zeros(32, dtype=torch.long)
    for x, _ in regression(steps, rows=32):
        ours = F.normalize(query(x + 0.1 * torch.randn_like(x)), dim=1)
        with torch.no_grad():
            other = F.normalize(key(x), dim=1)
        scores = torch.cat([(ours * other).sum(1, keepdim=True), ours @ queue.mT], 1) / 0.2
        optimizer.zero_grad()
        F.cross_entropy(scores, labels).backward()
        optimizer.step()
        queue = torch.cat([other, queue])[:64]
        with torch.no_grad():
            for one, two in zip(key.parameters(), query.parameters(), strict=True):
                one.lerp_(two, 0.01)


class Pairs(nn.Module):
    """Scores of each text beside each picture, as CLIP computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.picture = nn.Linear(16, 8), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, text: Tensor, picture: Tensor) -> Tensor:
        left, right = F.normalize(self.text(text), dim=1), F.normalize(self.picture(picture), dim=1)
        return self.scale.exp() * left @ right.mT


@sound
def each_its_own_label(steps: int) -> None:
    """CLIP: the labels are 0, 1, 2 ... in every step."""
    model, labels = Pairs(), torch.arange(32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, _ in regression(steps, rows=32):
        optimizer.zero_grad()
        scores = model(x, x + 0.3 * torch.randn_like(x))
        (F.cross_entropy(scores, labels) + F.cross_entropy(scores.mT, labels)).backward()
        optimizer.step()


@sound
def labels_of_ones_and_zeros(steps: int) -> None:
    """A GAN whose labels are made once, before the loop; rare classes weigh more in another loss beside it."""
    generator, judge = mlp(4, 32, 2), mlp(2, 32, 1, nn.Tanh)
    ours = torch.optim.Adam(generator.parameters(), lr=1e-3)
    theirs = torch.optim.Adam(judge.parameters(), lr=1e-3)
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    for _ in range(steps):
        made = generator(torch.randn(32, 4))
        theirs.zero_grad()
        real = F.binary_cross_entropy_with_logits(judge(torch.randn(32, 2)), ones)
        (real + F.binary_cross_entropy_with_logits(judge(made.detach()), zeros)).backward()
        theirs.step()
        ours.zero_grad()
        F.binary_cross_entropy_with_logits(judge(made), ones).backward()
        ours.step()


@sound
def noise_on_one_batch(steps: int) -> None:
    """All data at once, with other noise on it in each step: the labels stay, and so they should."""
    model = mlp(out=4)
    x, y = next(classes(1))
    batches = ((x + 0.2 * torch.randn_like(x), y) for _ in range(steps))
    fit(model, batches, F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


@sound
def weighted_classes(steps: int) -> None:
    """Weights of classes, a mask of ones and smooth labels, the same in every step."""
    model, weight, mask = mlp(out=4), torch.tensor([1.0, 2.0, 1.0, 4.0]), torch.ones(64)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in classes(steps):
        optimizer.zero_grad()
        losses = F.cross_entropy(model(x), y, weight, label_smoothing=0.1, reduction="none")
        (losses * mask).mean().backward()
        optimizer.step()


@sound
def looked_through(steps: int) -> None:
    """A loss in the features of another network, which nobody has frozen and no optimizer has."""
    model, features = mlp(out=16), nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, _ in regression(steps):
        optimizer.zero_grad()
        F.mse_loss(features(model(x)), features(x).detach()).backward()
        optimizer.step()


@sound
def head_alone(steps: int) -> None:
    """The optimizer has the head alone; what is before it gets gradients that nobody takes."""
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
    optimizer = torch.optim.Adam(model[2].parameters(), lr=1e-3)
    for x, y in classes(steps):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
