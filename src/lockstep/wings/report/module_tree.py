"""The modules of a model as a tree, each with the worst pair of every phase in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from lockstep.store.reader import Recording
from lockstep.wings.report.comparison_types import ModuleNode, Pairs


def module_tree(
    pairs: Pairs, origins: Collection[int], recordings: Iterable[Recording]
) -> tuple[ModuleNode, ...]:
    """Return the model itself and all its modules, each after the one around it.

    Modules are those that the recordings list and those that pairs are of, in the order of the first recording, which
    is that of the model. An origin is the worst of all wherever it lies; pairs that were not judged are left out.
    """
    classes = _classes(recordings)
    paths = with_those_around([*classes, *pairs.module.names])
    numbers = {path: number for number, path in enumerate(paths)}
    parents = [numbers[around(path)] if path else -1 for path in paths]
    worst = _worst(pairs, origins, numbers)
    for number in range(len(paths) - 1, 0, -1):
        for phase, row in worst[number].items():
            above = worst[parents[number]]
            above[phase] = _worse(pairs, origins, row, above.get(phase, -1))
    return tuple(
        ModuleNode(path, classes.get(path, ""), parents[number], worst[number])
        for number, path in enumerate(paths)
    )


def _classes(recordings: Iterable[Recording]) -> dict[str, str]:
    """Class by path, of all ranks; the first recording's before the other's."""
    found: dict[str, str] = {}
    for recording in recordings:
        for rank in recording.ranks.values():
            table = rank.module_table
            for path, name in zip(table["module"], table["module_class"], strict=True):
                found.setdefault(path, name)
    return found


def with_those_around(paths: Sequence[str]) -> list[str]:
    """Return every path once, after all paths around it, which are added if missing; the model first."""
    children: dict[str, dict[str, None]] = {"": {}}
    for path in paths:
        while path and path not in children.get(around(path), ()):
            children.setdefault(around(path), {})[path] = None
            path = around(path)
    ordered, waiting = [], [""]
    while waiting:
        path = waiting.pop()
        ordered.append(path)
        waiting.extend(reversed(children.get(path, {})))
    return ordered


def around(path: str) -> str:
    """The path of the module around another one; "" for the model itself."""
    return path.rpartition(".")[0]


def _worst(
    pairs: Pairs, origins: Collection[int], numbers: Mapping[str, int]
) -> list[dict[str, int]]:
    """By module the worst row of each phase, of its own pairs alone."""
    found: list[dict[str, int]] = [{} for _ in numbers]
    modules, phases = pairs.module, pairs.phase
    groups = modules.codes.astype(np.int64) * max(1, len(phases.names)) + phases.codes
    order = np.lexsort((pairs.margin, groups))  # NaN comes last of its group
    order = order[~np.isnan(pairs.margin[order])]
    last = np.flatnonzero(np.diff(groups[order], append=-1))
    for row in (*order[last].tolist(), *origins):
        own = found[numbers[modules[row]]]
        own[phases[row]] = _worse(pairs, origins, row, own.get(phases[row], -1))
    return found


def _worse(pairs: Pairs, origins: Collection[int], one: int, other: int) -> int:
    """The row that is further beyond its floor, the earlier one of equals; an origin before all others."""
    if other < 0:
        return one

    def weight(row: int) -> tuple[bool, float, int]:
        return (
            row in origins,
            float(np.nan_to_num(pairs.margin[row], nan=-1.0, posinf=np.inf)),
            -row,
        )

    return max(one, other, key=weight)
