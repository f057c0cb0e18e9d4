"""Names of the leaves of arguments and results, and which result is the new value of which argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

Path = tuple[str, ...]


def leaf_paths(tree: Any) -> list[Path]:
    """Return the path of each leaf of a tree: keys, attributes and places."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [tuple(_part(key) for key in path) for path, _ in flat]


def _part(key: Any) -> str:
    for name in ("key", "name", "idx"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def argument_paths(args_info: Any, names: Sequence[str]) -> list[Path]:
    """Return the paths of the arguments of a call, each beginning with the argument's own name.

    Parameters
    ----------
    args_info
        Positional and named arguments as a traced function tells them.
    names
        What JAX calls each leaf (`params['dense1']['kernel']`); its first word is the argument's name.
    """
    paths = leaf_paths(args_info)
    found = []
    for number, path in enumerate(paths):
        word = names[number] if number < len(names) else ""
        own = word.partition("[")[0].partition(".")[0] or path[1]
        found.append((own, *path[2:]))
    return found


def inner_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the paths of parameters without what stands before all of them: argument, places, and `params`."""
    inner, is_argument = list(paths), True
    while inner and len({one[0] for one in inner}) == 1 and all(len(one) > 1 for one in inner):
        if not (is_argument or inner[0][0] == "params" or inner[0][0].isdigit()):
            break
        inner, is_argument = [one[1:] for one in inner], False
    return inner


def common_end(one: Iterable[str], other: Iterable[str]) -> int:
    """Return how many of the last parts two paths share."""
    count = 0
    for left, right in zip(reversed(list(one)), reversed(list(other)), strict=False):
        if left != right:
            break
        count += 1
    return count


def partners(
    inputs: Sequence[Path], outputs: Sequence[Path], may_be: Callable[[int, int], bool]
) -> dict[int, int]:
    """Return the output that is the new value of each input, by place.

    Those whose paths end alike for longest go together first; each output is taken once.
    """
    pairs = [
        (-common_end(one, other), abs(i - j), i, j)
        for i, one in enumerate(inputs)
        for j, other in enumerate(outputs)
        if may_be(i, j)
    ]
    found: dict[int, int] = {}
    taken: set[int] = set()
    for _, _, i, j in sorted(pairs):
        if i not in found and j not in taken:
            found[i] = j
            taken.add(j)
    return found
