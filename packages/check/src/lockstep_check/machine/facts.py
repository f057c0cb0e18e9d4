"""Collect facts about this machine: from system files, vendors' programs, and a child that asks torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from lockstep_check.machine.unseen import Unseen, counters_unseen, unseen

_TIMEOUT_S = 120
_QUICK_S = 20
_CPUS = Path("/sys/devices/system/cpu")
_IMAGES = ("pillow", "pillow-simd", "opencv-python", "opencv-python-headless")
_BESIDE_TORCH = ("torchvision", "torchaudio", "torch-npu")
_GPU_FIELDS = "name,driver_version,ecc.errors.uncorrected.volatile.total"


@dataclass(frozen=True)
class Machine:
    """The facts about a machine; None or empty if unknown.

    torch: As `lockstep.devices.torch_build` tells it; None where it failed, `torch_failed` says why.
    packages: Versions of libraries for images and of those that are built for one torch.
    wanted_torch: The torch that such a package wants, by its name.
    load: How many processes ran or waited to run, as a mean over the last minute.
    gpus: Name, driver and count of uncorrected errors of NVIDIA's devices.
    unseen: What of accelerators could not be seen, and why.
    """

    torch: Mapping[str, Any] | None = None
    torch_failed: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    wanted_torch: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    load: float | None = None
    governors: Sequence[str] = ()
    free_memory_bytes: int | None = None
    total_memory_bytes: int | None = None
    shared_memory_bytes: int | None = None
    disks: Mapping[str, int] = field(default_factory=dict)
    open_files: int | None = None
    gpus: Sequence[Sequence[str]] = ()
    unseen: Sequence[Unseen] = ()
    ascend_folder: str = ""
    has_npu: bool = False
    has_kfd: bool = False
    may_use_kfd: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


def look() -> Machine:
    """Look at this machine; takes as long as torch takes to load."""
    load = _load()  # before the child that asks torch, which would count
    torch, why = _torch()
    memory = _memory()
    packages = {name: number for name in (*_IMAGES, *_BESIDE_TORCH) if (number := _version(name))}
    kfd = Path("/dev/kfd")
    gpus, why_no_gpus = _gpus()
    return Machine(
        torch=torch,
        torch_failed=why,
        packages=packages,
        wanted_torch={name: _wanted_torch(name) for name in _BESIDE_TORCH if name in packages},
        cores=_cores(),
        load=load,
        governors=sorted(
            {text for file in _CPUS.glob("cpu*/cpufreq/scaling_governor") if (text := _read(file))}
        ),
        free_memory_bytes=memory[0],
        total_memory_bytes=memory[1],
        shared_memory_bytes=_size_of(Path("/dev/shm")),
        disks={str(folder): shutil.disk_usage(folder).free for folder in {Path.cwd()}},
        open_files=_open_files(),
        gpus=gpus,
        unseen=[*unseen(Path("/"), torch), *counters_unseen(gpus, why_no_gpus)],
        ascend_folder=next((one for one in _ascend_folders() if Path(one).is_dir()), ""),
        has_npu=any(Path("/dev").glob("davinci[0-9]*")),
        has_kfd=kfd.exists(),
        may_use_kfd=not kfd.exists() or os.access(kfd, os.R_OK | os.W_OK),
        environment=dict(os.environ),
    )


def _torch() -> tuple[Mapping[str, Any] | None, str]:
    """Asked in a child: torch is large, and may crash where it does not belong to the machine."""
    command = [sys.executable, "-m", "lockstep.devices.torch_build"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return None, lines[-1] if lines else f"it ended with code {done.returncode}"
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None, "it said something else than was asked"
    return (
        (answer, "")
        if isinstance(answer, dict)
        else (None, "it said something else than was asked")
    )


def _cores() -> int | None:
    """Cores that this process may use, by its affinity and its container's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count()
    quota, _, period = (_read(Path("/sys/fs/cgroup/cpu.max")) or "max").partition(" ")
    if cores and quota.isdigit() and period.isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _load() -> float | None:
    """How busy the machine is; None where the system does not tell."""
    getloadavg = getattr(os, "getloadavg", None)
    with suppress(OSError):
        return None if getloadavg is None else float(getloadavg()[0])
    return None


def _memory() -> tuple[int | None, int | None]:
    """Bytes free and in all, by the system and by the container's limit."""
    text = _read(Path("/proc/meminfo"))
    rows = dict(line.partition(":")[::2] for line in text.splitlines())
    found: dict[str, int] = {}
    for name in ("MemAvailable", "MemTotal"):
        number = rows.get(name, "").split()
        if number and number[0].isdigit():
            found[name] = int(number[0]) * 1024
    limit, used = (_read(Path(f"/sys/fs/cgroup/memory.{name}")) for name in ("max", "current"))
    free, total = found.get("MemAvailable"), found.get("MemTotal")
    if limit.isdigit() and used.isdigit() and free is not None and total is not None:
        free, total = min(free, max(0, int(limit) - int(used))), min(total, int(limit))
    return free, total


def _size_of(folder: Path) -> int | None:
    return shutil.disk_usage(folder).total if folder.is_dir() else None


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _gpus() -> tuple[list[list[str]], str]:
    """What NVIDIA's program tells of its devices, and what it says where it fails."""
    if shutil.which("nvidia-smi") is None:
        return [], ""
    command = ["nvidia-smi", f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_QUICK_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return [], lines[-1] if lines else f"it ended with code {done.returncode}"
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == 3], ""


def _ascend_folders() -> tuple[str, ...]:
    return "/usr/local/Ascend", str(Path.home() / "Ascend")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _wanted_torch(name: str) -> str:
    """The one version of torch that a package wants, "" where several do."""
    for line in metadata.requires(name) or ():
        bare = line.partition(";")[0].replace("(", "").replace(")", "").replace(" ", "")
        if bare.startswith("torch=="):
            return bare.removeprefix("torch==")
    return ""


def _read(file: Path) -> str:
    """What a file of the system says; "" where it says nothing."""
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
