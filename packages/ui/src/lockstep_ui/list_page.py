"""All runs as a plain table, with links to each run and its comparison with the chosen reference."""

from __future__ import annotations

from lockstep.page import Grid, Link
from lockstep.terminal import spans
from lockstep_ui.runs import Run

_LONGEST_COMMAND = 120
_TITLES = (
    "run",
    "page",
    "comparison",
    "graph",
    "curves",
    "last loss",
    "steps",
    "made (UTC)",
    "command",
)
Cell = str | float | int | Link | None


def runs_grid(runs: list[Run], reference: Run | None) -> Grid:
    """Compose it.

    runs: The newest first.
    reference: What the others can be compared with; None while none is chosen.
    """
    broken = [number for number, one in enumerate(runs) if one.problem]
    return Grid(_TITLES, [_row(one, reference) for one in runs], standing_out=broken)


def _row(run: Run, reference: Run | None) -> list[Cell]:
    if run.problem:
        return [run.name, "", "", "", "", None, "", "", run.problem]
    last = run.losses[-1][1] if run.losses else None
    return [
        run.name, Link("open", f"run/{run.key}"), *_beside(run, reference), last, _steps(run),
        run.made[:16].replace("T", " "), _short(run.command),
    ]  # fmt: skip


def _beside(run: Run, reference: Run | None) -> tuple[Cell, Cell, Cell]:
    alone = Link("alone", f"curves?runs={run.key}")
    if reference is None:
        return Link("take as reference", f"?reference={run.key}"), "", alone
    if run.key == reference.key:
        return Link("the reference: choose another", "?"), "", alone
    pair = f"compare/{reference.key}/{run.key}"
    return (
        Link(f"compare with {reference.name}", pair),
        Link("both side by side", f"{pair}/graph"),
        Link(f"with {reference.name}", f"curves?runs={reference.key},{run.key}"),
    )


def _short(command: str) -> str:
    return command if len(command) <= _LONGEST_COMMAND else f"{command[: _LONGEST_COMMAND - 4]} ..."


def _steps(run: Run) -> str:
    """The recorded steps, and how many were trained."""
    recorded = spans(run.steps, 6) or "none"
    return recorded if run.trained is None else f"{recorded} of {run.trained}"
