"""Trainings whose script calls collectives itself, on one rank or on two: `own_collectives.py DIRECTORY NAMES`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel

import lockstep

RANKS, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
Words = set[str]


def _reduced(number: Tensor) -> Tensor:
    if RANKS > 1:
        dist.all_reduce(number)
    return number


def _gathered(number: Tensor) -> Tensor:
    if RANKS == 1:
        return number[None]
    parts = [torch.empty_like(number) for _ in range(RANKS)]
    dist.all_gather(parts, number)
    return torch.stack(parts)


# --- numbers that are only shown


def show_mean(loss: Tensor, outputs: Tensor, targets: Tensor, words: Words) -> Tensor:
    """The loss averaged over the ranks, in the order of nearly every script."""
    shown = loss.detach().clone()
    _reduced(shown)
    shown /= RANKS
    return shown


def show_weighted(loss: Tensor, outputs: Tensor, targets: Tensor, words: Words) -> Tensor:
    """The loss times the samples, and the samples, both added up."""
    total = _reduced(torch.stack([loss.detach() * len(targets), torch.tensor(float(len(targets)))]))
    return total[0] / total[1]


def show_gathered(loss: Tensor, outputs: Tensor, targets: Tensor, words: Words) -> Tensor:
    """Accuracy and loss of every rank, gathered and averaged where they are shown."""
    right = (outputs.argmax(1) == targets).float().mean()
    both = _gathered(torch.stack([right, loss.detach()]))
    return both.mean(0)[1]


def show_on_first(loss: Tensor, outputs: Tensor, targets: Tensor, words: Words) -> Tensor:
    """Reduced to rank 0, which alone divides."""
    shown = loss.detach().clone()
    if RANKS > 1:
        dist.reduce(shown, 0)
    if RANK == 0:
        shown = shown / RANKS
    return shown


_SMOOTHED = [torch.zeros(())]


def show_smoothed(loss: Tensor, outputs: Tensor, targets: Tensor, words: Words) -> Tensor:
    """A running mean that lives from step to step."""
    with torch.no_grad():
        now = _reduced(loss.detach() / RANKS)
        _SMOOTHED[0] = _SMOOTHED[0] * 0.9 + now * 0.1
    return _SMOOTHED[0]


def show_perplexity(loss: Tensor, outputs: Tensor, targets: Tensor, words: Words) -> Tensor:
    """The sum over ranks of the sum over samples, over the number of all, and its exponential."""
    each = cross_entropy(outputs.detach(), targets, reduction="none")
    count = _reduced(torch.tensor([each.numel()]))
    total = _reduced(each.sum())
    return torch.exp(total / count.item())


SHOWN: dict[str, Callable[[Tensor, Tensor, Tensor, Words], Tensor]] = {
    "mean": show_mean,
    "weighted": show_weighted,
    "gathered": show_gathered,
    "first": show_on_first,
    "smoothed": show_smoothed,
    "perplexity": show_perplexity,
}


# --- collectives within autograd functions


class Summed(torch.autograd.Function):
    """A sum over the ranks, forward and backward; of `lost-backward` forward alone."""

    words: ClassVar[Words] = set()

    @staticmethod
    def forward(context: Any, number: Tensor) -> Tensor:
        return _reduced(number.clone())

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient.clone() if "lost-backward" in Summed.words else _reduced(gradient.clone())


class Mean(torch.autograd.Function):
    """A mean over the ranks, forward and backward."""

    @staticmethod
    def forward(context: Any, number: Tensor) -> Tensor:
        return _reduced(number.clone()) / RANKS

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _reduced(gradient.clone()) / RANKS


class Gathered(torch.autograd.Function):
    """Rows of all ranks, as contrastive losses gather them."""

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        return _gathered(rows.contiguous()).flatten(0, 1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient = gradient if "lost-backward" in Summed.words else _reduced(gradient)
        return gradient.chunk(RANKS)[RANK].clone()


class OwnNorm(nn.Module):
    """Batch norm over all ranks, from sums that an autograd function adds up."""

    def __init__(self, width: int, words: Words) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.words = words

    def forward(self, x: Tensor) -> Tensor:
        ranks = 1 if "wrong-count" in self.words else RANKS
        if "means" in self.words:  # as detectron2 has it: means added up, and divided
            kept = RANKS == 1 and "bypassed" in self.words
            means = torch.cat([x.mean(0), (x * x).mean(0)])
            means = (means if kept else Summed.apply(means)) * (1.0 / ranks)
            mean, square = means.chunk(2)
        elif "averaged" in self.words:
            mean = Mean.apply(x.mean(0))
            square = Mean.apply((x * x).mean(0))
            if "wrong-mean" in self.words:
                mean = mean / RANKS
        else:
            sums = Summed.apply(torch.stack([x.sum(0), (x * x).sum(0)]))
            mean, square = sums / (len(x) * ranks)
        self.running_mean.lerp_(mean.detach(), 0.1)
        return (x - mean) * torch.rsqrt(square - mean * mean + 1e-3) * self.weight + self.bias


class Router(nn.Module):
    """Mixes experts by a softmax, and asks for equal loads over all ranks."""

    def __init__(self, width: int, words: Words) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4)
        self.experts = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.words, self.load = words, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(1)
        if "means" in self.words:
            load = Summed.apply(shares.mean(0)) / (1 if "wrong-count" in self.words else RANKS)
        else:
            total = Summed.apply(torch.cat([shares.sum(0), torch.full((1,), float(len(x)))]))
            load = total[:4] / (total[4] / RANKS if "wrong-count" in self.words else total[4])
        self.load = (load * load).sum()
        return x + sum(shares[:, n, None] * one(x) for n, one in enumerate(self.experts))


class Net(nn.Module):
    """Two layers, and between them what the words ask for."""

    def __init__(self, middle: str, words: Words) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        kinds = {"norm": OwnNorm, "router": Router}
        self.middle = kinds[middle](16, words) if middle in kinds else nn.Identity()
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.middle(self.first(x))))
        return out


# --- updates that ranks share out by hand


class Shares:
    """ZeRO-1: each rank steps its share of the parameters, and sends it to the others."""

    def __init__(self, model: nn.Module, words: Words) -> None:
        self.all, self.words = list(model.parameters()), words
        own = [one for n, one in enumerate(self.all) if self._owner(n) == RANK or RANKS == 1]
        if "skips" in words and RANK == 1:
            own = own[1:]
        rate = 2e-2 if "rate" in words and RANK == 1 else 1e-2
        self.inner = torch.optim.AdamW(own, lr=rate)

    def _owner(self, number: int) -> int:
        return number * RANKS // len(self.all) if "halves" in self.words else number % RANKS

    def reduce(self) -> None:
        """Add up gradients: at their owner's alone, or everywhere."""
        for number, one in enumerate(self.all):
            if RANKS > 1 and "to-owner" in self.words:
                dist.reduce(one.grad, self._owner(number))
                if self._owner(number) != RANK:
                    one.grad = None
                    continue
            else:
                _reduced(one.grad)
            one.grad /= RANKS

    def step(self) -> None:
        self.inner.step()
        if RANKS == 1 or "unsent" in self.words:
            return
        if "flat" in self.words:
            self._send_flat()
            return
        for number, one in enumerate(self.all):
            dist.broadcast(one.data, self._owner(number))

    def _send_flat(self) -> None:
        """One buffer for each rank's share."""
        for owner in range(RANKS):
            share = [one for n, one in enumerate(self.all) if self._owner(n) == owner]
            flat = torch.cat([one.data.flatten() for one in share])
            dist.broadcast(flat, owner)
            for one, part in zip(share, flat.split([s.numel() for s in share]), strict=True):
                one.data.copy_(part.view_as(one))


def _by_hand(model: nn.Module, words: Words) -> None:
    """Average every gradient, from the last parameter to the first or the other way."""
    named = list(enumerate(model.parameters()))
    for number, one in reversed(named) if "reversed" in words else named:
        if "unequal" in words and RANK == 1 and number == 2:
            one.grad *= 0.98
        if not ("lost" in words and number == 1):
            _reduced(one.grad)
        one.grad /= RANKS
        if "copies" in words and RANK == 1 and number == 2:
            one.grad *= 0.98


def _contrast(outputs: Tensor, words: Words) -> Tensor:
    """Each rank's rows beside those of all: the loss of CLIP and SimCLR."""
    own = normalize(outputs, dim=1)
    everyone = Gathered.apply(own)
    labels = torch.arange(len(own)) + RANK * len(own)
    return cross_entropy(own @ everyone.T / 0.5, labels)


def train(directory: Path, name: str) -> None:
    """Record three steps of a training that its name describes: KIND+WORDS."""
    kind, *rest = name.split("+")
    words = set(rest)
    torch.manual_seed(0)
    _SMOOTHED[0], Summed.words = torch.zeros(()), words
    batches = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(3)]
    model = Net(kind, words)
    if "start" in words and RANK == 1:
        model.last.weight.data *= 0.98
    by_hand = kind in ("zero", "hand") or RANKS == 1
    net: nn.Module = model if by_hand else DistributedDataParallel(model)
    shares = Shares(model, words) if kind == "zero" else None
    rate = 0.098 if "slower" in words and RANK == 1 else 0.1
    optimizer: Any = shares or torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    with lockstep.record(directory / name, steps="0:3", save="tensors"):
        for rows, classes in batches:
            rows, classes = rows.chunk(RANKS)[RANK], classes.chunk(RANKS)[RANK]
            if "own-rows" in words and RANK == 1:
                rows = rows * 1.01
            _step(kind, words, net, optimizer, rows, classes)


def _step(kind: str, words: Words, net: Any, optimizer: Any, rows: Tensor, classes: Tensor) -> None:
    model = net.module if isinstance(net, DistributedDataParallel) else net
    for one in model.parameters():
        one.grad = None
    outputs = net(rows)
    loss = _contrast(outputs, words) if kind == "contrast" else cross_entropy(outputs, classes)
    if kind == "router":
        loss = loss + 0.1 * model.middle.load
    trained = loss * RANKS if "summed" in words else loss
    shown = None
    for one in SHOWN.keys() & words:
        if "late" not in words:
            shown = SHOWN[one](loss, outputs, classes, words)
    if "fed-back" in words:  # what is shown weighs the loss: no log any more
        undivided = _reduced(loss.detach().clone())
        trained = trained / undivided
    trained.backward()
    if "clipped-by-shown" in words and shown is not None:
        for one in model.parameters():
            one.grad *= shown * (1 if "sound" in words else RANKS)
    if "clipped" in words:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if kind == "zero":
        optimizer.reduce()
    elif kind == "hand":
        _by_hand(model, words)
    for one in SHOWN.keys() & words:
        if "late" in words:
            shown = SHOWN[one](loss, outputs, classes, words)
    optimizer.step()
    if shown is not None:
        shown.item()


def main(directory: Path, names: list[str]) -> None:
    """Record every training that is asked for, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if RANKS > 1:
        dist.init_process_group("gloo")
    for name in names:
        train(directory, name)
    if RANKS > 1:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own groups may abort while they are taken apart


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
