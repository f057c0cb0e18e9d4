"""List code that behaves differently with many processes; `risks.csv` has the words. Nothing is changed."""

from __future__ import annotations

import ast
import csv
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

from lockstep_migrate.distributed.training import Loader, Script
from lockstep_migrate.engine.arguments import called, is_constant, keyword
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.torch.unit import Unit

OWN_PROCESSES = listed_names("own processes")

SAVING = "distributed/saving"
_WRITING = frozenset({"w", "wb", "a", "ab", "w+", "x", "wt", "at"})


def list_risks(
    unit: Unit, script: Script, loaders: Sequence[Loader], names: Mapping[str, str]
) -> None:
    """List what a person should look at: batch size, counts and sums of a share, and what every process does."""
    for loader in loaders:
        _list_batch_size(unit, loader, names["world_size"])
        for loop in loader.loops:
            _list_sums(unit, loop)
    for call in script.calls:
        _list_call(unit, call, names)


def _list_batch_size(unit: Unit, loader: Loader, world: str) -> None:
    item = keyword(loader.call, "batch_size")
    positional = loader.call.args[1:2]
    unit.note(
        item or (positional[0] if positional else loader.call),
        "distributed/batch-size",
        f"the batch stays that of one process: a step takes {world} times as many samples, an epoch has fewer steps",
        f"divide it by {world}, or scale the learning rate",
    )


def _list_sums(unit: Unit, loop: ast.For) -> None:
    """`total += loss.item()` in a training loop."""
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and any(
            isinstance(inner, ast.Call) and called(inner) in ("item", "sum", "cpu", "detach")
            for inner in ast.walk(node.value)
        ):
            reason = "sums up one process's share: what rank 0 tells of it is not averaged between processes"
            instead = "torch.distributed.all_reduce of the sum, where there are several processes"
            unit.note(node, "distributed/metric", reason, instead)


def risk_of(unit: Unit, call: ast.Call) -> _Risk | None:
    """What is otherwise about a call with many processes; nothing where it is no known risk."""
    name = unit.scopes.name(call.func) or called(call)
    for risk in _RISKS:
        named = name == risk.name or (risk.name[:1] == "*" and name.endswith(risk.name[1:]))
        if named and not (risk.unless and keyword(call, risk.unless)):
            return risk
    return None


def _list_call(unit: Unit, call: ast.Call, names: Mapping[str, str]) -> None:
    risk, name = risk_of(unit, call), unit.scopes.name(call.func) or called(call)
    if risk is not None and risk.rule != SAVING:
        unit.note(call, risk.rule, risk.reason, risk.instead.format(**names))
    mode = call.args[1] if name == "open" and len(call.args) > 1 else None
    if isinstance(mode, ast.Constant) and mode.value in _WRITING:
        reason = "every process writes this file"
        unit.note(call, "distributed/files", reason, f"if {names['rank']} == 0:")
    elif name == "len" and call.args and getattr(call.args[0], "attr", "") == "dataset":
        reason = "counts the samples of all processes, also where it stands for a share"
        unit.note(call, "distributed/metric", reason, "len(loader.sampler)")
    item = keyword(call, "download")
    if item is not None and is_constant(item.value, True):
        reason = "every process downloads this at the same time; fetch it once before"
        unit.note(item, "distributed/files", reason)


class _Risk(NamedTuple):
    """A row of `risks.csv`: a name (`*` and its end), the keyword that makes it none, and what to say of it."""

    name: str
    unless: str
    rule: str
    reason: str
    instead: str


def _read_risks() -> tuple[_Risk, ...]:
    text = (resources.files(__package__) / "risks.csv").read_text(encoding="utf-8")
    return tuple(_Risk(*row) for row in list(csv.reader(text.splitlines()))[1:])


_RISKS = _read_risks()
