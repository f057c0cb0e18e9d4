"""A device in name, `fake`, for tests: torch takes its memory for an accelerator's; see `fake_device.cpp`."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import torch
from torch.utils.cpp_extension import load

NAME = "fake"
HERE = Path(__file__).parent


def register(built: Path | None = None) -> None:
    """Compile the device into a folder, which takes a minute unless it was done before, and register it."""
    built = built or Path(os.environ["LOCKSTEP_FAKE_DEVICE"])
    built.mkdir(parents=True, exist_ok=True)
    load(
        "lockstep_fake_device", [str(HERE / "fake_device.cpp")], build_directory=str(built),
        is_python_module=False, extra_cflags=["-O0"], verbose=False,
    )  # fmt: skip
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True  # type: ignore[attr-defined]
    module.device_count = lambda: 1  # type: ignore[attr-defined]
    module.current_device = lambda: 0  # type: ignore[attr-defined]
    module.is_initialized = lambda: True  # type: ignore[attr-defined]
    module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    module.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()


if __name__ == "__main__":
    register(Path(sys.argv[1]))
