"""Choosing calls of a recording: by a shell pattern, a printed site, a step and a rank."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.core.errors import UsageError
from lockstep.core.records import Call
from lockstep.core.selection import (
    RankSelection,
    StepSelection,
    is_rank,
    is_step,
    nearest_names,
    site_matches,
)
from lockstep.core.site import Site
from lockstep.core.text import spans
from lockstep.store.reader import Recording

ChosenSteps = int | StepSelection | None
ChosenRanks = str | RankSelection | None
"""The ranks that are asked for: as `--rank` is written, as a selection, or None for all."""


def check_choice(
    recording: Recording, *, step: ChosenSteps = None, rank: ChosenRanks = None
) -> None:
    """Check that a recording has a step and a rank that were asked for.

    Parameters
    ----------
    step, rank
        The choice: one, or a selection of several; None for any.

    Raises
    ------
    UsageError
        If it has not; the message says which it has.
    """
    if not any(is_rank(rank, name) for name in recording.ranks) and rank is not None:
        known = ", ".join(recording.ranks) or "no rank at all"
        raise UsageError(f"{recording.path}: has no {rank}; it has {known}")
    steps = sorted({number for item in recording.ranks.values() for number in item.steps})
    if step is not None and not any(is_step(step, number) for number in steps):
        raise UsageError(f"{recording.path}: has no step {step}; it has {spans(steps) or 'none'}")


def calls_matching(
    recording: Recording,
    pattern: str,
    *,
    step: ChosenSteps = None,
    rank: ChosenRanks = None,
) -> list[Call]:
    """Calls that a pattern chooses, by rank, in order of time; see `is_chosen`.

    Parameters
    ----------
    step, rank
        Only calls of this one, or of these of a selection; None for all.

    Raises
    ------
    UsageError
        If there are none; the message says which names are nearest.

    Examples
    --------
    >>> [str(call.site) for call in calls_matching(recording, "gelu", step=0)]  # doctest: +SKIP
    ['h.0.mlp.act / torch.nn.functional.gelu #0, forward']
    """
    calls = every_call(recording, step=step, rank=rank)
    found = [call for call in calls if is_chosen(pattern, call.site)]
    if not found:
        raise no_match(recording, pattern)
    return found


def every_call(
    recording: Recording, *, step: ChosenSteps = None, rank: ChosenRanks = None
) -> Iterator[Call]:
    """Yield every call, by rank, in order of time; of chosen steps or ranks alone where some are given."""
    for name, item in recording.ranks.items():
        for number in item.steps if is_rank(rank, name) else ():
            if is_step(step, number):
                yield from item.calls(number)


def is_chosen(pattern: str, site: Site) -> bool:
    """Whether a pattern matches a site: its module path, a path above it, its operator, or all of it as it is printed.

    >>> from lockstep.core.site import Phase
    >>> act = Site("h.3.mlp.act", "torch.nn.functional.gelu", 0, Phase.FORWARD)
    >>> [is_chosen(pattern, act) for pattern in ("h.*.mlp", "gelu", "h.3.mlp.act / torch.nn.functional.gelu")]
    [True, True, True]
    """
    return site_matches(pattern, site)


def no_match(
    recording: Recording,
    pattern: str,
    *,
    what: str = "module and no operator",
    known: set[str] | None = None,
) -> UsageError:
    """Return the message for a pattern that matches nothing, with the nearest of the `known` names."""
    names = site_names(recording) if known is None else known
    near = nearest_names(pattern.split(" / ")[0], names)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return UsageError(f"{recording.path}: pattern {pattern!r} matches no {what}{hint}")


def site_names(recording: Recording) -> set[str]:
    """Every module path and operator of a recording."""
    names: set[str] = set()
    for rank in recording.ranks.values():
        for module, op in rank.call_table.select("module", "op").unique().iter_rows():
            names |= {module, op}
    return names - {""}
