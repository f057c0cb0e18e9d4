"""Every extension point of Lockstep, in one place.

A plug-in is a module or object that implements some of these functions with `@hookimpl` and is named by an entry point
in the group `lockstep`. The built-in ones are found in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:  # those who migrate or record compare nothing, and load no arrays
    import click

    from lockstep.core.finding import Comparison

NAME = "lockstep"
hookspec = pluggy.HookspecMarker(NAME)
hookimpl = pluggy.HookimplMarker(NAME)


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line.

    Parameters
    ----------
    name
        As it is typed: `lockstep NAME ...`. Lockstep's own verbs cannot be replaced.
    summary
        One line of `lockstep --help`.
    group
        The heading that it stands under there.
    load
        Gives the command; called when the verb is used, so that `--help` is quick. Its return value is the exit code,
        see `lockstep.core.exit_codes`. A `lockstep.LockstepError` that it raises is said in one sentence.
    """

    name: str
    summary: str
    group: str
    load: Callable[[], click.Command]


@dataclass(frozen=True, slots=True)
class ReportWriter:
    """One format that a comparison can be written in: `write(comparison, path)` raises `OSError` if it cannot."""

    name: str
    suffix: str
    write: Callable[[Comparison, Path], None]


@dataclass(frozen=True, slots=True, eq=False)
class MigrationTarget:
    """A device that `lockstep migrate --to NAME` writes scripts for.

    Parameters
    ----------
    name
        What `--to` takes.
    device
        The device type in torch, such as `npu`; empty for the neutral target, whose scripts ask for it as they run.
    module
        The dotted name that stands for `torch.cuda`, such as `torch.npu`.
    imports
        A module that scripts must import for the device to exist, such as `torch_npu`.
    importable
        What import statements take for `module` where that is no module itself, such as `torch_npu.npu`.
    backend
        The collective backend that stands for `nccl`.
    method
        The method of tensors and modules that stands for `.cuda()`; empty where there is only `.to(device)`.
    is_device
        The attribute of tensors that stands for `.is_cuda`; empty where there is none.
    environment
        Environment variables, CUDA's name to the device's own.
    rules
        The text of the target's own table; columns as in `lockstep.wings.migrate.torch.table`.
    has_name
        Whether the device's software has a dotted name; no other name is ever written.
    """

    name: str
    device: str
    module: str
    has_name: Callable[[str], bool]
    rules: str = ""
    imports: str = ""
    importable: str = ""
    backend: str = ""
    method: str = ""
    is_device: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


@hookspec
def lockstep_commands() -> list[Verb]:  # type: ignore[empty-body]
    """Verbs of the command line."""


@hookspec
def lockstep_migration_targets() -> list[MigrationTarget]:  # type: ignore[empty-body]
    """Devices that `lockstep migrate` writes scripts for."""


@hookspec
def lockstep_report_writers() -> list[ReportWriter]:  # type: ignore[empty-body]
    """Formats that `lockstep compare -o DIR` writes."""
