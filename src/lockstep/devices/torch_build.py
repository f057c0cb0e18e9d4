"""Describe this Python's torch and its devices; `python -m lockstep.devices.torch_build` prints JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import torch


def describe() -> dict[str, Any]:
    """Version, build and devices.

    Returns
    -------
    dict
        `torch`, `cuda` and `hip` (versions that it was built for, "" for none), `threads`, `interop_threads`,
        `cpu_capability`, `mkl` (version of oneMKL, "" for none), `kind` (of the accelerator, "" for none), `devices`
        (each with `name`, `memory_bytes` and `built_for`, whether this build has kernels for it, where that is known)
        and `backends` that work.
    """
    kind = _kind()
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "hip": getattr(torch.version, "hip", None) or "",
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": _mkl(),
        "kind": kind,
        "devices": _devices(kind),
        "backends": [name for name, works in _BACKENDS.items() if works()],
    }


def _mkl() -> str:
    found = re.search(r"Math Kernel Library Version (\d+(?:\.\d+)*)", torch.__config__.show())
    return found[1] if found else ""


def _kind() -> str:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return ""
    return str(accelerator.current_accelerator().type)


def _devices(kind: str) -> list[dict[str, Any]]:
    if not kind:
        return []
    count = torch.accelerator.device_count()
    if kind != "cuda":
        return [
            {"name": f"{kind}:{number}", "memory_bytes": 0, "built_for": None}
            for number in range(count)
        ]
    return [_cuda_device(number) for number in range(count)]


def _cuda_device(number: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(number)
    major, minor = properties.major, properties.minor
    kernels = [name for name in torch.cuda.get_arch_list() if name.startswith(("sm_", "compute_"))]
    able = [int("".join(filter(str.isdigit, name.partition("_")[2]))) for name in kernels]
    # Kernels run on every later GPU of the same generation, and code for compute_ on every later one.
    built = any(one // 10 == major and one % 10 <= minor for one in able) if able else None
    return {"name": properties.name, "memory_bytes": properties.total_memory, "built_for": built}


_BACKENDS: dict[str, Callable[[], bool]] = {
    "cuda": torch.cuda.is_available,
    "cudnn": lambda: torch.cuda.is_available() and torch.backends.cudnn.is_available(),
    "mps": torch.backends.mps.is_available,
    "xpu": lambda: hasattr(torch, "xpu") and torch.xpu.is_available(),
    "oneDNN": torch.backends.mkldnn.is_available,
    "MKL": torch.backends.mkl.is_available,
    "OpenMP": torch.backends.openmp.is_available,
    "distributed": torch.distributed.is_available,
}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe()) + "\n")
