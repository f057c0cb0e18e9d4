"""Every migration target, and those that are built in: what each says of itself is a file beside its table of names."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from lockstep.plugin import devices, manager
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.names import has_name
from lockstep_migrate.torch.table import built_in

_NEUTRAL = "neutral"
_DEVICES = tuple(one.name for one in devices() if one.target)


def migration_targets() -> dict[str, MigrationTarget]:
    """Every migration target by name, the built-in ones first, with what support lists say of it."""
    hook = manager().hook
    given = reversed(hook.lockstep_migration_targets())
    found = {target.name: target for targets in given for target in targets}
    for support in (one for lists in hook.lockstep_support_lists() for one in lists):
        if support.target in found:
            target = found[support.target]
            found[target.name] = replace(target, lacks={**target.lacks, **support.lacks})
    devices = tuple(target for target in found.values() if target.device)
    return {
        name: target if target.device else replace(target, among=devices)
        for name, target in found.items()
    }


def built_in_targets() -> list[MigrationTarget]:
    """Device-neutral code, and the devices of Ascend, Intel, Habana and Apple."""
    return [_target(name) for name in (_NEUTRAL, *_DEVICES)]


def _target(name: str) -> MigrationTarget:
    """A target by the files of its name."""
    words = {"device": "", **json.loads(built_in(f"{name}.json"))}
    module = f"torch.{name}" if words["device"] else ""
    names = partial(_has, name) if words["device"] else _neutral_has
    return MigrationTarget(
        name=name, module=module, has_name=names, rules=built_in(f"{name}.csv"), **words
    )


def _has(target: str, name: str) -> bool:
    return has_name(target, name.replace("{module}", f"torch.{target}"))


def _neutral_has(name: str) -> bool:
    """Whether every device that scripts are written for has a name, or torch itself has it."""
    if "{module}" not in name:
        return has_name(_NEUTRAL, name)
    on_cuda = name.replace("{module}", "torch.cuda")
    return has_name("torch", on_cuda) and all(_has(target, name) for target in _DEVICES)
