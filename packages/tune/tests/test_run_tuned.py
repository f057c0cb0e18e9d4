"""`lockstep run-tuned` of a real training: settings do what an edit of the script would, and checkpoints load back."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
from pathlib import Path

import pytest

from lockstep_tune.applying import Applying

_TRAINING = """
import os, sys, torch
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
edited = "edited" in sys.argv
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, at):
        return torch.randn(3, 6, 6, generator=torch.Generator().manual_seed(at)), at % 4
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.drop, self.out = torch.nn.Dropout(0.5), torch.nn.Linear(64, 4)
    def forward(self, x):
        inner = lambda h: self.drop(self.norm(h).relu())
        h = self.conv(x)
        uses = "checkpoint" in sys.argv and not edited
        h = checkpoint(inner, h, use_reentrant=False) if uses else inner(h)
        return self.out(h.flatten(1))
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, foreach=False, fused=edited)
loader = torch.utils.data.DataLoader(Data(), batch_size=8, shuffle=True, num_workers=1 if edited else 0)
step, end, file = 0, int(os.environ.get("END", "6")), os.environ.get("FILE", "")
if os.path.exists(file):
    kept = torch.load(file)
    net.load_state_dict(kept["net"])
    optimizer.load_state_dict(kept["optimizer"])
    torch.set_rng_state(kept["random"])
    step = kept["step"]
while step < end:
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        if "overflow" in sys.argv and step == 1:
            loss = loss * 1e38
        loss.backward()
        optimizer.step()
        step += 1
    if file:
        kept = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(kept | {"random": torch.get_rng_state()}, file)
print(step, loss.item().hex(), *(p.double().sum().item().hex() for p in net.parameters()))
print({p.dtype for p in net.parameters()}, torch.get_num_threads(), loader.num_workers)
print(optimizer.state_dict().get("lockstep_loss_scale"), os.environ.get("OMP_PROC_BIND"), sys.argv[1:])
"""


class _Bench:
    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs = folder, programs
        (folder / "train.py").write_text(_TRAINING)

    def bare(self, *words: str) -> list[str]:
        return self._run(str(self._programs / "python"), "train.py", *words)

    def tuned(self, settings: str, *words: str, **variables: str) -> list[str]:
        (self.folder / "tuned.yaml").write_text(settings)
        start = (str(self._programs / "lockstep"), "run-tuned", "tuned.yaml", "--")
        environment = ["env", *(f"{name}={value}" for name, value in variables.items())]
        return self._run(*start, *environment, str(self._programs / "python"), "train.py", *words)

    def _run(self, *command: str) -> list[str]:
        ended = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stderr
        self.said = ended.stderr
        return ended.stdout.splitlines()


@pytest.fixture(scope="module")
def bench(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> _Bench:
    return _Bench(tmp_path_factory.mktemp("tuned"), programs)


def test_settings_do_bit_by_bit_what_the_same_edit_does(bench: _Bench) -> None:
    edited = bench.bare("edited", "checkpoint")
    settings = "knobs: {workers: 1, optimizer: fused, checkpointing: false, bucket: 25}"
    assert bench.tuned(settings, "checkpoint")[:2] == edited[:2]
    # and the one without a place in it is said to be without effect
    assert bench.said.count("was not set") == 1
    assert "bucket was not set: the training has no DistributedDataParallel" in bench.said
    # and without settings it is the training as it is, which computes otherwise
    plain = bench.tuned("knobs: {}", "checkpoint")
    assert plain == bench.bare("checkpoint")
    assert plain[1] != edited[1]


@pytest.mark.parametrize("knob", ["weights", "autocast"])
def test_a_checkpoint_in_16_bits_loads_back_bit_by_bit(bench: _Bench, knob: str) -> None:
    file = bench.folder / f"{knob}.pt"
    settings = f"knobs: {{{knob}: float16}}"
    whole = bench.tuned(settings, "overflow")
    # given the same training, interrupted after the overflow and continued from its checkpoint
    bench.tuned(settings, "overflow", END="3", FILE=str(file))
    again = bench.tuned(settings, "overflow", FILE=str(file))
    # then losses, parameters and the scale are the same bit by bit
    assert again == whole
    # and the update that overflowed was left out, its scale halved, and parameters are float32
    assert whole[1].startswith("{torch.float32}")
    assert whole[2].startswith("{'scale': 32768.0, 'good': 4}")


def test_a_static_scale_stays_and_own_knobs_set_what_they_say(bench: _Bench) -> None:
    (bench.folder / "patch.py").write_text("import torch\ntorch.set_num_threads(3)\n")
    own = (
        "{name: mine, python: patch.py, environment: {OMP_PROC_BIND: 'true'}, arguments: [behind]}"
    )
    told = bench.tuned(f"knobs: {{weights: float16, loss_scale: 1024}}\nown: [{own}]")
    assert told[2] == "{'scale': 1024.0, 'good': 6} true ['behind']"
    assert told[1] == "{torch.float32} 3 0"


def test_the_command_s_exit_code_is_passed_on(bench: _Bench, programs: Path) -> None:
    (bench.folder / "tuned.yaml").write_text("knobs: {}")
    command = [str(programs / "lockstep"), "run-tuned", "tuned.yaml", "--", "sh", "-c", "exit 7"]
    assert subprocess.run(command, cwd=bench.folder, timeout=300).returncode == 7


@pytest.mark.exhaustive
def test_the_end_of_a_data_loaders_worker_is_not_that_of_the_training(tmp_path: Path) -> None:
    # given a training that is timed up to its third step
    applying = Applying({}, tmp_path / "told", (1, 3), None)

    # when a process that it started ends
    worker = multiprocessing.get_context("spawn").Process(target=applying.finish)
    worker.start()
    worker.join()

    # then nothing is noted, nor when this one ends in which no step began, as in torchrun's own process
    assert worker.exitcode == 0
    applying.finish()
    assert not (tmp_path / "told").exists()
    # and something is once the training itself ends too early
    applying.step_begins(0)
    applying.finish()
    assert json.loads((tmp_path / "told" / "rank0.json").read_text())["step_s"] is None
