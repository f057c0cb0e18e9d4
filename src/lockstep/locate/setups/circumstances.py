"""Compare the versions, threads, precision, devices and environment of two runs: context, never an origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lockstep.core.finding import SetupDifference
from lockstep.core.manifest import RankManifest
from lockstep.core.redaction import is_withheld

_ABSENT = "-"
"""How a value reads that one side does not have."""

_OF_THIS_RUN = frozenset(
    {
        "CUDA_VISIBLE_DEVICES", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "RANK", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHINDUCTOR_CACHE_DIR", "WORLD_SIZE",
    }
)  # fmt: skip
"""Environment variables that name a place or a process, and say nothing of numbers."""

_OF_A_LAUNCHER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCHINDUCTOR_CACHE")

_WORDS = {
    "interop_threads": "interop threads",
    "default_dtype": "default dtype",
    "float32_matmul_precision": "float32 matmul precision",
    "deterministic_algorithms": "deterministic algorithms",
    "onednn": "oneDNN",
    "reduced_precision_reduction": "reductions in fewer bits",
    "onednn_fp32_precision": "oneDNN float32 precision",
    "hf32": "HF32",
    "cudnn": "cuDNN",
    "tf32": "TF32",
    "emulated_device": "emulated device",
}

_ONLY_WHERE_SET = frozenset({"emulated_device"})
"""Numerics that stand only where they are in use; others that one side lacks were not noted by its build."""

_PLATFORM = {
    "cpu": "CPU capability", "machine": "machine", "system": "system", "cuda": "CUDA", "rocm": "ROCm",
    "cudnn": "cuDNN version", "driver": "driver",
}  # fmt: skip
SEED = "seed"
"""The setting that a generator's first number is."""

_SINCE = frozenset({"cuda", "rocm", "cudnn", "driver"})
"""What earlier builds did not note, and CPUs do not have."""


def circumstances(reference: RankManifest, candidate: RankManifest) -> list[SetupDifference]:
    """Return the differences between the set-ups of two processes, in the order of print."""
    return [
        one
        for one in every_circumstance(reference, candidate)
        if one.reference != one.candidate and is_known(one)
    ]


def is_known(one: SetupDifference) -> bool:
    """Return whether both sides recorded it; a masked or redacted value is not known."""
    return not (is_withheld(one.reference) or is_withheld(one.candidate))


def every_circumstance(reference: RankManifest, candidate: RankManifest) -> list[SetupDifference]:
    """Return all noted circumstances of both processes, alike or not, in the order of print."""
    seeds = {_seed_of(name) for name in {**reference.seeds, **candidate.seeds}}
    return [
        SetupDifference(name, left, right, SEED if name in seeds else "")
        for (name, left), right in zip(
            _told(reference, candidate),
            (value for _, value in _told(candidate, reference)),
            strict=True,
        )
    ]


def _told(manifest: RankManifest, other: RankManifest) -> Iterator[tuple[str, str]]:
    """Everything that is compared, by name; the two runs of a pair tell the same names in the same order."""
    yield "python", manifest.python
    for name, mine in _both(manifest.packages, other.packages):
        yield name, mine
    for name, mine in _both(manifest.numerics, other.numerics):
        noted = name in _ONLY_WHERE_SET or name in manifest.numerics.keys() & other.numerics.keys()
        yield _WORDS.get(name, name), mine if noted else _ABSENT
    for name, mine in _both(manifest.mixed_precision, other.mixed_precision):
        yield name.replace("_", " "), mine
    yield "devices", ", ".join(manifest.devices) or _ABSENT
    for key, name in _PLATFORM.items():
        noted = key not in _SINCE or key in manifest.platform.keys() & other.platform.keys()
        yield name, manifest.platform.get(key, _ABSENT) if noted else _ABSENT
    yield "ranks", str(manifest.world_size)
    yield "backend", manifest.distributed.get("backend", _ABSENT)
    for name, mine in _both(manifest.seeds, other.seeds):
        yield _seed_of(name), mine
    if manifest.wrappers and other.wrappers:
        yield from _both(manifest.wrappers, other.wrappers)
    for name, mine in _both(manifest.asked, other.asked):
        yield name, mine
    for name, mine in _both(manifest.environment, other.environment):
        if name not in _OF_THIS_RUN and not name.startswith(_OF_A_LAUNCHER):
            yield name, mine


def _seed_of(generator: str) -> str:
    return f"seed ({generator})"


def _both(mine: Mapping[str, str], others: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What either side has a value for, and this side's."""
    for name in sorted(mine.keys() | others.keys()):
        yield name, mine.get(name, _ABSENT)
