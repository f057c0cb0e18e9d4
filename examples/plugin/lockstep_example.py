"""A verb, a report format and a device, each as small as it can be. To copy: rename, and `pip install` the folder."""

from __future__ import annotations

from pathlib import Path

import click

import lockstep
from lockstep.compare import Comparison
from lockstep.page import Card, Page, Sentences, write_page
from lockstep.plugin import Device, ReportWriter, SupportList, Verb, hookimpl
from lockstep_migrate.hookspecs import MigrationTarget


@hookimpl
def lockstep_commands() -> list[Verb]:
    """`lockstep count RECORDING` and `lockstep hello RECORDING OUTPUT`."""
    return [
        Verb("count", "Count the tensors of a recording.", "Examples", lambda: count),
        Verb("hello", "Write a page about a recording.", "Examples", lambda: hello),
    ]


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
def lockstep_devices() -> list[Device]:
    """The device itself: `x.to("toy:0")` in one run is the same setting as `x.to("cuda:0")` in the other."""
    return [Device("toy", library="torch_toy", method=True)]


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


@click.command
@click.argument("recording")
@click.argument("output", type=click.Path(path_type=Path))
def hello(recording: str, output: Path) -> int:
    """Write a page with the number of tensors of each rank of RECORDING to OUTPUT."""
    ranks = lockstep.open(recording).ranks
    counts = [f"{name}: {rank.record_count} tensors" for name, rank in ranks.items()]
    write_page(Page("Hello", (Card("Ranks", (Sentences(counts),)),)), output)
    return 0


def write_markdown(comparison: Comparison, path: Path) -> None:
    """Write the verdict, and a line for each origin."""
    lines = [f"# {comparison.verdict.value}", ""]
    lines += [f"- `{one.module}` {one.op}: {one.reason}" for one in comparison.origins]
    path.write_text("\n".join(lines) + "\n")
