"""Experts that a router chooses by rounded numbers: in double precision it may send a token elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.core.finding import Comparison, Verdict

WIDTH, EXPERTS, TOKENS = 16, 4, 96

Chosen = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Makes of each token's logits the weights of its experts, and which these are."""


def best_two(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two that a softmax gives most, with what it gives them."""
    return logits.softmax(dim=-1).topk(2, dim=-1)  # type: ignore[return-value]


def best_two_sorted(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same by other calls."""
    shares = logits.softmax(dim=-1)
    order = shares.argsort(dim=-1, descending=True)[:, :2]
    return shares.gather(1, order), order


def above(share: float) -> Chosen:
    """Return all experts, of which those below a share count for nothing."""

    def chosen(logits: Tensor) -> tuple[Tensor, Tensor]:
        shares = logits.softmax(dim=-1)
        places = torch.arange(EXPERTS).expand_as(shares)
        return torch.where(shares > share, shares, torch.zeros_like(shares)), places

    return chosen


def best(count: int) -> Chosen:
    """Another number of experts."""
    return lambda logits: logits.softmax(dim=-1).topk(count, dim=-1)


def normalised(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The two weights add up to one, which they do not in the reference."""
    weights, places = best_two(logits)
    return weights / weights.sum(dim=-1, keepdim=True), places


def next_one(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each token goes to the expert beside its own."""
    weights, places = best_two(logits)
    return weights, (places + 1) % EXPERTS


class Routed(nn.Module):
    """A layer of experts between two linear ones."""

    def __init__(self, chosen: Chosen, *, reads: bool) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.chosen, self.reads = chosen, reads

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.enter(x))
        weights, chosen = self.chosen(self.router(x).float())
        return self.leave(x + (self.in_parts if self.reads else self.routed)(x, weights, chosen))

    def routed(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            given = expert(x[token]) * weights[token, place, None]
            found = found.index_add(0, token, given.to(found.dtype))
        return found

    def in_parts(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The same; Python makes sizes of what is chosen."""
        row = chosen.flatten()
        order = row.argsort(stable=True)
        counts = torch.bincount(row, minlength=EXPERTS).tolist()
        parts = x[order // chosen.shape[1]].split(counts)
        made = torch.cat([e(one) for e, one in zip(self.experts, parts, strict=True)])
        made = made * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // chosen.shape[1], made.to(x.dtype))


class WrongChoices(TorchDispatchMode):
    """A kernel that returns other places than those of the largest values, in a share of the rows."""

    def __init__(self, rows: int, name: str = "topk") -> None:
        super().__init__()
        self.rows, self.name = rows, name

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        called = function.overloadpacket.__name__
        if called == self.name == "topk":
            values, places = args[0], found[1].clone()
            places[: self.rows, 1] = values[: self.rows].argmin(dim=-1)
            return values.gather(1, places), places
        if called == self.name == "gt":
            found = found.clone()
            far = (args[0][:, 0] - args[1]).abs().argsort(descending=True)
            found[far[: self.rows], 0] ^= True
        return found


@dataclass(frozen=True)
class Precise:
    """In which numbers a training computes."""

    autocast: bool = False
    dtype: torch.dtype = torch.float32


PRECISIONS = {
    "fp32": Precise(),
    "autocast": Precise(autocast=True),
    "bf16": Precise(dtype=torch.bfloat16),
}


def recorded(
    path: Path,
    chosen: Chosen,
    precise: Precise,
    *,
    emulate: str = "",
    kernels: TorchDispatchMode | None = None,
    reads: bool = False,
) -> Path:
    """Record two steps, of which the second begins with other weights in a run that rounds otherwise."""
    torch.manual_seed(0)
    net = Routed(chosen, reads=reads).to(precise.dtype)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    with (
        kernels or nullcontext(),
        lockstep.record(path, model=net, steps="0:2", emulate=emulate),
    ):
        for _ in range(2):
            x, y = torch.randn(TOKENS, WIDTH), torch.arange(TOKENS) % 4
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=precise.autocast):
                given = net(x.to(precise.dtype))
            F.cross_entropy(given.float(), y).backward()
            optimizer.step()
    return path


References = Callable[..., Path]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    """Recordings of sound trainings, each made once."""
    folder, made = tmp_path_factory.mktemp("routed"), dict[str, Path]()

    def reference(name: str, chosen: Chosen, precise: str, *, reads: bool = False) -> Path:
        key = f"{name}-{precise}"
        if key not in made:
            made[key] = recorded(folder / key, chosen, PRECISIONS[precise], reads=reads)
        return made[key]

    return reference


def compared(reference: Path, candidate: Path) -> Comparison:
    return lockstep.compare_recordings(lockstep.open(reference), lockstep.open(candidate))


@pytest.mark.parametrize(
    ("precise", "other"),
    [("fp32", best_two), ("autocast", best_two), ("autocast", best_two_sorted), ("bf16", best_two)],
)
def test_experts_on_another_device_are_no_fault(
    references: References, tmp_path: Path, precise: str, other: Chosen
) -> None:
    # given one training on two devices, whose rounding sends some tokens elsewhere in the second step
    reference = references("two", best_two, precise)
    candidate = recorded(tmp_path / "cand", other, PRECISIONS[precise], emulate="reorder")
    # when they are compared
    found = compared(reference, candidate)
    # then the laws judge every step, and none is broken
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert (found.laws.breaches, found.laws.not_judged) == ((), ())


@pytest.mark.parametrize("wrong", [best(1), normalised, next_one])
def test_a_faulty_router_is_told(references: References, tmp_path: Path, wrong: Chosen) -> None:
    reference = references("two", best_two, "autocast")
    candidate = recorded(tmp_path / "cand", wrong, PRECISIONS["autocast"], emulate="reorder")
    assert compared(reference, candidate).verdict is Verdict.DIVERGED


@pytest.mark.parametrize("share", [0.2, 0.21])
def test_another_threshold_is_told(references: References, tmp_path: Path, share: float) -> None:
    reference = references("above", above(0.2), "autocast")
    candidate = recorded(tmp_path / "cand", above(share), PRECISIONS["autocast"], emulate="reorder")
    told = Verdict.AGREE if share == 0.2 else Verdict.DIVERGED
    assert compared(reference, candidate).verdict is told


@pytest.mark.parametrize(
    ("name", "precise"), [("topk", "autocast"), ("topk", "bf16"), ("gt", "autocast")]
)
def test_a_kernel_that_chooses_wrongly_once_is_told(
    references: References, tmp_path: Path, name: str, precise: str
) -> None:
    # given a kernel that makes one other choice than its numbers ask for, far from any tie
    chosen = best_two if name == "topk" else above(0.2)
    reference = references("two" if name == "topk" else "above", chosen, precise)
    candidate = recorded(
        tmp_path / "cand", chosen, PRECISIONS[precise], emulate="reorder",
        kernels=WrongChoices(1, name),
    )  # fmt: skip
    # when the two are compared
    found = compared(reference, candidate)
    # then it is a fault, at that call
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op.rpartition(".")[2] in (name, "__gt__")


def test_sizes_that_python_makes_of_choices_stay(references: References, tmp_path: Path) -> None:
    # given experts whose tokens are cut into parts by sizes that Python read
    reference = references("parts", best_two, "fp32", reads=True)
    candidate = recorded(
        tmp_path / "cand", best_two, PRECISIONS["fp32"], emulate="reorder", reads=True
    )
    # when two runs are compared that decide alike
    found = compared(reference, candidate)
    # then both programs run with those sizes
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.not_judged == ()
