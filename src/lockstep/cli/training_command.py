"""Verbs that take a training's command after `--`."""

from __future__ import annotations

import click

_META = "lockstep.training"


class TrainingCommand(click.Command):
    """A command that takes a training to run after `--`; `usage` is how its help writes that."""

    usage = "-- COMMAND..."

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Keep the words after `--` apart."""
        if "--" in args:
            at = args.index("--")
            context.meta[_META] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(context, args)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """Return `[OPTIONS]` and the verb's arguments."""
        return ["[OPTIONS]", self.usage]


def training_command() -> tuple[str, ...]:
    """Return the words after `--`; empty if there are none."""
    command: tuple[str, ...] = click.get_current_context().meta.get(_META, ())
    return command
