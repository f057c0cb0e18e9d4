"""Note the set-up of a training process, for explaining differences later."""

from __future__ import annotations

import ctypes
import os
import platform
import random
import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import metadata
from typing import Any

import numpy as np
import torch

from lockstep.capture.calls.collectives import groups
from lockstep.capture.calls.kernel_context import autocast_dtypes
from lockstep.capture.process.lineage import command_line, lineage
from lockstep.capture.settings.unseeded_generators import drew_own_seed, unseeded_generators
from lockstep.capture.settings.without_draws import NO_DROPOUT, NO_SHUFFLE
from lockstep.capture.source_code.user_code import loaded_sources
from lockstep.core.arguments import MOST_SEED, integer_of
from lockstep.core.manifest import DEFAULT_RNG, FOLLOWER, MAX_STEPS, Options, RankManifest
from lockstep.core.redaction import REDACTED
from lockstep.core.script_inputs import library_versions, read_variables
from lockstep.core.secrets import masked_command
from lockstep.core.variables import known_variables
from lockstep.devices.autocast_policy import policy_of
from lockstep.devices.emulation.mode import emulated_device
from lockstep.store.schema import SCHEMA_VERSION

_PACKAGES = (
    "torch",
    "torch-npu",
    "numpy",
    "transformers",
    "accelerate",
    "deepspeed",
    "lightning",
    "triton",
    "apex",
)


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of ranks: torch.distributed's, or the launcher's."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    try:
        return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        return 0, 1


def rank_manifest(rank: int, world_size: int, options: Options) -> RankManifest:
    """Describe this process before its first recorded step."""
    manifest = RankManifest(
        schema=SCHEMA_VERSION,
        rank=f"rank{rank}",
        world_size=world_size,
        pid=os.getpid(),
        argv=masked_command(command_line()),
        python=sys.version.split()[0],
        lineage=lineage(),
    )
    manifest.platform = {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": str(os.cpu_count()),
        **_device_software(),
    }
    manifest.devices = _devices()
    manifest.packages = dict(_packages())
    manifest.environment = known_variables(os.environ)
    if options.seed is not None:
        manifest.seeds["lockstep"] = f"--seed {options.seed}"
    manifest.asked = _asked_of(options)
    manifest.sources = loaded_sources()
    manifest.libraries = library_versions(manifest.sources)
    variables = read_variables(manifest.sources, os.environ)
    manifest.variables = {REDACTED: REDACTED} if options.redact and variables else variables
    note_run_state(manifest)
    return manifest


def _asked_of(options: Options) -> dict[str, str]:
    """What of the training was asked to be another way than the script has it."""
    changes = {"dropout": NO_DROPOUT if options.no_dropout else "",
               "shuffling": NO_SHUFFLE if options.no_shuffle else "",
               "length": "" if options.max_steps is None else ended_behind(options)}  # fmt: skip
    return {name: words for name, words in changes.items() if words}


def ended_behind(options: Options) -> str:
    """Return the reason why a training ends early: the option as typed, or its follower; "" if there is none."""
    if options.ends_when_asked:
        return FOLLOWER
    return "" if options.max_steps is None else f"{MAX_STEPS} {options.max_steps}"


def _device_software() -> dict[str, str]:
    """Versions of what drives accelerators here, as far as torch tells them."""
    found = {"cuda": torch.version.cuda, "rocm": getattr(torch.version, "hip", None)}
    if torch.cuda.is_available():
        found["driver"] = _cuda_driver_version()
        found["cudnn"] = _asked(torch.backends.cudnn.version)
    return {name: str(version) for name, version in found.items() if version is not None}


def _cuda_driver_version() -> str | None:
    """CUDA version of the driver, as 13000 for 13.0; None where it is not NVIDIA's, or does not tell.

    `cuDriverGetVersion` of the CUDA driver API: torch has no public name for it, and not every release a private one.
    """
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else str(version.value)


_seed_at_import: int | None = None


def note_seed_at_import() -> None:
    """Note the seed that torch's generator on the CPU drew for itself as torch was imported: nobody has seeded it."""
    global _seed_at_import
    _seed_at_import = torch.initial_seed()


def note_seed(manifest: RankManifest) -> None:
    """Note what torch's generator was last seeded with, and which generators nobody seeded before the first step."""
    manifest.seeds["torch"] = str(torch.initial_seed())
    own = drew_own_seed() if _seed_at_import is None else torch.initial_seed() == _seed_at_import
    drawn_from = unseeded_generators()
    manifest.unseeded = [*(["torch"] if own else []), *drawn_from]
    manifest.random_states |= {
        name: text for name, text in drawn_from.items() if name == DEFAULT_RNG
    }


def note_run_state(manifest: RankManifest) -> None:
    """Refresh what the script may change while it runs: threads, precision, mixed precision."""
    cudnn = torch.backends.cudnn
    manifest.numerics = {
        "threads": str(torch.get_num_threads()),
        "interop_threads": str(torch.get_num_interop_threads()),
        "default_dtype": str(torch.get_default_dtype()),
        "float32_matmul_precision": _asked(torch.get_float32_matmul_precision),
        "tf32": f"matmul={_asked(lambda: torch.backends.cuda.matmul.allow_tf32)}"
        f" cudnn={_asked(lambda: cudnn.allow_tf32)}",
        "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "onednn": str(torch.backends.mkldnn.enabled),
        "cudnn": f"enabled={cudnn.enabled} deterministic={cudnn.deterministic}"
        f" benchmark={cudnn.benchmark}",
    }
    manifest.numerics |= _reduced_precision()
    device = emulated_device()
    if device:
        manifest.numerics["emulated_device"] = device
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        manifest.distributed = {
            "backend": str(distributed.get_backend()),
            "rank": str(distributed.get_rank()),
            "world_size": str(distributed.get_world_size()),
            **groups(),
        }


def _reduced_precision() -> dict[str, str]:
    """Where products may be taken in fewer bits, by the switches of CUDA, oneDNN and Ascend."""
    matmul = torch.backends.cuda.matmul
    switches = {"fp16": "allow_fp16_reduced_precision_reduction",
                "bf16": "allow_bf16_reduced_precision_reduction",
                "fp16_accumulation": "allow_fp16_accumulation"}  # fmt: skip
    set_to = (
        f"{name}={_asked(partial(getattr, matmul, switch))}"
        for name, switch in switches.items()
        if hasattr(matmul, switch)
    )
    found = {"reduced_precision_reduction": " ".join(set_to)}
    onednn = getattr(torch.backends.mkldnn, "matmul", None)
    if onednn is not None:
        precision = _asked(lambda: onednn.fp32_precision)
        found["onednn_fp32_precision"] = "ieee" if precision == "none" else precision  # the default
    npu = getattr(torch, "npu", None)
    if npu is not None:
        parts = (f"{name}={_asked(partial(_hf32, npu, name))}" for name in ("matmul", "conv"))
        found["hf32"] = " ".join(parts)
    return found


def _hf32(npu: Any, name: str) -> object:
    return getattr(getattr(npu, name), "allow_hf32", "unknown")


def _asked(question: Callable[[], object]) -> str:
    """An answer of torch's; it gives none where a script mixes its older settings with newer ones."""
    try:
        return str(question())
    except RuntimeError:
        return "mixed"


def note_autocast(manifest: RankManifest) -> None:
    """Note on which devices autocast is on, and to which dtype."""
    for device, dtype in autocast_dtypes().items():
        manifest.mixed_precision[f"autocast_{device}"] = str(dtype)
        if device not in manifest.autocast_policies:
            manifest.autocast_policies[device] = policy_of(device, dtype)


def seed_everything(seed: int) -> None:
    """Fix Python's, NumPy's and torch's random numbers and ask for deterministic algorithms.

    What `seed_all` of ptdbg_ascend does. `CUBLAS_WORKSPACE_CONFIG` and `PYTHONHASHSEED` must be set
    before the process starts, which `lockstep record --seed` sees to.

    Raises
    ------
    UsageError
        If the seed is outside of what NumPy takes (0 .. 2**32 - 1).
    """
    seed_generators(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


def seed_generators(seed: int) -> None:
    """Fix Python's, NumPy's and torch's random numbers, and which convolution cuDNN takes.

    Raises
    ------
    UsageError
        As `seed_everything`.
    """
    integer_of("seed", seed, least=0, most=MOST_SEED)
    random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    np.random.seed(seed)


def _devices() -> list[str]:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None or not accelerator.is_available():
        return ["cpu"]
    kind = accelerator.current_accelerator()
    names = [f"{kind}:{number}" for number in range(accelerator.device_count())]
    if kind is not None and kind.type == "cuda":
        names = [
            f"{name} {torch.cuda.get_device_name(number)}" for number, name in enumerate(names)
        ]
    return ["cpu", *names]


@cache
def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found | {"torch": torch.__version__}
