"""The pieces of a profile as a tree: calls of the script's lines, and the loops that lines are in."""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep_tune.profile import Piece

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_BLOCKS = (*_LOOPS, ast.With, ast.AsyncWith)
LOOP, _WITH = "loop", "with"
_LOOPING = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(slots=True)
class Node:
    """A line of the script, a block of it or a function that it calls, with all that is below.

    place: `file:line`; of a block its first line, of a function the line that calls it.
    kind: "line", `LOOP`, "with", or the name of a function.
    us, python_us: Microseconds of each timed step, as `Piece` has them.
    own_us, own_python_us: The same without what lies below.
    evaluates_us: Of these, those of forwards without gradients.
    trains: Whether something of it trains.
    calls: What the line itself calls, with the microseconds of Python of it.
    below: What it calls, or the lines of a block.
    """

    place: str
    kind: str
    us: list[float]
    python_us: list[float]
    own_us: list[float]
    own_python_us: list[float]
    evaluates_us: list[float]
    trains: bool = False
    calls: Counter[str] = field(default_factory=Counter)
    below: dict[tuple[str, str], Node] = field(default_factory=dict)

    @property
    def is_block(self) -> bool:
        """Whether it is a loop or a `with`."""
        return self.kind in (LOOP, _WITH)

    def untrained(self) -> Iterator[Node]:
        """Yield the outermost nodes that take no part in forward with gradients, backward and update."""
        for one in self.below.values():
            if one.trains:
                yield from one.untrained()
            else:
                yield one

    def mixed(self) -> Iterator[Node]:
        """Yield the nodes that take a part in the training."""
        for one in self.below.values():
            if one.trains:
                yield one
                yield from one.mixed()


def call_tree(pieces: Sequence[Piece]) -> Node:
    """Return the root of the tree of all pieces; where no file is there, it has lines alone."""
    count = len(pieces[0].us) if pieces else 0
    root = _node("", count, "")
    for piece in pieces:
        node, path = root, [root]
        for key in _path(piece.lines):
            if key not in node.below:
                node.below[key] = _node(key[1], count, key[0])
            node = node.below[key]
            path.append(node)
        for one in path:
            _add(one.us, piece.us)
            _add(one.python_us, piece.python_us)
            _add(one.evaluates_us, piece.us if piece.evaluates else ())
            one.trains = one.trains or piece.trains
        _add(node.own_us, piece.us)
        _add(node.own_python_us, piece.python_us)
        if piece.calls:
            node.calls[piece.calls] += round(sum(piece.python_us))
    return root


def _node(place: str, count: int, kind: str) -> Node:
    us, python_us, own_us, own_python_us, evaluates_us = ([0.0] * count for _ in range(5))
    return Node(place, kind, us, python_us, own_us, own_python_us, evaluates_us)


def _add(total: list[float], more: Sequence[float]) -> None:
    for at, one in enumerate(more):
        total[at] += one


def _path(lines: Sequence[tuple[str, int, str]]) -> Iterator[tuple[str, str]]:
    """Yield what tells each node of a path, and its place: of a function, the place that calls it."""
    place = ""
    for file, line, function in lines:
        yield (LOOP if function in _LOOPING else f"{file} {function}"), place
        for first, kind in _blocks(file).get(line, ()):
            yield kind, f"{file}:{first}"
        place = f"{file}:{line}"
        yield "line", place


@functools.lru_cache(maxsize=256)
def _blocks(file: str) -> dict[int, tuple[tuple[int, str], ...]]:
    """Return by line the blocks around it within its function, the outermost first: first line and kind."""
    try:
        parsed = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[int, tuple[tuple[int, str], ...]] = {}
    _note_blocks(parsed, (), found)
    return found


def _note_blocks(
    node: ast.AST,
    around: tuple[tuple[int, str], ...],
    found: dict[int, tuple[tuple[int, str], ...]],
) -> None:
    for one in ast.iter_child_nodes(node):
        inner = () if isinstance(one, _FUNCTIONS) else around
        if isinstance(one, _BLOCKS):
            inner = (*around, (one.lineno, LOOP if isinstance(one, _LOOPS) else _WITH))
        if isinstance(one, (ast.stmt, ast.Lambda)):
            for line in range(one.lineno, (one.end_lineno or one.lineno) + 1):
                found[line] = inner
        _note_blocks(one, inner, found)
