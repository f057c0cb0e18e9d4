"""The arguments in which two commands differ, each for itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.files import MASK, masked
from lockstep.terminal import shell_line
from lockstep_tune.differences import Difference, Differences, Levels
from lockstep_tune.switches import AS_IT_IS, State

_OPTION = re.compile(r"-{1,2}[A-Za-z]")
_ASSIGNMENT = re.compile(r"([+~]{0,2}[A-Za-z_][\w.@/-]*)=")
_MOST_NAMED = 3
"""How many arguments the name of a state lists."""


@dataclass(frozen=True, slots=True)
class _Argument:
    """An option with its values, an assignment (`optim.lr=0.1`), or a word alone; `name` tells two of them apart."""

    name: str
    words: tuple[str, ...]


def arguments(reference: Sequence[str], candidate: Sequence[str]) -> Differences:
    """What differs in the words of two commands; the programs, their first words, are taken to be the same."""
    left, right = _arguments(reference[1:]), _arguments(candidate[1:])
    before, after = {one.name: one for one in left}, {one.name: one for one in right}
    names = _merged([one.name for one in left], [one.name for one in right])
    differing = [
        name for name in names
        if _values(before.get(name)) != _values(after.get(name)) and not _is_hidden(before.get(name))
    ]  # fmt: skip
    each = tuple(
        Difference(name, (_words(name, before.get(name)), _words(name, after.get(name))))
        for name in differing
    )

    def state_at(levels: Levels) -> State:
        if all(levels):
            return AS_IT_IS
        chosen = dict(zip(differing, levels, strict=True))
        words = [candidate[0]]
        for name in names:
            one = (after if chosen.get(name, 1) else before).get(name)
            words += one.words if one else ()
        return State(_name(each, levels), command=tuple(words))

    return Differences("argument", each, state_at)


def _name(each: Sequence[Difference], levels: Levels) -> str:
    """A name for the state in which some arguments are the reference's."""
    if not any(levels):
        return "with the reference's arguments"
    put_back = [one.values[0] for one, level in zip(each, levels, strict=True) if not level]
    if len(put_back) <= _MOST_NAMED:
        return f"with {', '.join(put_back)}"
    kept = [one.values[1] for one, level in zip(each, levels, strict=True) if level]
    return f"with the reference's arguments, but {', '.join(kept)}"


def _words(name: str, one: _Argument | None) -> str:
    return f"no {name}" if one is None else shell_line(one.words)


def _is_hidden(one: _Argument | None) -> bool:
    """Whether the recording keeps no value of an argument, as of a password."""
    return one is not None and any(masked(word) != word or MASK in word for word in one.words)


def _values(one: _Argument | None) -> tuple[str, ...] | None:
    """The words of an argument, the same for `--lr 0.1` and `--lr=0.1`."""
    if one is None:
        return None
    first, *others = one.words
    name, equals, value = first.partition("=")
    return (name, *([value] if equals else []), *others)


def _arguments(words: Sequence[str]) -> list[_Argument]:
    """The words of a command, each option with the values that follow it."""
    grouped: list[tuple[str, list[str]]] = []
    for word in words:
        assigned = _ASSIGNMENT.match(word)
        if _OPTION.match(word):
            grouped.append((word.partition("=")[0], [word]))
        elif assigned:
            grouped.append((assigned[1], [word]))
        elif grouped and _takes_values(grouped[-1][1]):
            grouped[-1][1].append(word)
        else:
            grouped.append(("argument", [word]))
    seen: dict[str, int] = {}
    found = []
    for name, parts in grouped:
        seen[name] = seen.get(name, 0) + 1
        again = f" {seen[name]}" if seen[name] > 1 or name == "argument" else ""
        found.append(_Argument(f"{name}{again}", tuple(parts)))
    return found


def _takes_values(parts: Sequence[str]) -> bool:
    return bool(_OPTION.match(parts[0])) and "=" not in parts[0]


def _merged(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """The names of both in the order of the second; those of the first alone after the name that they follow."""
    names, last = list(right), -1
    for name in left:
        if name in names:
            last = names.index(name)
        else:
            last += 1
            names.insert(last, name)
    return names
