"""Trainings that are slow on purpose, profiled for real: the class is named first with the line; a tuned one is not."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import checkpoint as checkpoints

from lockstep_tune.bottlenecks import Bottleneck, Class, bottlenecks
from lockstep_tune.marking import mark_checkpoints
from lockstep_tune.profiling import Profiling
from lockstep_tune.trace import read_profile

Step = Callable[[], None]


class Training:
    """A small training whose step is timed: a product, its backward, a fused update."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: torch.nn.Module = torch.nn.Linear(64, 64)
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.x = torch.randn(32, 64)

    def step(self, extra: torch.Tensor | float = 0.0) -> None:
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean() + extra
        loss.backward()
        self.optimizer.step()


def _attention() -> Step:
    training, q = Training(), torch.randn(4, 4, 256, 16)

    def step() -> None:
        scores = q @ q.transpose(-2, -1) / 4
        weights = scores.softmax(-1)  # SLOW
        training.step((weights @ q).mean())

    return step


def _double() -> Step:
    training, wide = Training(), torch.randn(512, 512, dtype=torch.float64)

    def step() -> None:
        product = wide @ wide  # SLOW
        training.step(product.mean().float())

    return step


def _elementwise() -> Step:
    training, wide = Training(), torch.randn(512, 1024)

    def step() -> None:
        chain = (wide * 2 + 1).sin().mul(3).add(1).cos().mul(2).tanh()  # SLOW
        training.step(chain[0, 0])

    return step


def _copies() -> Step:
    training, wide = Training(), torch.randn(1024, 1024)

    def step() -> None:
        for _ in range(4):
            other = wide.t().contiguous()  # SLOW
        training.step(other[0, 0])

    return step


def _casts() -> Step:
    training, wide = Training(), torch.randn(2048, 1024)

    def step() -> None:
        for _ in range(4):
            low = wide.to(torch.bfloat16)  # SLOW
        training.step(low[0, 0].float())

    return step


def _reads() -> Step:
    training, values = Training(), torch.randn(500)

    def step() -> None:
        total = 0.0
        for at in range(500):
            total += values[at].item()  # SLOW
        training.step(total)

    return step


def _small_calls() -> Step:
    training = Training()

    def step() -> None:
        hidden = training.x[0, 0].detach()
        for _ in range(400):
            hidden = torch.add(hidden, 1)  # SLOW
        training.step(hidden)

    return step


def _updates() -> Step:
    training = Training()
    small = [torch.nn.Parameter(torch.randn(4)) for _ in range(100)]
    training.optimizer = torch.optim.Adam([*training.model.parameters(), *small], foreach=False)

    def step() -> None:
        for parameter in small:
            parameter.grad = parameter.detach()
        training.model(training.x).square().mean().backward()
        training.optimizer.step()  # SLOW

    return step


def _recompiles() -> Step:
    training, sizes = Training(), iter(range(3, 60))

    @torch.compile(backend="eager", dynamic=False)  # SLOW
    def compiled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def step() -> None:
        training.step(compiled(torch.ones(next(sizes)))[0])

    return step


class _Slow(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, at: int) -> torch.Tensor:
        sum(number * number for number in range(60_000))
        return torch.zeros(1)


def _loads() -> Step:
    training = Training()
    samples = iter(torch.utils.data.DataLoader(_Slow(), batch_size=2))

    def step() -> None:
        batch = next(samples)  # SLOW
        training.step(batch[0, 0])

    return step


def _python() -> Step:
    training = Training()

    def step() -> None:
        total = sum(number * number for number in range(300_000))  # SLOW
        extra = torch.tensor(float(total))
        training.step(extra)

    return step


def _pads() -> Step:
    training = Training()
    texts = [[1] * (number % 40) for number in range(400)]

    def padded() -> torch.Tensor:
        rows = []
        for text in texts:
            row = [text[at] if at < len(text) else 0 for at in range(300)]  # SLOW
            rows.append(row)
        return torch.tensor([float(sum(row)) for row in rows])

    def step() -> None:
        training.step(padded().mean())

    return step


def _saves(folder: Path) -> Step:
    training = Training()
    training.model.register_buffer("table", torch.zeros(1 << 20))

    def keep() -> None:
        kept = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        torch.save(kept, folder / "last.pt")  # SLOW

    def step() -> None:
        training.step()
        keep()

    return step


class _Net(torch.nn.Module):
    """A model whose forward is the script's own: validation is named where it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def _validates() -> Step:
    training, held_out = Training(), torch.randn(8192, 64)
    training.model = _Net()
    training.optimizer = torch.optim.AdamW(training.model.parameters(), fused=True)

    @torch.no_grad()
    def validate() -> float:
        training.model.eval()
        total = torch.zeros(())
        for rows in held_out.split(1024):
            total += training.model(rows).square().mean()  # SLOW
        training.model.train()
        return total.item()

    def step() -> None:
        training.step()
        validate()

    return step


def _recomputes() -> Step:
    training = Training()
    deep = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    wide = torch.randn(512, 256)

    def step() -> None:
        hidden = checkpoints.checkpoint(deep, wide, use_reentrant=False)  # SLOW
        training.step(hidden.mean())

    return step


def _reduces() -> Step:
    training, wide = Training(), torch.randn(1 << 21)

    def step() -> None:
        for _ in range(4):
            torch.distributed.all_reduce(wide)  # SLOW
        training.step()

    return step


def _profiled(folder: Path, step: Step) -> list[Bottleneck]:
    """What is named of seven steps, of which four are timed; as many threads as cores are taken for granted."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.utils.clear_compilation_metrics()  # what was compiled before is no training's
    profiling = Profiling(folder, 3, 7)
    for number in range(7):
        profiling.step_begins(number)
        step()
    profiling.step_begins(7)
    profiling.finish()
    profile = read_profile(folder / "rank0")
    return bottlenecks(dataclasses.replace(profile, threads=profile.cores))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def checkpoints_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What checkpoints compute again is marked, as in a training that is profiled."""
    monkeypatch.setattr(checkpoints, "checkpoint", checkpoints.checkpoint)
    mark_checkpoints()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (_attention, Class.OPERATOR),
        (_double, Class.OPERATOR),
        (_elementwise, Class.OPERATOR),
        (_copies, Class.COPIES),
        (_casts, Class.FRAMEWORK),
        (_reads, Class.FRAMEWORK),
        (_small_calls, Class.FRAMEWORK),
        (_updates, Class.FRAMEWORK),
        (_recompiles, Class.COMPILATION),
        (_loads, Class.DATA),
        (_python, Class.HOST),
        (_pads, Class.HOST),
        (_saves, Class.HOST),
        (_validates, Class.VALIDATION),
        (_recomputes, Class.RECOMPUTATION),
        (_reduces, Class.COMMUNICATION),
    ],
)
def test_the_class_and_the_line_are_named_first(
    tmp_path: Path,
    group: None,
    checkpoints_marked: None,
    make: Callable[..., Step],
    kind: Class,
) -> None:
    lines, first = inspect.getsourcelines(make)
    slow = first + next(at for at, line in enumerate(lines) if "# SLOW" in line)
    # when
    found = _profiled(tmp_path, make(*([tmp_path] if make is _saves else [])))
    # then
    assert found
    assert (found[0].kind, found[0].place) == (kind, f"{__file__}:{slow}"), found[:3]


def test_a_tuned_training_gets_no_advice(tmp_path: Path) -> None:
    torch.manual_seed(0)
    wide = torch.nn.Linear(512, 1024)
    narrow = torch.nn.Linear(1024, 512)
    optimizer = torch.optim.AdamW([*wide.parameters(), *narrow.parameters()], fused=True)
    x = torch.randn(2048, 512)

    def step() -> None:
        optimizer.zero_grad()
        hidden = F.gelu(wide(x))
        q = hidden.view(8, 256, 8, 128).transpose(1, 2)
        F.mse_loss(
            narrow(F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2)).view(
                2048, 512
            ),
            x,
        ).backward()
        optimizer.step()

    # then nothing gains more than 3 % of a step
    assert _profiled(tmp_path, step) == []


def _teaches() -> Step:
    """What a forward without gradients gives is what the next one learns: no validation."""
    training = Training()

    def step() -> None:
        with torch.no_grad():
            target = training.model(training.x).softmax(-1)
        training.step(F.mse_loss(training.model(training.x), target))

    return step


def _frozen() -> Step:
    """The whole training runs in eval mode: its forwards are no validation."""
    training = Training()
    training.model.eval()
    return training.step


@pytest.mark.parametrize("make", [_teaches, _frozen])
def test_a_forward_that_the_training_uses_is_no_validation(
    tmp_path: Path, make: Callable[[], Step]
) -> None:
    assert Class.VALIDATION not in {one.kind for one in _profiled(tmp_path, make())}


class _Block(torch.nn.Module):
    """The basic block of a ResNet; `torch.nn` has no model of it."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        stride = width // width_in
        self.conv1 = torch.nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.conv2 = torch.nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = torch.nn.BatchNorm2d(width), torch.nn.BatchNorm2d(width)
        self.relu = torch.nn.ReLU(inplace=True)
        conv = torch.nn.Conv2d(width_in, width, 1, stride, bias=False)
        self.down = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += self.down(x)
        return self.relu(out)


@pytest.mark.exhaustive
def test_a_tuned_residual_network_gets_no_advice(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first = torch.nn.Conv2d(3, 32, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU()
    last = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(128, 10)
    blocks = [_Block(32, 32), _Block(32, 64), _Block(64, 128)]
    model = torch.nn.Sequential(*first, torch.nn.MaxPool2d(3, 2, 1), *blocks, *last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    x, y = torch.randn(8, 3, 48, 48), torch.arange(8)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    # then nothing gains more than 3 % of a step: what other processes take for a moment is not named again
    named = [{one.place for one in _profiled(tmp_path / str(number), step)} for number in range(3)]
    assert set.intersection(*named) == set()
