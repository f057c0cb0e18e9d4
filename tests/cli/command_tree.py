"""Every verb that there is, those of plug-ins too, and every job of a verb that has several."""

from __future__ import annotations

from collections.abc import Iterator

import click

from lockstep.plugins import verbs


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command by what is typed."""
    waiting = [(verb.name, verb.load()) for verb in verbs().values()]
    for name, command in waiting:
        jobs = getattr(command, "commands", None) or getattr(command, "other_jobs", {})
        waiting.extend((f"{name} {job}", one) for job, one in jobs.items())
        yield name, command
