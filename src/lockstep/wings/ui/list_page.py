"""The page of all runs: what each was set up with, its loss beside the others', and links to what is known of it."""

from __future__ import annotations

import numpy as np

from lockstep.report.page import Card, Chart, Grid, Line, Link, Page, Sentences
from lockstep.wings.ui.runs import MOST_RUNS, Run

MOST_LINES = 8
"""Runs whose losses are drawn, the newest."""

_LONGEST_COMMAND = 120
Cell = str | float | int | Link | None


def list_page(runs: list[Run], reference: Run | None) -> Page:
    """Compose it.

    Parameters
    ----------
    runs
        The newest first.
    reference
        What the others can be compared with; None while none is chosen.
    """
    sentences = Sentences(_sentences(runs, reference), empty=_NOTHING)
    areas = [Card("Recordings", [sentences])]
    if runs:
        grid = Grid(_TITLES, [_row(one, reference) for one in runs], standing_out=_broken(runs))
        areas.append(Card("Runs", [grid]))
    chart = _losses(runs)
    if chart is not None:
        areas.append(Card("Losses", [chart]))
    return Page("Runs · Lockstep", areas=areas)


_NOTHING = "No recording lies there yet: lockstep record -o DIR -- CMD makes one."
_TITLES = (
    "run",
    "page",
    "comparison",
    "graph",
    "curves",
    "made (UTC)",
    "device",
    "torch",
    "steps",
    "trained",
    "last loss",
    "command",
)


def _sentences(runs: list[Run], reference: Run | None) -> list[str]:
    found = []
    if runs:
        found.append(f"{len(runs)} recordings; choose a reference to compare others with it.")
    if reference is not None:
        found.append(f"The reference is {reference.name}.")
    if len(runs) >= MOST_RUNS:
        found.append(f"There are more than {MOST_RUNS}: give a folder with fewer.")
    growing = [one.name for one in runs if one.is_growing]
    if growing:
        found.append(f"Being recorded: {', '.join(growing[:5])}.")
    return found


def _row(run: Run, reference: Run | None) -> list[Cell]:
    if run.problem:
        return [run.name, "", "", "", "", "", "", "", "", None, None, run.problem]
    last = run.losses[-1][1] if run.losses else None
    return [
        run.name, Link("open", f"run/{run.key}"), _comparing(run, reference), _graph(run, reference),
        _curves(run, reference), _moment(run.made), run.device, run.torch, _steps(run.steps), run.trained, last,
        _short(run.command),
    ]  # fmt: skip


def _moment(made: str) -> str:
    """Date and minute of an ISO 8601 time."""
    return made[:16].replace("T", " ")


def _comparing(run: Run, reference: Run | None) -> Cell:
    if reference is None:
        return Link("take as reference", f"?reference={run.key}")
    if run.key == reference.key:
        return Link("the reference: choose another", "?")
    return Link(f"compare with {reference.name}", f"compare/{reference.key}/{run.key}")


def _graph(run: Run, reference: Run | None) -> Cell:
    if reference is None or run.key == reference.key:
        return ""
    return Link("both side by side", f"compare/{reference.key}/{run.key}/graph")


def _curves(run: Run, reference: Run | None) -> Cell:
    if reference is None or run.key == reference.key:
        return Link("alone", f"curves?runs={run.key}")
    return Link(f"with {reference.name}", f"curves?runs={reference.key},{run.key}")


def _broken(runs: list[Run]) -> list[int]:
    return [number for number, one in enumerate(runs) if one.problem]


def _short(command: str) -> str:
    return command if len(command) <= _LONGEST_COMMAND else f"{command[: _LONGEST_COMMAND - 4]} ..."


def _steps(steps: tuple[int, ...]) -> str:
    if not steps:
        return "none"
    whole = steps == tuple(range(steps[0], steps[-1] + 1))
    if whole:
        return f"{steps[0]}-{steps[-1]}" if len(steps) > 1 else str(steps[0])
    return ", ".join(map(str, steps[:6])) + (" ..." if len(steps) > 6 else "")


def _losses(runs: list[Run]) -> Chart | None:
    """The last loss of each step, a line a run; a step that a run has not is a gap."""
    shown = [one for one in runs if one.losses][:MOST_LINES]
    if not shown:
        return None
    steps = sorted({step for run in shown for step, _ in run.losses})
    lines = []
    for run in shown:
        of_step = dict(run.losses)
        lines.append(Line(run.name, np.array([of_step.get(step, np.nan) for step in steps])))
    left_out = len([one for one in runs if one.losses]) - len(shown)
    title = "Loss" if not left_out else f"Loss of the newest {len(shown)} runs"
    return Chart(title, np.array(steps, dtype=np.float64), lines, x_title="step")
