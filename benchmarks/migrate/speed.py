"""How fast the command is, and what it loads: whole processes, on two cores where there are more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

MIGRATE = (sys.executable, "-m", "lockstep", "migrate")
CORES = 2

_BLOCK = '''

def train_{n}(model, loader, optimizer, scaler, args):
    """One epoch on CUDA, number {n}."""
    torch.cuda.set_device(args.gpu)
    model = model.cuda(args.gpu)
    criterion = torch.nn.CrossEntropyLoss().cuda()
    started = torch.cuda.Event(enable_timing=True)
    total = torch.zeros(1, device="cuda")
    for step, (images, labels) in enumerate(loader):
        images, labels = images.cuda(non_blocking=True), labels.to("cuda:{m}")
        if images.is_cuda and step % 10 == 0:
            print(f"{{step}}: {{torch.cuda.memory_allocated() / 2**20:.0f}} MiB on cuda")
        with torch.cuda.amp.autocast(enabled=args.amp):
            loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.detach()
    torch.cuda.synchronize()
    return total.item() / len(loader)
'''


def generated(lines: int) -> str:
    """A script of about so many lines, every third of which has a site."""
    block = _BLOCK.count("\n")
    parts = [_BLOCK.format(n=number, m=number % 8) for number in range(lines // block)]
    text = "import torch\n" + "".join(parts)
    return text + "# end\n" * (lines - text.count("\n"))


def seconds(command: list[str], *, cores: int = CORES) -> float:
    """From the start of a process to its end, held to a number of cores.

    Raises
    ------
    RuntimeError
        If it ends as no run of `migrate` may end.
    """
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    started = time.perf_counter()
    done = subprocess.run(
        _held(command, available[:cores]), capture_output=True, text=True, check=False
    )
    taken = time.perf_counter() - started
    if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return taken


def _held(command: list[str], cores: list[int]) -> list[str]:
    """The command as started by a process that first gives up the other cores."""
    if not cores:
        return command
    held = f"import os, sys; os.sched_setaffinity(0, {cores}); os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", held, *command]


def modules_loaded(command: list[str]) -> set[str]:
    """The names of all modules that a run of the command imports in its own process."""
    timed = [command[0], "-X", "importtime", *command[1:]]
    done = subprocess.run(timed, capture_output=True, text=True, check=False)
    return set(re.findall(r"^import time:.*\|\s+([\w.]+)$", done.stderr, flags=re.MULTILINE))


def write_generated(folder: Path, lines: int) -> Path:
    """Write the script."""
    file = folder / f"generated_{lines}.py"
    file.write_text(generated(lines))
    return file
