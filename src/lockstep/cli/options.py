"""Options that several verbs take, each with one meaning: `@options.step`, `@options.limit("calls")`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click

from lockstep.core.arguments import LEAST_MEMORY_BYTES
from lockstep.core.errors import UsageError
from lockstep.core.manifest import MEMORY_BYTES

F = TypeVar("F", bound=Callable[..., Any])


class Option(Protocol):
    """Gives a verb an option more."""

    def __call__(self, function: F, /) -> F:
        """The same function, as a decorator gives it back."""
        ...


step = click.option("--step", type=int, help="This step only.")
rank = click.option("--rank", help="This rank only, as in rank0.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
force = click.option("--force", is_flag=True, help="Replace the file if it is there.")


form = click.option(
    "--format",
    "form",
    default="",
    metavar="NAME[:NAMES]",
    help="What another tool wrote there, by the form's name, where that is not told by a look at it; with NAMES as in"
    " 'tensors:{module}.{op}.{role}.{index}', how its names are built.",
)


def site(what: str) -> Option:
    """`--site`, a pattern or a printed site: see `lockstep.reading.is_chosen`.

    Parameters
    ----------
    what
        What is done with it, as in "Run these calls again".
    """
    return click.option("--site", help=f"{what}: a pattern, or a site as compare prints it.")


def limit(words: str, *, default: int | None = 10) -> Option:
    """`--limit`: how many of what is found are printed.

    Parameters
    ----------
    words
        The help, as in "Print at most so many results."
    default
        How many without it; None for all.
    """
    shown = default is not None
    return click.option(
        "--limit", type=click.IntRange(min=1), default=default, show_default=shown, help=words
    )


allow_crash = click.option(
    "--allow-crash",
    is_flag=True,
    help="Let a training that crashed (exception, signal, exit code) agree in what was recorded of it.",
)
"""`--allow-crash`: a crashed training is no agreement without it."""


def memory_bytes(words: str) -> Option:
    """`--memory-bytes`: what a verb may take, by default as much as recording may.

    Parameters
    ----------
    words
        The help: what memory, and what becomes of what takes more.
    """
    return click.option(
        "--memory-bytes",
        type=click.IntRange(min=LEAST_MEMORY_BYTES),
        default=MEMORY_BYTES,
        show_default="1 GB",
        help=words,
    )


class _Share(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 alone
    """A share, as in `20%` or `0.2`."""

    name = "SHARE"

    def convert(
        self, value: object, parameter: click.Parameter | None, context: click.Context | None
    ) -> float:
        """As a number from 0 to 1."""
        text = str(value)
        try:
            share = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
        except ValueError:
            share = 0.0
        if not 0.0 < share <= 1.0:
            self.fail(f"{text!r} is no share; write 20% or 0.2", parameter, context)
        return share


SHARE = _Share()
"""The type of an option that is a share of a training's time."""


def thinned(steps: str, every: int) -> str:
    """`--steps` with `--every`: a selection of each N-th step.

    Raises
    ------
    UsageError
        If the steps are no range.
    """
    if every == 1:
        return steps
    if "," in steps or steps.count(":") != 1:
        raise UsageError(f"--steps {steps} with --every {every}: give one range, as in 0:1000")
    return f"{steps}:{every}"
