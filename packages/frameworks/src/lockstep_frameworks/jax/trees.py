"""Names of the leaves of arguments and results, and which result is the new value of which argument."""

from __future__ import annotations

from collections import Counter
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

    args_info: Positional and named arguments as a traced function tells them.
    names: What JAX calls each leaf (`params['dense1']['kernel']`); its first word is the argument's name.
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
    inputs: Sequence[Path],
    outputs: Sequence[Path],
    may_be: Callable[[int, int], bool],
    is_made_of: Callable[[int, int], bool],
    goes_on_with: Callable[[int, int], bool] | None = None,
) -> list[dict[int, int]]:
    """Return the output that is the new value of each input, by place: a list of trees that belong together.

    A tree of arguments and one of results are paired as a whole, by what stands before the paths that they share: a
    leaf that has come to another's place is then seen as that. Trees of which more leaves are made of each other go
    first, then those that are made of nothing else, that go on for the most part, and whose paths end alike longest.

    inputs, outputs: Paths.
    may_be: Whether an input and an output are of one kind.
    is_made_of: Whether the output is made of the input.
    goes_on_with: Whether the input is most of it, which decides between trees that are made of the same.
    """
    trees: dict[tuple[Path, Path], list[tuple[int, int]]] = {}
    for i, one in enumerate(inputs):
        for j, other in enumerate(outputs):
            if may_be(i, j):
                end = common_end(one, other)
                key = one[: len(one) - end], other[: len(other) - end]
                trees.setdefault(key, []).append((i, j))
    made = {key: [pair for pair in pairs if is_made_of(*pair)] for key, pairs in trees.items()}
    goes_on = goes_on_with or is_made_of
    going = {key: sum(goes_on(*pair) for pair in pairs) for key, pairs in made.items()}
    claims = Counter(j for pairs in made.values() for _, j in pairs)

    def order(key: tuple[Path, Path]) -> tuple[float, ...]:
        i, j = trees[key][0]
        others = sum(claims[j] - 1 for _, j in made[key])
        return (
            -len(made[key]),
            others,
            -going[key],
            -common_end(inputs[i], outputs[j]),
            abs(i - j),
            i,
            j,
        )

    found: list[dict[int, int]] = []
    taken: tuple[set[int], set[int]] = set(), set()
    for key in sorted((key for key in trees if made[key]), key=order):
        free = {i: j for i, j in trees[key] if i not in taken[0] and j not in taken[1]}
        if any(pair in made[key] for pair in free.items()):
            found.append(free)
            taken[0].update(free)
            taken[1].update(free.values())
    return found
