"""The one table of the facts of a set-up, with the aspect for `lockstep check`; versions and devices compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from lockstep.core.finding import SetupDifference
from lockstep.core.manifest import RankManifest
from lockstep.core.redaction import is_withheld

Policy = dict[str, str]
"""By operator, the dtype of its results under autocast."""


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

    name: As it is printed.
    aspect: The `id` of its row in the aspects of `lockstep check`.
    acts: Where it acts.
    noted_by_both: Whether it tells something only where both recordings note it: earlier builds, or a CPU, have none.
    """

    name: str
    aspect: str
    acts: Acts = Acts.ANYWHERE
    noted_by_both: bool = False


FROZEN, TIED, OTHER_MODE = "frozen parameters", "tied", "in training mode only"
OPTIMIZER, GROUPS = "optimizer", "parameter groups"
DEVICES, RANKS, BACKEND = "devices", "ranks", "backend"
"""Facts of the model as a whole, of its optimizers, and of the processes."""

SEED = "seed"
"""The name of the fact that tells how a run was seeded."""

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
    """Return the fact of a set-up by its name; one that is in no table is of this aspect and may act anywhere."""
    return FACTS.get(name) or Fact(name, aspect)


def fact_of(difference: SetupDifference) -> Fact:
    """Return the fact that a difference is one of."""
    return named(SEED if difference.setting == SEED else difference.name, "")


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


def circumstances(reference: RankManifest, candidate: RankManifest) -> list[SetupDifference]:
    """Return the differences between the set-ups of two processes, in the order of print."""
    return [
        one
        for _, one in every_circumstance(reference, candidate)
        if one.reference != one.candidate and is_known(one)
    ]


def names_this_run(variable: str) -> bool:
    """Return whether an environment variable names a place or a process, and says nothing of numbers."""
    return variable in _OF_THIS_RUN or variable.startswith(_OF_A_LAUNCHER)


def is_known(one: SetupDifference) -> bool:
    """Return whether both sides recorded what differs; a masked or redacted value is not known."""
    return not (is_withheld(one.reference) or is_withheld(one.candidate))


def every_circumstance(
    reference: RankManifest, candidate: RankManifest
) -> list[tuple[Fact, SetupDifference]]:
    """Return all noted circumstances of both processes, alike or not, each with its fact, in the order of print."""
    return [
        (fact, SetupDifference(name, left, right, SEED if fact.name == SEED else ""))
        for (fact, name, left), (*_, right) in zip(
            _told(reference, candidate), _told(candidate, reference), strict=True
        )
    ]


def _told(manifest: RankManifest, other: RankManifest) -> Iterator[tuple[Fact, str, str]]:
    """Each fact that is compared, its name and value; the two runs of a pair tell the same ones in the same order."""
    yield from _of("versions", {"python": manifest.python}, {"python": other.python})
    yield from _of("versions", manifest.packages, other.packages)
    yield from _noted(
        NUMERICS, sorted({*manifest.numerics, *other.numerics}), manifest.numerics, other.numerics
    )
    for name, mine in _both(manifest.mixed_precision, other.mixed_precision):
        yield _row(named(name.replace("_", " "), "amp"), mine)
    if (policy := policy_of(manifest)) and (others := policy_of(other)):
        yield _row(named("autocast's rules for", "amp"), policy_words(policy, others) or _ABSENT)
    yield _row(named(DEVICES, ""), ", ".join(manifest.devices) or _ABSENT)
    yield from _noted(PLATFORM, PLATFORM, manifest.platform, other.platform)
    yield _row(named(RANKS, ""), str(manifest.world_size))
    yield _row(named(BACKEND, ""), manifest.distributed.get("backend", _ABSENT))
    for name, mine in _both(manifest.seeds, other.seeds):
        yield named(SEED, ""), f"seed ({name})", mine
    if manifest.wrappers and other.wrappers:
        yield from _of("wrappers", manifest.wrappers, other.wrappers)
    yield from _of("asked", manifest.asked, other.asked)
    for name, mine in _both(manifest.environment, other.environment):
        if not names_this_run(name):
            yield _row(Fact(name, "environment"), mine)


def _row(fact: Fact, mine: str) -> tuple[Fact, str, str]:
    return fact, fact.name, mine


def _of(
    aspect: str, mine: Mapping[str, str], others: Mapping[str, str]
) -> Iterator[tuple[Fact, str, str]]:
    """What either side has of an aspect, under its own name."""
    for name, value in _both(mine, others):
        yield _row(Fact(name, aspect), value)


def _noted(
    table: Mapping[str, Fact],
    keys: Iterable[str],
    mine: Mapping[str, str],
    others: Mapping[str, str],
) -> Iterator[tuple[Fact, str, str]]:
    """What a table has facts of; what is in no table counts where both note it."""
    for key in keys:
        fact = table.get(key) or Fact(key, "environment", noted_by_both=True)
        noted = not fact.noted_by_both or (key in mine and key in others)
        yield _row(fact, mine.get(key, _ABSENT) if noted else _ABSENT)


def _both(mine: Mapping[str, str], others: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What either side has a value for, and this side's."""
    for name in sorted(mine.keys() | others.keys()):
        yield name, mine.get(name, _ABSENT)


def policy_of(manifest: RankManifest) -> Policy:
    """Return the rules of the one device that autocast was on for; none where it was on for several."""
    policies = list(manifest.autocast_policies.values())
    return policies[0] if len(policies) == 1 else {}


def policy_words(mine: Policy, other: Policy) -> str:
    """Return the rules that the other device does not have, as in `layer_norm, softmax float32`."""
    by_dtype: dict[str, list[str]] = {}
    for name, dtype in mine.items():
        if other.get(name) != dtype:
            by_dtype.setdefault(dtype, []).append(name)
    return "; ".join(f"{', '.join(names)} {dtype}" for dtype, names in by_dtype.items())
