"""The built-in migration targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lockstep.hookspecs import MigrationTarget
from lockstep.wings.migrate.files.surroundings import surroundings
from lockstep.wings.migrate.names import has_name
from lockstep.wings.migrate.torch.table import built_in

_NEUTRAL_DEVICES = ("torch.cuda", "torch.npu", "torch.xpu")


def built_in_targets() -> list[MigrationTarget]:
    """Device-neutral code, and the devices of Ascend, Intel, Habana and Apple."""
    return [
        MigrationTarget(
            name="neutral",
            device="",
            module="",
            has_name=_neutral_has,
            rules=built_in("neutral"),
        ),
        MigrationTarget(
            name="npu",
            device="npu",
            module="torch.npu",
            imports="torch_npu",
            importable="torch_npu.npu",
            backend="hccl",
            method="npu",
            is_device="is_npu",
            environment=_environment("npu"),
            has_name=_has("npu", "torch.npu"),
            rules=built_in("npu"),
        ),
        MigrationTarget(
            name="xpu",
            device="xpu",
            module="torch.xpu",
            backend="xccl",
            method="xpu",
            is_device="is_xpu",
            environment=_environment("xpu"),
            has_name=_has("xpu", "torch.xpu"),
            rules=built_in("xpu"),
        ),
        MigrationTarget(
            name="hpu",
            device="hpu",
            module="torch.hpu",
            imports="habana_frameworks.torch.core",
            importable="habana_frameworks.torch.hpu",
            backend="hccl",
            environment=_environment("hpu"),
            has_name=_has("hpu", "torch.hpu"),
            rules=built_in("hpu"),
        ),
        MigrationTarget(
            name="mps",
            device="mps",
            module="torch.mps",
            backend="gloo",
            is_device="is_mps",
            has_name=_has("mps", "torch.mps"),
            rules=built_in("mps"),
        ),
    ]


def _environment(target: str) -> dict[str, str]:
    """CUDA's environment variables that have another name on a target, and the same values."""
    variables = surroundings().variables.values()
    return {item.name: item.rename[target] for item in variables if target in item.rename}


def _has(target: str, module: str) -> Callable[[str], bool]:
    def has(name: str) -> bool:
        return has_name(target, name.replace("{module}", module))

    return has


def _neutral_has(name: str) -> bool:
    """Whether every device that scripts are written for has a name, or torch itself has it."""
    if "{module}" not in name:
        return has_name("neutral", name)
    return all(
        any(has_name(target, spelled) for target in ("npu", "torch"))
        for spelled in _spellings(name, _NEUTRAL_DEVICES)
    )


def _spellings(name: str, modules: Iterable[str]) -> list[str]:
    return [name.replace("{module}", module) for module in modules]
