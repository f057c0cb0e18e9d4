"""`make soak-cache`: kills the cache's daemon, its readers and its writers at random moments, again and again.

Three trainings read one data set for as long as it takes, each with two workers, and hold every batch against the data
set's own; the memory is too small for all samples, so that they spill. At the end no batch was wrong, no training had
died of a killed daemon, and no file is left.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from lockstep.core.errors import LockstepError
from lockstep_cache import CachedDataset, attachment, client
from lockstep_cache import messages as m
from lockstep_cache.client import asked
from lockstep_cache.places import address_of


class Rows(Dataset[Any]):
    """Samples of 20 KB and more."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return index, torch.rand(5000 + index, generator=generator)


def read(address: str, workers: int) -> None:
    """A training: reads epoch after epoch, and holds each sample against the data set's own."""
    attachment.AGAIN_S = client.AGAIN_S = 0.2
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    plain, expected = Rows(), {}
    cached = CachedDataset(plain, address=address)
    while True:
        order = torch.randperm(len(plain)).tolist()
        for batch in DataLoader(cached, 10, sampler=order, num_workers=workers, collate_fn=list):
            for index, sample in batch:
                if index not in expected:
                    expected[index] = plain[index][1]
                if not torch.equal(sample, expected[index]):
                    print("WRONG", index, flush=True)
            print("batch", flush=True)


WORKERS = (0, 2, 2)


class Soak:
    """A daemon and three trainings, which are started again when they are killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.address = str(folder / "socket")
        self.daemon = self.start_daemon()
        self.outputs: list[Path] = []
        self.output_of: dict[int, Path] = {}
        self.readers = [self.start_reader(workers) for workers in WORKERS]
        self.unexpected = 0
        self.lost_a_worker: set[Path] = set()

    def start_daemon(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "lockstep",
            "cache",
            "start",
            "--foreground",
            "--address",
            self.address,
        ]
        options = ["--memory", "2MB", "--spill", str(self.folder), "--spill-bytes", "1MB"]
        return subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)

    def start_reader(self, workers: int) -> int:
        """Fork one, in a group of its own with its workers."""
        output = self.folder / f"reader{len(self.outputs)}"
        self.outputs.append(output)
        child = os.fork()
        if child:
            self.output_of[child] = output
            return child
        os.setsid()
        file = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        try:
            read(self.address, workers)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def kill_one(self) -> str:
        """Kill the daemon, a training, or a worker of one, which ends its training."""
        which = self.chance.randrange(5)
        if which < 2:
            self.daemon.kill()
            self.daemon.wait()
            self.daemon = self.start_daemon()
            return "daemon"
        place = which - 2
        reader = self.readers[place]
        if os.waitpid(reader, os.WNOHANG)[0]:
            self.unexpected += 1
        else:
            victims = children_of(reader)
            if victims and self.chance.random() < 0.5:  # a worker first: its training ends by that
                self.lost_a_worker.add(self.output_of[reader])
                end(self.chance.choice(victims))
                time.sleep(0.1)
            end_group(reader)
        self.readers[place] = self.start_reader(WORKERS[place])
        return "training"

    def finish(self) -> tuple[int, int]:
        """Batches that were read, and those that were wrong."""
        for reader in self.readers:
            end_group(reader)
        for _ in range(100):
            try:
                asked(address_of(self.address), m.Stop(), m.Made)
                break
            except LockstepError:
                time.sleep(0.1)
        self.daemon.wait(30)
        texts = [output.read_text(errors="replace") for output in self.outputs]
        for output, text in zip(self.outputs, texts, strict=True):
            if "Traceback" in text and output not in self.lost_a_worker:
                print(text[-2000:])
                self.unexpected += 1
        return sum(text.count("batch\n") for text in texts), sum(
            text.count("WRONG") for text in texts
        )


def children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_group(pid: int) -> None:
    """Kill a training and its workers."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def main(count: int) -> int:
    with tempfile.TemporaryDirectory(prefix="lockstep-soak-") as folder:
        soak = Soak(Path(folder), seed=count)
        killed = {"daemon": 0, "training": 0}
        for _ in range(count):
            time.sleep(soak.chance.uniform(0.1, 2.5))
            killed[soak.kill_one()] += 1
        batches, wrong = soak.finish()
        left = [one for one in Path(folder).iterdir() if not one.name.startswith("reader")]
        print(f"{killed['daemon']} daemons and {killed['training']} trainings killed;", end=" ")
        print(
            f"{batches} batches, {wrong} wrong, {soak.unexpected} ended by themselves, {len(left)} files left"
        )
        return int(bool(wrong or soak.unexpected or left or not batches))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
