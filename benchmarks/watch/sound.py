"""Sound trainings that no rule may fire on: the trainings of `benchmarks/watch`.

Each is a function that trains so many steps. They are small, and real: the architectures, optimizers, precisions and
schedules that people train with, and the things in them that look like faults to a rule that is too simple.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Training = Callable[[int], None]
SOUND: dict[str, Training] = {}


def sound(training: Training) -> Training:
    """List a training."""
    SOUND[training.__name__] = training
    return training


def fit(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float] | None = None,
) -> None:
    """The plain loop."""
    rates = None if schedule is None else torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
        if rates is not None:
            rates.step()


def regression(steps: int, *, width: int = 16, rows: int = 64) -> Iterator[tuple[Tensor, Tensor]]:
    """Random batches of a noisy linear function."""
    weight = torch.randn(width, 1)
    for _ in range(steps):
        x = torch.randn(rows, width)
        yield x, x @ weight + 0.1 * torch.randn(rows, 1)


def classes(
    steps: int, *, width: int = 16, rows: int = 64, count: int = 4
) -> Iterator[tuple[Tensor, Tensor]]:
    """Random batches of noisy points around centres."""
    centres = 2.0 * torch.randn(count, width)
    for _ in range(steps):
        y = torch.randint(0, count, (rows,))
        yield centres[y] + torch.randn(rows, width), y


def images(steps: int, *, rows: int = 16, size: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    """Random batches of noisy pictures of four kinds."""
    kinds = torch.randn(4, 3, size, size)
    for _ in range(steps):
        y = torch.randint(0, 4, (rows,))
        yield kinds[y] + torch.randn(rows, 3, size, size), y


def mlp(
    width: int = 16, hidden: int = 64, out: int = 1, act: type[nn.Module] = nn.ReLU
) -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(width, hidden), act(), nn.Linear(hidden, hidden), act(), nn.Linear(hidden, out)
    )


def tiny_gpt2(**settings: object) -> nn.Module:
    """GPT-2 with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=64, n_head=4, n_positions=32, vocab_size=128, bos_token_id=0, eos_token_id=0, **settings
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def train_gpt2(model: nn.Module, steps: int, optimizer: torch.optim.Optimizer) -> None:
    """On random texts in which each token tells the next."""
    for _ in range(steps):
        start = torch.randint(0, 128, (8, 1))
        tokens = (start + 3 * torch.arange(32)) % 128
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@sound
def raw_targets(steps: int) -> None:
    """Targets in their own unit, some ten thousands: so are gradients of a mean of squares, from step 0 on."""
    model = mlp()
    batches = ((x, 2e4 + 1e4 * y) for x, y in regression(steps))
    fit(model, batches, F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-2))


@sound
def gpt2(steps: int) -> None:
    model = tiny_gpt2()
    train_gpt2(model, steps, torch.optim.AdamW(model.parameters(), lr=1e-3))


@sound
def gpt2_eager_attention(steps: int) -> None:
    """Its mask is the least number of the dtype."""
    model = tiny_gpt2(attn_implementation="eager")
    train_gpt2(model, steps, torch.optim.AdamW(model.parameters(), lr=1e-3))


@sound
def gpt2_bf16_weights(steps: int) -> None:
    model = tiny_gpt2(attn_implementation="eager").bfloat16()
    train_gpt2(model, steps, torch.optim.AdamW(model.parameters(), lr=1e-3))


@sound
def bert(steps: int) -> None:
    """The bias of its keys gets no gradient but rounding; padding is masked."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=128,
        max_position_embeddings=32, num_labels=3,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for _ in range(steps):
        labels = torch.randint(0, 3, (8,))
        tokens = torch.randint(3, 128, (8, 24))
        tokens[:, 0] = labels
        mask = (torch.arange(24) < torch.randint(8, 25, (8, 1))).long()
        optimizer.zero_grad()
        model(input_ids=tokens, attention_mask=mask, labels=labels).loss.backward()
        optimizer.step()


class Block(nn.Module):
    """Two convolutions with BatchNorm and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norms[1](self.two(F.relu(self.norms[0](self.one(x))))))


def tiny_resnet() -> nn.Module:
    """Three blocks; the last scale of each starts at zero, as in torchvision's."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *(Block(16) for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip
    for module in model:
        if isinstance(module, Block):
            nn.init.zeros_(module.norms[1].weight)
    return model


@sound
def resnet(steps: int) -> None:
    model = tiny_resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    fit(model, images(steps), F.cross_entropy, optimizer)


class Sequence(nn.Module):
    """A recurrent net and a head on its last state."""

    def __init__(self, kind: type[nn.RNNBase], **settings: object) -> None:
        super().__init__()
        self.inner, self.head = kind(8, 32, batch_first=True, **settings), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


def sums(steps: int, *, length: int = 12) -> Iterator[tuple[Tensor, Tensor]]:
    """Series and the mean of their first channel."""
    for _ in range(steps):
        x = torch.randn(32, length, 8)
        yield x, x[:, :, :1].mean(1)


@sound
def lstm(steps: int) -> None:
    model = Sequence(nn.LSTM)
    fit(model, sums(steps), F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-2))


@sound
def gru_clipped(steps: int) -> None:
    model = Sequence(nn.GRU, num_layers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for x, y in sums(steps, length=40):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()


@sound
def trainer(steps: int) -> None:
    """Warm-up, and linear decay to zero."""
    from transformers import Trainer, TrainingArguments

    tokens = (torch.randint(0, 128, (256, 1)) + torch.arange(32)) % 128
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=8, warmup_steps=10,
            learning_rate=5e-4, lr_scheduler_type="linear", report_to=[], save_strategy="no",
            disable_tqdm=True, use_cpu=True, logging_steps=1000,
        )  # fmt: skip
        Trainer(model=tiny_gpt2(), args=arguments, train_dataset=rows).train()


def half_precision(
    steps: int, model: nn.Module, optimizer: torch.optim.Optimizer, scale: float
) -> None:
    """autocast to float16 with a GradScaler."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for x, y in classes(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@sound
def fp16_autocast(steps: int) -> None:
    model = mlp(out=4)
    half_precision(steps, model, torch.optim.Adam(model.parameters(), lr=1e-3), 65536.0)


@sound
def fp16_initial_skips(steps: int) -> None:
    """The scaler begins far too high."""
    model = mlp(out=4)
    half_precision(steps, model, torch.optim.SGD(model.parameters(), lr=0.1), 2.0**28)


@sound
def bf16_autocast(steps: int) -> None:
    model = mlp(out=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for x, y in classes(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


class Lora(nn.Module):
    """A frozen layer beside which two thin ones learn; the second starts at zero."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a = nn.Parameter(0.1 * torch.randn(rank, inner.in_features))
        self.b = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + x @ self.a.T @ self.b.T


@sound
def lora(steps: int) -> None:
    model = nn.Sequential(Lora(nn.Linear(16, 64)), nn.ReLU(), Lora(nn.Linear(64, 4)))
    trained = [one for one in model.parameters() if one.requires_grad]
    fit(model, classes(steps), F.cross_entropy, torch.optim.AdamW(trained, lr=1e-3))


@sound
def accumulation(steps: int) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number, (x, y) in enumerate(regression(4 * steps), 1):
        (F.mse_loss(model(x), y) / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@sound
def adam_fast(steps: int) -> None:
    model = mlp(act=nn.Tanh)
    fit(model, regression(steps), F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-2))


@sound
def adamw_fine_tuning(steps: int) -> None:
    """A net that has learned, and goes on with a small rate."""
    model, batches = mlp(out=4), list(classes(2 * steps))
    learning = torch.optim.Adam(model.parameters(), lr=1e-3)
    fit(model, batches[:steps], F.cross_entropy, learning)
    tuning = torch.optim.AdamW(model.parameters(), lr=2e-5)
    fit(model, batches[steps:], F.cross_entropy, tuning)


@sound
def learned_by_heart(steps: int) -> None:
    """Losses near zero, which jump by factors from batch to batch."""
    model = mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(model, classes(6 * steps), F.cross_entropy, optimizer)


@sound
def sgd_momentum(steps: int) -> None:
    model = mlp(act=nn.GELU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    fit(model, regression(steps), F.mse_loss, optimizer)


def diabetes() -> tuple[Tensor, Tensor]:
    """scikit-learn's table, its targets as they are: from 25 to 346."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return torch.tensor(x).float(), torch.tensor(y).float()[:, None]


@sound
def diabetes_full_batch(steps: int) -> None:
    model, rows = mlp(10), diabetes()
    fit(model, [rows] * steps, F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-2))


@sound
def diabetes_sgd(steps: int) -> None:
    model, rows = nn.Linear(10, 1), diabetes()
    fit(model, [rows] * steps, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1))


@sound
def diabetes_deep_sgd(steps: int) -> None:
    model, rows = mlp(10), diabetes()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    fit(model, [rows] * steps, F.mse_loss, optimizer)


@sound
def converged_line(steps: int) -> None:
    """A line through points, found to the last bit long before the end."""
    model = nn.Linear(2, 1)
    x = torch.randn(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    fit(model, [(x, x.sum(1, keepdim=True))] * steps, F.mse_loss, optimizer)


@contextlib.contextmanager
def two_ranks() -> Iterator[int]:
    """The ranks that torchrun started, over gloo."""
    torch.distributed.init_process_group("gloo")
    try:
        yield int(os.environ["RANK"])
    finally:
        torch.distributed.destroy_process_group()


@sound
def ddp_two_ranks(steps: int) -> None:
    with two_ranks() as rank:
        model = nn.parallel.DistributedDataParallel(mlp(out=4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        own = (one for number, one in enumerate(classes(2 * steps)) if number % 2 == rank)
        fit(model, own, F.cross_entropy, optimizer)


@sound
def fsdp2_two_ranks(steps: int) -> None:
    from torch.distributed.fsdp import fully_shard

    with two_ranks() as rank:
        model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))
        for module in model:
            fully_shard(module)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        own = (one for number, one in enumerate(classes(2 * steps)) if number % 2 == rank)
        fit(model, own, F.cross_entropy, optimizer)


@sound
def independent_two_ranks(steps: int) -> None:
    """Two trainings that begin alike and have nothing else in common."""
    with two_ranks() as rank:
        model = mlp(out=4)
        torch.manual_seed(rank)
        fit(model, classes(steps), F.cross_entropy, torch.optim.Adam(model.parameters(), lr=1e-3))


@sound
def compiled(steps: int) -> None:
    model = torch.compile(mlp(), backend="aot_eager")
    fit(model, regression(steps), F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-3))


@sound
def frozen_backbone(steps: int) -> None:
    """The optimizer holds it all the same."""
    model = nn.Sequential(mlp(out=32).requires_grad_(False), nn.ReLU(), nn.Linear(32, 4))
    fit(model, classes(steps), F.cross_entropy, torch.optim.AdamW(model.parameters(), lr=1e-2))


@sound
def long_warm_up(steps: int) -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    fit(model, regression(steps), F.mse_loss, optimizer, lambda step: step / 2000)


@sound
def certain_sigmoid(steps: int) -> None:
    """A net that is sure of what is easy; the logarithm undoes the sigmoid's slope."""
    model = nn.Sequential(nn.Linear(16, 1), nn.Sigmoid())
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    batches = (
        (x, (x[:, :1] > 0).float()) for x in (20 * torch.randn(64, 16) for _ in range(steps))
    )
    fit(model, batches, F.binary_cross_entropy, optimizer)


@sound
def several_passes(steps: int) -> None:
    """Ten passes over each batch, as PPO has them."""
    model = mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = [one for one in classes(steps // 10) for _ in range(10)]
    fit(model, batches, F.cross_entropy, optimizer)


@sound
def experts(steps: int) -> None:
    """Each row goes to one of four experts; an expert has rows in most steps."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(16, 4)
            self.experts = nn.ModuleList(mlp() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            share, chosen = self.gate(x).softmax(-1).max(-1)
            result = torch.zeros(len(x), 1)
            for number, expert in enumerate(self.experts):
                rows = (chosen == number).nonzero()[:, 0]
                if len(rows):
                    result = result.index_add(0, rows, expert(x[rows]) * share[rows, None])
            return result

    model = Experts()
    fit(model, regression(steps), F.mse_loss, torch.optim.Adam(model.parameters(), lr=1e-3))


@sound
def adversaries(steps: int) -> None:
    """A GAN: two optimizers, losses that do not fall."""
    maker, judge = mlp(8, out=2), mlp(2, act=nn.Tanh)
    of_maker, of_judge = (torch.optim.Adam(one.parameters(), lr=1e-3) for one in (maker, judge))
    for _ in range(steps):
        real, made = torch.randn(64, 2) * 0.5 + 1.0, maker(torch.randn(64, 8))
        of_judge.zero_grad()
        right = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        right.backward()
        of_judge.step()
        of_maker.zero_grad()
        F.softplus(-judge(made)).mean().backward()
        of_maker.step()


@sound
def vision_transformer(steps: int) -> None:
    """Tokens and layer scales that start as constants."""

    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 32, 4, 4)
            self.token, self.places = (
                nn.Parameter(torch.zeros(1, 1, 32)),
                nn.Parameter(torch.zeros(1, 17, 32)),
            )
            self.scale = nn.Parameter(1e-4 * torch.ones(32, 1))
            self.inner = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1)
            self.head = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            rows = self.patches(x).flatten(2).mT
            rows = torch.cat([self.token.expand(len(x), 1, 32), rows], 1) + self.places
            return self.head((rows + self.inner(rows) * self.scale[:, 0])[:, 0])

    model = Vision()
    fit(model, images(steps), F.cross_entropy, torch.optim.AdamW(model.parameters(), lr=1e-3))


@sound
def embeddings(steps: int) -> None:
    """Sparse gradients, of rows that a batch has."""
    model = nn.Sequential(nn.EmbeddingBag(500, 16, sparse=True), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    bags = (torch.randint(0, 500, (32, 8)) for _ in range(steps))
    batches = ((x, x.float().mean(1, keepdim=True) / 250) for x in bags)
    fit(model, batches, F.mse_loss, optimizer)


@sound
def missing_labels(steps: int) -> None:
    """NaN that stands for what is missing, and is left out of the loss."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        there = ~wanted.isnan()
        return F.mse_loss(found[there], wanted[there])

    batches = (
        (x, torch.where(torch.rand_like(y) < 0.3, torch.nan, y)) for x, y in regression(steps)
    )
    fit(model, batches, loss, optimizer)


@sound
def lbfgs(steps: int) -> None:
    model, (x, y) = nn.Linear(16, 1), next(regression(1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


@sound
def teacher(steps: int) -> None:
    """A student of a mean of its own weights, with noise on what both see."""
    student, mean = mlp(out=8), mlp(out=8).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for x, _ in regression(steps):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = mean(x + 0.1 * torch.randn_like(x)).softmax(-1)
        F.cross_entropy(student(x), wanted).backward()
        optimizer.step()
        with torch.no_grad():
            for one, other in zip(mean.parameters(), student.parameters(), strict=True):
                one.lerp_(other, 0.01)
