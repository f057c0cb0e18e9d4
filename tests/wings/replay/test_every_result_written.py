"""A written test holds every result of its call, and lets through what a sound training recorded of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lockstep
from lockstep.cli.main import main
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.replay.calls import again as again_module
from lockstep.replay.calls import rerun
from lockstep.replay.calls.held_results import results_of
from lockstep.store.reader import open_recording
from lockstep.wings.replay.standalone.failing import failing
from lockstep.wings.replay.standalone.folder import Background, write_folder
from lockstep.wings.replay.standalone.proof import proof_of


class Net(torch.nn.Module):
    """Calls with several results, results in an argument, one tensor passed twice, and complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.cell = torch.nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(x).flatten(0, 1)).unflatten(0, x.shape[:2])
        hidden = F.dropout(hidden * 1.0, 0.25, inplace=True)
        hidden = torch.addcmul(hidden, hidden, hidden)
        values, _ = torch.topk(hidden, 2, dim=1)
        spread, mean = torch.std_mean(hidden, dim=1, keepdim=True)
        states, (last, cell) = self.cell((hidden - mean) / (spread + 1.0))
        waves = torch.fft.rfft(states, dim=1).abs()
        written = torch.zeros_like(states).index_add_(1, torch.tensor([0]), states[:, 1:2])
        parts = (values.mean(), last.mean(), cell.mean(), waves.mean(), written.mean())
        return torch.stack(parts).sum() + states.square().mean()


OPTIMIZERS = {
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, momentum=0.9, centered=True),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, amsgrad=True),
}


@pytest.fixture(scope="module", params=list(OPTIMIZERS))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound training."""
    folder = tmp_path_factory.mktemp("results") / "run"
    torch.manual_seed(0)
    model = Net()
    optimizer = OPTIMIZERS[request.param](model.parameters())
    with lockstep.record(folder, model=model, steps="0:2", save="tensors"):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4, 8)).backward()
            optimizer.step()
    return folder


def _calls(run: Path) -> list[Call]:
    found = {
        str(call.site): call
        for call in open_recording(run).ranks["rank0"].calls(1)
        if call.kind in (CallKind.OPERATOR, CallKind.OPTIMIZER)
    }
    return list(found.values())


def test_every_result_of_every_call_is_held(run: Path) -> None:
    # When a test of each call is written down
    held = {}
    for call in _calls(run):
        proof = proof_of(call)
        held[call.site.op.rpartition(".")[2]] = len(proof.names)

        # Then it holds all of what was recorded of it, and lets that through
        wanted = {(one.role, one.index, one.occurrence) for one in results_of(call)}
        assert (proof.names.keys(), proof.refused) == (wanted, {}), call.site
        assert not failing(proof), call.site

    # And calls with several results were among them
    assert held["topk"] == 3
    assert held["batch_norm"] == 6
    assert held.get("RMSprop", held.get("AdamW")) == 5


@pytest.mark.parametrize("op", ["dropout", "addcmul", "rfft", "abs", "topk", "index_add_", "lstm"])
def test_the_written_test_passes_here(run: Path, tmp_path: Path, op: str) -> None:
    call = next(call for call in _calls(run) if call.site.op.endswith(f".{op}"))
    folder = tmp_path / "proof"
    write_folder(folder, proof_of(call), Background((), "cpu", {}))
    (test,) = folder.glob("test_*.py")
    values: dict[str, Any] = {"__file__": str(test), "__name__": test.stem}
    exec(compile(test.read_text(), test, "exec"), values)
    values[test.stem]()


def test_nothing_of_a_sound_training_is_off(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Dropout in place draws once: it was refused by autograd behind its draw, and then drew other numbers.
    assert main(["replay", str(run), "--whole", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["beyond"], said["not_run_again"]) == (0, [])


def test_large_results_are_held_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given that more than ten elements are large, so that of a run with backward only gradients are kept
    for module in (rerun, again_module):
        monkeypatch.setattr(module, "LARGE", 10)

    # When calls are run again
    for call in _calls(run):
        results = again_module.again(call, memory_bytes=1 << 32)

        # Then what they return is held as well, as recorded and as made again
        assert all(len(one.held) == 2 and not one.refused for one in results), call.site
        assert all(held.sound for one in results for held in one.held), call.site
        assert not proof_of(call).refused


def test_a_result_that_cannot_be_held_is_named(tmp_path: Path) -> None:
    # Given a result that is written over in place, so that no gradient of it is recorded
    torch.manual_seed(0)
    model = torch.nn.BatchNorm1d(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(tmp_path / "run", model=model, steps="0:1", save="tensors"):
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    call = next(
        call
        for call in open_recording(tmp_path / "run").ranks["rank0"].calls(0)
        if call.site.op.endswith("batch_norm")
    )
    call.records = tuple(one for one in call.records if one.role.value != "grad_output")

    # When a test is written, then it says which results it does not hold
    refused = proof_of(call).refused
    assert set(refused) == {"param_grad weight", "param_grad bias"}
    assert all("no gradient that arrives at it was recorded" in why for why in refused.values())
