"""Names of a model are its own, whoever stands around it, and whatever else the process holds."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import CallKind, Recording, Role, calls, fingerprint, named, recorded
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.lin(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        output: Tensor = self.head(x)
        return output


def train(model: nn.Module, *, before: Callable[[Tensor], object] = lambda _: None) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        batch = torch.randn(3, 4, generator=generator)
        kept = before(batch)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        del kept


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("plain") / "ref", lambda: train(Net()))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def installed_wrapper() -> type[nn.Module]:
    """A wrapper as packages bring them: all that it has is its `module`."""

    class Engine(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    Engine.__module__ = "xxhash"  # of an installed package
    return Engine


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["data parallel", "distributed", "of a package", "both"])
def test_a_wrapped_model_is_recorded_as_the_model(
    tmp_path: Path, plain: Recording, kind: str
) -> None:
    wrap: dict[str, Callable[[nn.Module], nn.Module]] = {
        "data parallel": nn.DataParallel,
        "distributed": nn.parallel.DistributedDataParallel,
        "of a package": installed_wrapper(),
        "both": lambda model: installed_wrapper()(nn.parallel.DistributedDataParallel(model)),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recording = recorded(tmp_path / "wrapped", lambda: train(wrap[kind](Net())))

    assert fingerprint(recording) == fingerprint(plain)
    assert paths(recording) == paths(plain)


def paths(recording: Recording) -> list[tuple[str, str]]:
    table = recording.ranks["rank0"].module_table
    return list(zip(table["module"], table["module_class"], strict=True))


def test_blocks_that_are_checkpointed_keep_their_names(tmp_path: Path, plain: Recording) -> None:
    def wrapped() -> Net:
        model = Net()
        model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
        return model

    recording = recorded(tmp_path / "wrapped", lambda: train(wrapped()))

    assert paths(recording) == paths(plain)
    assert sites(recording) == sites(plain)


def test_what_the_compiler_wraps_is_called_as_what_is_in_it(
    tmp_path: Path, plain: Recording
) -> None:
    recording = recorded(
        tmp_path / "compiled",
        lambda: train(torch.compile(Net(), backend="eager")),  # type: ignore[arg-type]
    )

    assert paths(recording) == paths(plain)
    first, *_ = calls(recording, kind=CallKind.MODULE)
    assert first.site == calls(plain, kind=CallKind.MODULE)[0].site


def sites(recording: Recording) -> list[str]:
    return [str(call.site) for call in calls(recording, recomputed=False)]


# --- which one is the model -----------------------------------------------------------------------


def test_a_teacher_that_is_called_first_is_not_the_model(tmp_path: Path, plain: Recording) -> None:
    # given a frozen copy of the model that runs before it
    def distill() -> None:
        model = Net()
        teacher = copy.deepcopy(model).requires_grad_(False)
        train(model, before=teacher)

    recording = recorded(tmp_path / "ref", distill)

    kept = {name for name, _ in paths(recording)}
    assert {"blocks.0.lin", "head"} < kept
    assert len(named(recording, "head.weight", Role.PARAM_AFTER)) == 1
    assert set(sites(plain)) <= set(sites(recording))


def test_a_mean_of_the_weights_is_not_the_model(tmp_path: Path, plain: Recording) -> None:
    # given a running mean of the model's weights that is evaluated with gradients on
    def averaged() -> None:
        model = Net()
        mean = AveragedModel(model)
        mean(torch.ones(1, 4))
        train(model, before=lambda _: mean.update_parameters(model))

    recording = recorded(tmp_path / "ref", averaged)
    assert fingerprint(recording) == fingerprint(plain)


def test_a_loss_with_parameters_is_not_the_model(tmp_path: Path) -> None:
    # given a temperature that is used before the model is called
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.temperature

    def scaled() -> None:
        model, scale = Net(), Scale()
        optimizer = torch.optim.SGD([*scale.parameters(), *model.parameters()], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(scale(torch.ones(3, 4))).square().mean().backward()
            optimizer.step()

    recording = recorded(tmp_path / "ref", scaled)

    assert len(named(recording, "Scale.temperature", Role.PARAM_AFTER)) == 1
    assert len(named(recording, "head.weight", Role.PARAM_AFTER)) == 1
