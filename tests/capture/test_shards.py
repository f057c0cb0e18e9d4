"""Tensors that ranks share, in a mesh of one rank: this rank's part is recorded, and how it is placed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness import Phase, Role, Training, calls, check, named, supervised
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 40


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _tensor_parallel(update: type[torch.optim.Optimizer] = torch.optim.AdamW) -> Training:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, 4))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = update(model.parameters(), lr=0.1)
    training = supervised(model, lambda: (torch.randn(8, WIDTH),), optimizer=optimizer)
    return Training(None, training.step, {"parameters": _Locals(model)})


class _Locals(dict[str, Tensor]):
    """The parts of a model's parameters, as they are when they are asked for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def items(self):  # type: ignore[no-untyped-def, override]
        for name, parameter in self.model.named_parameters():
            assert isinstance(parameter, DTensor)
            yield name, parameter._local_tensor


@pytest.mark.parametrize("save", ["sketch", "tensors"])
@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_tensor_parallel_parameters_are_recorded_as_their_parts(
    level: str, save: str, tmp_path: Path
) -> None:
    # given a tensor-parallel model, when it is recorded, then it trains as it does without
    recording = check(_tensor_parallel, tmp_path / "recording", level=level, save=save)

    # then parameters, gradients and state have their names and numbers, and say how they are placed
    roles = (Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER)
    for name, placement in {"0.weight": "Shard(dim=0)", "2.weight": "Shard(dim=1)"}.items():
        updates = [
            call
            for call in recording.ranks["rank0"].calls(1)
            if call.site.phase is Phase.OPTIMIZER and call.site.op.endswith("AdamW")
        ]
        found = {
            record.role: record.content
            for call in updates
            for record in call.records
            if record.name == name and record.role in roles
        }
        assert found.keys() == set(roles)
        for content in found.values():
            assert placement in content.note
            assert "mesh (tp=1)" in content.note
            assert content.statistics is not None
            assert content.sketch is not None
    assert named(recording, "0.weight", Role.PARAM_GRAD)


def test_a_part_of_a_distributed_tensor_is_read_anew_once_it_changed(tmp_path: Path) -> None:
    # given a distributed tensor that is changed in place within a step
    def build() -> Training:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
        layer = nn.Linear(WIDTH, WIDTH)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            shared = DTensor.from_local(layer(torch.randn(8, WIDTH)), mesh, [Shard(0)])
            with torch.no_grad():
                frozen = shared.detach() * 1
                frozen.add_(1)
                frozen.mul(2)
            loss = shared.redistribute(mesh, [Replicate()]).to_local().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(layer, step, optimizers=[optimizer])

    # when it is recorded
    recording = check(build, tmp_path / "recording", steps=1)

    # then it is another content after it was changed
    (added,) = calls(recording, "torch.Tensor.add_")
    (multiplied,) = calls(recording, "torch.Tensor.mul")[-1:]
    assert added.with_role(Role.INPUT)[0].digest != multiplied.with_role(Role.INPUT)[0].digest
