"""Every migration target, and those that are built in."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lockstep.plugins import manager
from lockstep.wings.migrate.files.surroundings import surroundings
from lockstep.wings.migrate.hookspecs import MigrationTarget
from lockstep.wings.migrate.names import has_name
from lockstep.wings.migrate.torch.table import built_in

_NEUTRAL_DEVICES = ("npu", "xpu", "hpu", "mps")
"""The devices, beside CUDA, that neutral scripts run on."""


def migration_targets() -> dict[str, MigrationTarget]:
    """Every migration target by name, the built-in ones first, with what support lists say of it."""
    hook = manager().hook
    given = reversed(hook.lockstep_migration_targets())
    found = {target.name: target for targets in given for target in targets}
    for support in (one for lists in hook.lockstep_support_lists() for one in lists):
        if support.target in found:
            target = found[support.target]
            found[target.name] = replace(target, lacks={**target.lacks, **support.lacks})
    return found


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
        _device(
            "npu",
            imports="torch_npu",
            importable="torch_npu.npu",
            backend="hccl",
            method="npu",
            is_device="is_npu",
        ),
        _device("xpu", backend="xccl", method="xpu", is_device="is_xpu"),
        _device(
            "hpu",
            imports="habana_frameworks.torch.core",
            importable="habana_frameworks.torch.hpu",
            backend="hccl",
        ),
        replace(_device("mps", backend="gloo", is_device="is_mps"), single=True),
    ]


def _device(name: str, **words: str) -> MigrationTarget:
    """A target whose device, module and table all have its name."""
    return MigrationTarget(
        name=name,
        device=name,
        module=f"torch.{name}",
        environment=_environment(name),
        has_name=partial(_has, name),
        rules=built_in(name),
        lacks={},
        **words,
    )


def _environment(target: str) -> dict[str, str]:
    """CUDA's environment variables that have another name on a target, and the same values."""
    variables = surroundings().variables.values()
    return {item.name: item.rename[target] for item in variables if target in item.rename}


def _has(target: str, name: str) -> bool:
    return has_name(target, name.replace("{module}", f"torch.{target}"))


def _neutral_has(name: str) -> bool:
    """Whether every device that scripts are written for has a name, or torch itself has it."""
    if "{module}" not in name:
        return has_name("neutral", name)
    return has_name("torch", name.replace("{module}", "torch.cuda")) and all(
        _has(target, name) for target in _NEUTRAL_DEVICES
    )
