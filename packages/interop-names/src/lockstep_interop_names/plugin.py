"""Register the verbs that stand in for other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.plugin import Task, Verb, hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `tfdbg`, and `msaccucmp` and `msprobe`, which are named like other tools' commands."""
    group = Task.COMPATIBILITY
    return [
        Verb("tfdbg", "Write a step's tensors from TensorFlow 1's debugger.", group, _tfdbg),
        Verb("msaccucmp", "Compare and convert dumps as msaccucmp.py does.", group, _msaccucmp),
        Verb("msprobe", "Compare dumps as mindstudio-probe does.", group, _msprobe),
    ]


def _tfdbg() -> click.Command:
    from lockstep_interop_names.tfdbg.command import tfdbg

    return tfdbg


def _msaccucmp() -> click.Command:
    from lockstep_interop_names.faces.msaccucmp_command import msaccucmp

    return msaccucmp


def _msprobe() -> click.Command:
    from lockstep_interop_names.faces.probe_compare import msprobe

    return msprobe
