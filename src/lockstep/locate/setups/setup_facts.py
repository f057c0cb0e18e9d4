"""The one table of what a set-up is made of: each fact's name, its aspect for `lockstep check`, and where it acts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lockstep.core.finding import SetupDifference


class Acts(str, Enum):
    """The part of a step in which a difference of a fact can begin to show."""

    ANYWHERE = "anywhere"
    DRAWS = "where random numbers are drawn"
    SUMS = "in the order in which a sound kernel of one dtype adds its numbers up"
    GRADIENTS = "in gradients"
    UPDATES = "in updates"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that two set-ups may have alike or not.

    Parameters
    ----------
    name
        As it is printed.
    aspect
        The `id` of its row in the aspects of `lockstep check`.
    acts
        Where it acts.
    noted_by_both
        Whether it tells something only where both recordings note it: earlier builds, or a CPU, have none.
    """

    name: str
    aspect: str
    acts: Acts = Acts.ANYWHERE
    noted_by_both: bool = False


FROZEN, TIED, OTHER_MODE = "frozen parameters", "tied", "in training mode only"
OPTIMIZER, GROUPS, SEED = "optimizer", "parameter groups", "seed"
DEVICES, RANKS, BACKEND = "devices", "ranks", "backend"
"""Facts of the model as a whole, of its optimizers, and of the processes."""

_OF_ALL = (
    Fact(FROZEN, "frozen", Acts.GRADIENTS),
    Fact(TIED, "tied", Acts.GRADIENTS),
    Fact(OTHER_MODE, "modes"),
    Fact(OPTIMIZER, "optimizer", Acts.UPDATES),
    Fact(GROUPS, "optimizer-groups", Acts.UPDATES),
    Fact(SEED, "seeds", Acts.DRAWS),
    Fact(DEVICES, "devices"),
    Fact(RANKS, "sharding"),
    Fact(BACKEND, "sharding"),
)

NUMERICS = {
    "threads": Fact("threads", "threads", Acts.SUMS, noted_by_both=True),
    "interop_threads": Fact("interop threads", "threads", Acts.SUMS, noted_by_both=True),
    "default_dtype": Fact("default dtype", "default-dtype", noted_by_both=True),
    "float32_matmul_precision": Fact("float32 matmul precision", "matmul-precision", noted_by_both=True),
    "tf32": Fact("TF32", "matmul-precision", noted_by_both=True),
    "hf32": Fact("HF32", "matmul-precision", noted_by_both=True),
    "reduced_precision_reduction": Fact("reductions in fewer bits", "matmul-precision", noted_by_both=True),
    "onednn_fp32_precision": Fact("oneDNN float32 precision", "matmul-precision", noted_by_both=True),
    "deterministic_algorithms": Fact("deterministic algorithms", "deterministic", Acts.SUMS, noted_by_both=True),
    "cudnn": Fact("cuDNN", "deterministic", noted_by_both=True),
    "onednn": Fact("oneDNN", "kernels", Acts.SUMS, noted_by_both=True),
    "emulated_device": Fact("emulated device", "kernels"),
}  # fmt: skip
"""By the key in `RankManifest.numerics`; a framework may note more."""

PLATFORM = {
    "cpu": Fact("CPU capability", "kernels"),
    "machine": Fact("machine", "devices"),
    "system": Fact("system", "host"),
    "cuda": Fact("CUDA", "kernels", noted_by_both=True),
    "rocm": Fact("ROCm", "kernels", noted_by_both=True),
    "cudnn": Fact("cuDNN version", "kernels", noted_by_both=True),
    "driver": Fact("driver", "devices", noted_by_both=True),
}
"""By the key in `RankManifest.platform`, in the order of print."""

_ORDERING_VARIABLES = (
    "OMP_NUM_THREADS", "OMP_SCHEDULE", "OMP_DYNAMIC", "MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS",
    "KMP_DETERMINISTIC_REDUCTION",
)  # fmt: skip

FACTS = {
    fact.name: fact
    for fact in (
        *_OF_ALL,
        *NUMERICS.values(),
        *PLATFORM.values(),
        *(Fact(name, "environment", Acts.SUMS) for name in _ORDERING_VARIABLES),
    )
}
"""Every fact by its name."""


def named(name: str, aspect: str) -> Fact:
    """Return the fact of a name; one that is in no table is of this aspect and may act anywhere."""
    return FACTS.get(name) or Fact(name, aspect)


def fact_of(difference: SetupDifference) -> Fact:
    """Return the fact that a difference is one of."""
    return named(SEED if difference.setting == SEED else difference.name, "")
