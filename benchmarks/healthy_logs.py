"""Logs of real runs that end well, as talkative as they can be made, and `diagnose` over them: nothing may match.

`python benchmarks/healthy_logs.py [--megabytes 50] [--folder DIR] [LOG...]` runs trainings of several frameworks and
the tools around them until there are so many megabytes, behind LOGs that are given, and prints what matches, with its
line. Messages that say of themselves that they are harmless are printed and do not count. A run that fails is named and
left out. Logs are not kept unless a folder is given.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lockstep_check.logs.known_messages import Severity, known_messages
from lockstep_check.logs.scan import Findings, Scanner

TRAINING = """
import os, sys, logging
import torch
what, steps = sys.argv[1], int(sys.argv[2])
logging.basicConfig(level=logging.DEBUG if what == "logging" else logging.WARNING)
torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.1),
    torch.nn.Linear(8 * 36, 10),
)
data = torch.utils.data.TensorDataset(torch.randn(256, 1, 8, 8), torch.randint(0, 10, (256,)))
loss_of = torch.nn.functional.cross_entropy
if what == "trainer":
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(8 * steps)]
    arguments = TrainingArguments(
        "out", max_steps=steps, logging_steps=1, use_cpu=True, report_to=[], log_level="debug", save_strategy="no",
        per_device_train_batch_size=4,
    )
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16))
    print(Trainer(model, arguments, train_dataset=rows).train())
    raise SystemExit
if what == "lightning":
    import lightning
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net
        def training_step(self, batch, number):
            loss = loss_of(self.net(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())
    trainer = lightning.Trainer(max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(data, 16))
    raise SystemExit
loader = torch.utils.data.DataLoader(data, 16, num_workers=2 if what == "workers" else 0)
model, optimizer = net, torch.optim.AdamW(net.parameters())
if what == "accelerate":
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
if what == "ddp":
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(net)
if what == "compile":
    model = torch.compile(net)
done = 0
while done < steps:
    for batch, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(model(batch), labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        done += 1
        print(f"step {done}/{steps} loss {loss.item():.4f} grad_norm {norm:.3f} errors 0 nan 0 overflow 0", flush=True)
        if done == steps:
            break
if what == "ddp":
    torch.distributed.destroy_process_group()
"""

SUITE = """
import logging, pytest, torch
@pytest.mark.parametrize("number", range(400))
def test_error_is_raised_where_a_shape_is_wrong(number):
    logging.getLogger("train").error("shape %s is refused, as it should be", number)
    with pytest.raises(RuntimeError):
        torch.ones(2, 3) @ torch.ones(2, 3)
"""


@dataclass(frozen=True)
class Run:
    """One run: what it is called, its command, and what its environment has beside."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def runs() -> Iterator[Run]:
    """Runs, the quick and varied ones first, and then for as long as more is wanted."""
    detail = {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO"}
    compiled = {
        "TORCH_LOGS": "+dynamo,+aot,+inductor,graph_code,output_code,recompiles,guards",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }
    verbose = {"ONEDNN_VERBOSE": "2", "MKL_VERBOSE": "1", "OMP_DISPLAY_ENV": "verbose"}
    yield _run("dmesg", "dmesg")
    yield _run("packages", "cat /var/log/dpkg.log")
    yield _run("pip", "python -m pip -vvv list --disable-pip-version-check")
    yield _run("doctor", "python -m lockstep doctor --variables")
    yield _run("pytest", "python -m pytest -vv -rA -p no:cacheprovider --log-level=DEBUG suite.py")
    yield _run("importtime", "python -v -X importtime train.py plain 5")
    for what in ("trainer", "lightning", "accelerate", "workers", "logging"):
        yield _run(what, f"python train.py {what} 300")
    yield _run("ddp", "torchrun --nproc_per_node 2 --standalone train.py ddp 200", detail)
    yield _run("recorded", "python -m lockstep record -o ref -- python train.py plain 50")
    for number in itertools.count(1):
        what = ("trainer", "lightning", "accelerate")[number % 3]
        yield _run(f"imports-{number}", f"python -vv train.py {what} 20")
        yield _run(f"compile-{number}", "python train.py compile 5", compiled)
        yield _run(f"kernels-{number}", "python train.py plain 2000", verbose)


def _run(name: str, line: str, environment: dict[str, str] | None = None) -> Run:
    """A run whose programs are those of this environment, where it has them."""
    folder = Path(sys.executable).parent
    words = (
        str(folder / word) if word in ("python", "torchrun") else word for word in line.split()
    )
    return Run(name, tuple(words), environment or {})


def logged(run: Run, place: Path) -> Path | None:
    """Run it, with all that it prints in a file; None where it fails."""
    file = place / f"{run.name}.log"
    with file.open("wb") as stream:
        try:
            done = subprocess.run(
                run.command, cwd=place, stdout=stream, stderr=subprocess.STDOUT, check=False, timeout=600,
                env={**os.environ, **run.environment},
            )  # fmt: skip
        except OSError as error:
            print(f"left out: {run.name}, {error}")
            return None
    if done.returncode:
        print(f"left out: {run.name}, exit code {done.returncode}")
        return None
    return file


def main() -> int:
    """Make the logs and look through them; 1 where anything matches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="*", type=Path, help="more logs of runs that ended well")
    parser.add_argument("--megabytes", type=float, default=50.0)
    parser.add_argument("--folder", type=Path, help="where the logs are kept")
    given = parser.parse_args()
    scanner, size, found = Scanner(known_messages()), 0, Findings()
    with tempfile.TemporaryDirectory() as name:
        place = (Path(name) if given.folder is None else given.folder).absolute()
        place.mkdir(parents=True, exist_ok=True)
        (place / "train.py").write_text(TRAINING)
        (place / "suite.py").write_text(SUITE)
        for file in itertools.chain(given.logs, (logged(run, place) for run in runs())):
            if file is None:
                continue
            with file.open("rb") as stream:
                scanner.scan(file.name, stream, found)
            size += file.stat().st_size
            print(
                f"{file.name}: {file.stat().st_size / 1e6:.1f} MB, {size / 1e6:.1f} MB by now",
                flush=True,
            )
            if size >= given.megabytes * 1e6:
                break
    asked = 0
    for one in found.found.values():
        asked += one.message.severity is not Severity.HARMLESS
        print(f"{one.message.severity.value} {one.message.name}, {one.count} times: {one.first}")
        print(f"    {one.text[:200]}")
    print(f"{asked} messages match in {size / 1e6:.1f} MB of logs of runs that ended well")
    return 1 if asked else 0


if __name__ == "__main__":
    sys.exit(main())
