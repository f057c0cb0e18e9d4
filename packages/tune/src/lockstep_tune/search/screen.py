"""Print a search: a line for each trial, a table of all, and the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.files import masked_command
from lockstep.terminal import Column, counted, enveloped, figure, message, shell_line, table_text

if TYPE_CHECKING:
    import optuna

    from lockstep_tune.search.plan import Plan
    from lockstep_tune.search.trial import Came


def came_words(number: int, came: Came, target: str, values: Mapping[str, Any]) -> str:
    """Return one trial as a line."""
    what = f"{target} {figure(came.value)}" if came.value is not None else came.outcome.value
    reason = f": {message(came.words)}" if came.words else ""
    return f"trial {number}: {what}{reason} ({_values(values)})"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_cell(value)}" for name, value in values.items())


def _cell(value: Any) -> str:
    return figure(value) if isinstance(value, float) else str(value)


def as_values(study: optuna.Study, plan: Plan, command: Sequence[str]) -> dict[str, Any]:
    """Return a search as JSON values."""
    trials = [
        {
            "number": one.number,
            "outcome": one.user_attrs.get("outcome"),
            "value": one.value if one.user_attrs.get("outcome") == "done" else None,
            "reason": one.user_attrs.get("words", ""),
            "parameters": dict(one.params),
            "losses": len(one.intermediate_values),
        }
        for one in study.get_trials(deepcopy=False)
        if one.user_attrs.get("outcome") != "repeated"
    ]
    return enveloped({
        "target": plan.target.name,
        "goal": "maximize" if plan.target.maximize else "minimize",
        "command": masked_command(command),
        "best": best_of(trials, maximize=plan.target.maximize),
        "trials": trials,
    })  # fmt: skip


def best_of(trials: Sequence[Mapping[str, Any]], *, maximize: bool) -> Mapping[str, Any] | None:
    """Return the best trial that is feasible; None where there is none."""
    done = [one for one in trials if one["outcome"] == "done"]
    if not done:
        return None
    return (max if maximize else min)(done, key=lambda one: one["value"])


def render(values: Mapping[str, Any], best_command: Sequence[str], *, limit: int) -> str:
    """Return what is printed: the best first, then the trials from the best on, then how the others ended."""
    trials, best, sign = values["trials"], values["best"], 1 if values["goal"] == "minimize" else -1
    counts = [
        counted(sum(one["outcome"] == outcome for one in trials), "trial") + f" {words}"
        for outcome, words in _COUNTED.items()
        if any(one["outcome"] == outcome for one in trials)
    ]
    lines = [f"{', '.join(counts) or 'no trial has ended'}."]
    if best is None:
        lines.append("No trial can be used.")
    else:
        lines.append(f"Best: {values['target']} {figure(best['value'])} in trial {best['number']}:")
        lines.append(f"  {shell_line(best_command)}")
    names = list(dict.fromkeys(name for one in trials for name in one["parameters"]))
    first = [one for one in trials if one["outcome"] == "done"]
    first.sort(key=lambda one: sign * one["value"])
    rest = [one for one in trials if one["outcome"] not in ("done", "lost", None)]
    columns = [
        Column("trial", right=True),
        Column(values["target"], right=True),
        *map(Column, names),
        Column(""),
    ]
    rows = [
        (
            one["number"], "-" if one["value"] is None else figure(one["value"]),
            *(_cell(one["parameters"].get(name, "-")) for name in names), _reason(one),
        )
        for one in [*first, *rest]
    ]  # fmt: skip
    return "\n".join([*lines, "", table_text(columns, rows, limit=limit)])


def _reason(one: Mapping[str, Any]) -> str:
    if one["outcome"] == "done":
        return ""
    return f"{one['outcome']}: {message(one['reason'])}" if one["reason"] else str(one["outcome"])


_COUNTED = {
    "done": "done",
    "infeasible": "infeasible",
    "pruned": "cut early",
    "failed": "failed",
    "lost": "killed and tried again",
}
