"""Migrated scripts run: guarded ones as before, unguarded ones also where there is no CUDA."""

from __future__ import annotations

import subprocess
import warnings
from pathlib import Path

import pytest
import torch
from migrating import migrated

GUARDED = """import argparse
import torch
import torch.nn as nn
from torch.cuda.amp import GradScaler, autocast

parser = argparse.ArgumentParser()
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args()
use_cuda = not args.no_cuda and torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
torch.manual_seed(1)
if use_cuda:
    torch.cuda.manual_seed_all(1)
model = nn.Linear(4, 2).to(device)
if torch.cuda.device_count() > 1:
    model = model.cuda(0)
scaler = GradScaler(enabled=use_cuda)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    batch = torch.randn(8, 4, device=device)
    with autocast(enabled=use_cuda):
        loss = model(batch).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(f"{step} {loss.item()!r} {loss.is_cuda} {device.type == 'cuda'} {loss.device}")
    if loss.is_cuda:
        torch.cuda.synchronize()
"""


def printed(python: Path, path: Path, code: str) -> str:
    path.write_text(code)
    done = subprocess.run([python, str(path)], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_guarded_script_prints_the_same_to_the_last_bit(programs: Path, tmp_path: Path) -> None:
    after, python = migrated(GUARDED), programs / "python"
    assert after != GUARDED
    before = printed(python, tmp_path / "before.py", GUARDED)
    assert printed(python, tmp_path / "after.py", after) == before


UNGUARDED = {
    "move": "x = torch.ones(2).cuda(); result = x.sum().item()",
    "move to an index": "x = torch.ones(2).cuda(0); result = x.sum().item()",
    "move to no index": "gpu = None\nx = torch.ones(2).cuda(gpu); result = x.sum().item()",
    "module": "m = torch.nn.Linear(2, 2).cuda(); result = m.weight.numel() / 2",
    "to": "x = torch.ones(2).to('cuda'); result = x.sum().item()",
    "to an index": "x = torch.ones(2).to('cuda:0', torch.float64); result = x.sum().item()",
    "device": "x = torch.ones(2, device='cuda'); result = x.sum().item()",
    "device of a rank": "rank = 0\nx = torch.ones(2, device=f'cuda:{rank}'); result = x.sum().item()",
    "device call": "rank = 0\nd = torch.device('cuda', rank)\nresult = torch.ones(2, device=d).sum().item()",
    "formatted": "rank = 0\nx = torch.ones(2, device='cuda:%d' % rank); result = x.sum().item()",
    "tensor type": "result = torch.cuda.FloatTensor([1, 1]).sum().item()",
    "type": "result = torch.ones(2).type(torch.cuda.DoubleTensor).sum().item()",
    "mixed precision": (
        "from torch.cuda.amp import GradScaler, autocast\n"
        "m = torch.nn.Linear(2, 1).cuda()\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
        "s = GradScaler()\nwith autocast():\n    loss = m(torch.ones(1, 2).cuda()).sum()\n"
        "s.scale(loss).backward(); s.step(o); s.update(); result = 2.0"
    ),
    "is_cuda": "x = torch.ones(2).cuda()\nresult = 2.0 if x.is_cuda or True else 0",
    "synchronize": "torch.ones(2).cuda(); torch.cuda.synchronize(); result = 2.0",
    "set_device": "torch.cuda.set_device(0); torch.ones(2).cuda(); result = 2.0",
    "current_device": "torch.ones(2).cuda(); torch.cuda.current_device(); result = 2.0",
    "streams": (
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s):\n    x = torch.ones(2).cuda()\n"
        "torch.cuda.current_stream().wait_stream(s)\nresult = x.sum().item()"
    ),
    "memory": (
        "x = torch.ones(2).cuda(); torch.cuda.empty_cache(); torch.cuda.device_count()\n"
        "torch.cuda.max_memory_allocated(); torch.cuda.manual_seed_all(1); torch.cuda.manual_seed(1)\n"
        "result = x.sum().item()"
    ),
    "loading": (
        "import io\nf = io.BytesIO(); torch.save(torch.ones(2), f); f.seek(0)\n"
        "x = torch.load(f, map_location=lambda storage, location: storage.cuda(0)).cuda()\n"
        "result = x.sum().item()"
    ),
    "loading to a string": (
        "import io\nf = io.BytesIO(); torch.save(torch.ones(2), f); f.seek(0)\n"
        "x = torch.load(f, map_location='cuda:0').cuda()\nresult = x.sum().item()"
    ),
}


def run(code: str) -> object:
    namespace: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells that there is no CUDA here
        exec(compile(code, "script", "exec"), namespace)
    return namespace["result"]


@pytest.mark.parametrize("name", UNGUARDED)
def test_an_unguarded_script_runs_on_the_device_there_is(name: str) -> None:
    # given a script that asks for CUDA without looking whether there is any
    code = f"import torch\n{UNGUARDED[name]}\n"
    if not torch.cuda.is_available():
        with pytest.raises((AssertionError, AttributeError, RuntimeError, TypeError)):
            run(code)
    # when it is migrated, then it runs here
    assert run(migrated(code)) == 2.0


def test_processes_meet_over_the_backend_of_the_device_there_is(
    programs: Path, tmp_path: Path
) -> None:
    # given a script that asks for nccl in two of its spellings
    code = (
        "import torch\nimport torch.distributed as dist\n"
        f"store = 'file://{tmp_path}/store'\n"
        "dist.init_process_group('nccl', init_method=store, rank=0, world_size=1)\n"
        "x = torch.ones(2).cuda()\ndist.all_reduce(x)\nprint(x.sum().item())\n"
        "dist.destroy_process_group()\n"
    )
    # when it is migrated, then it runs in a process of its own
    assert printed(programs / "python", tmp_path / "after.py", migrated(code)) == "2.0\n"
