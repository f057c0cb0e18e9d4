"""Parse a site or a tensor as it was printed, and complete it."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from lockstep.compare import tensor_role
from lockstep.recordings import Phase, Role, TensorRecord, is_chosen
from lockstep.terminal import printable
from lockstep_shell.session import Session

F = TypeVar("F", bound=Callable[..., Any])

_PHASES = "|".join(phase.value for phase in Phase)
_ROLES = "|".join(sorted((role.value for role in Role), key=len, reverse=True))
_PRINTED = re.compile(
    r"(?:(?P<rank>rank\d+(?:-\d+)?): )?(?P<site>.+?)"
    rf"(?:, (?P<phase>{_PHASES}))?(?:, (?P<tensor>(?:{_ROLES})[. ].+?))?"
    r"(?: \((?:reference|candidate) only\))?"
)


@dataclass(frozen=True, slots=True)
class Place:
    """The parts of a printed site or tensor; None for missing parts.

    pattern: The site, for `lockstep.reading.calls_matching`.
    phase: "forward" or another.
    tensor: As in "output.0" or "param 0.weight".
    rank: As in "rank0".
    """

    pattern: str
    phase: str | None = None
    tensor: str | None = None
    rank: str | None = None

    def is_of(self, record: TensorRecord) -> bool:
        """Whether a record is what is meant, or part of it."""
        return (
            is_chosen(self.pattern, record.site)
            and self.phase in (None, record.site.phase.value)
            and self.tensor in (None, printable(tensor_role(record)))
            and self.rank in (None, record.rank)
        )


def place_of(words: tuple[str, ...], session: Session) -> Place:
    """Return the place that words of a command line name, as they were pasted, with or without quotes.

    >>> place_of(("bert.layer.0.output.dense",), Session()).pattern
    'bert.layer.0.output.dense'
    >>> place_of(("rank0:", "fc1", "/", "torch.relu", "#0,", "backward,", "grad_input.0"), Session())
    Place(pattern='fc1 / torch.relu #0', phase='backward', tensor='grad_input.0', rank='rank0')
    """
    text = " ".join(words)
    found = _PRINTED.fullmatch(text)
    if found is None:
        return Place(text)
    module, slash, rest = found["site"].partition(" / ")
    name = session.names.get(module, module)
    pattern = (
        f"{name}{slash}{rest}" if slash else glob.escape(name) if module in session.names else name
    )
    return Place(pattern, found["phase"], found["tensor"], found["rank"])


def argument(name: str = "site", *, required: bool = True) -> Callable[[F], F]:
    """The argument, of any number of words, so that a printed site needs no quotes."""
    return click.argument(name, nargs=-1, required=required, shell_complete=_completions)


def _completions(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    session = context.find_object(Session)
    if session is None:
        return []
    known = session.sites if " " in typed else session.names
    return [name for name in known if name.startswith(typed)]
