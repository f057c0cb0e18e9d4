"""A verb, a report format and a device, each as small as it can be. To copy: rename, and `pip install` the folder."""

from __future__ import annotations

from pathlib import Path

import click

import lockstep
from lockstep.core.finding import Comparison
from lockstep.hookspecs import ReportWriter, Verb, hookimpl
from lockstep.wings.migrate.hookspecs import MigrationTarget, SupportList


@hookimpl
def lockstep_commands() -> list[Verb]:
    """`lockstep count RECORDING`."""
    return [Verb("count", "Count the tensors of a recording.", "Examples", lambda: count)]


@hookimpl
def lockstep_report_writers() -> list[ReportWriter]:
    """A file more of what `lockstep compare -o DIR` writes."""
    return [ReportWriter("markdown", ".md", write_markdown)]


@hookimpl
def lockstep_migration_targets() -> list[MigrationTarget]:
    """`lockstep migrate --to toy`."""
    table = """# name,action,becomes,arguments,reason
torch.cuda,rename,{module},,the device has a module of its own
torch.cuda.*,rename,{module}.*,,the device has a module of its own
"""
    return [MigrationTarget("toy", "toy", "torch.toy", has_name=lambda name: True, rules=table)]


@hookimpl
def lockstep_support_lists() -> list[SupportList]:
    """What that device cannot run yet; a list may be for somebody else's target too."""
    return [SupportList("toy", {"torch.fft.*": "toy 1.0 has no transforms; run them on the host"})]


@click.command
@click.argument("recording")
def count(recording: str) -> int:
    """Count the tensors of RECORDING, rank by rank."""
    for name, rank in lockstep.open(recording).ranks.items():
        click.echo(f"{name}: {rank.record_count} tensors")
    return 0


def write_markdown(comparison: Comparison, path: Path) -> None:
    """Write the verdict, and a line for each origin."""
    lines = [f"# {comparison.verdict.value}", ""]
    lines += [f"- `{one.module}` {one.op}: {one.reason}" for one in comparison.origins]
    path.write_text("\n".join(lines) + "\n")
