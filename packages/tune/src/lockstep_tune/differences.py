"""What differs between two ways to run a training, and the states between them: variables, arguments, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lockstep.errors import UsageError
from lockstep_tune.switches import Ladder, State

Levels = tuple[int, ...]
"""Which of its values each difference has."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs.

    name: As it is printed.
    values: The words for each of its values; the one that agrees comes first.
    """

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """All that differs, and the state in which each thing has one of its values.

    kind: What they are, one of them as a noun.
    each: In the order in which they are searched.
    state_at: Returns the state for some levels.
    are_listed: Whether you listed the values, in an order that may not hold, so that each is worth a trial.
    """

    kind: str
    each: tuple[Difference, ...]
    state_at: Callable[[Levels], State]
    are_listed: bool = False

    @property
    def lowest(self) -> Levels:
        """All at the value that is expected to agree."""
        return (0,) * len(self.each)

    @property
    def highest(self) -> Levels:
        """All at the value that is expected to differ."""
        return tuple(len(one.values) - 1 for one in self.each)

    def path(self, start: Levels, stop: Levels, only: Iterable[int] | None = None) -> list[Levels]:
        """Levels from one state to a higher one, one value at a time; `only` are those that change."""
        here, found = list(start), [start]
        for at in range(len(start)) if only is None else only:
            while here[at] < stop[at]:
                here[at] += 1
                found.append(tuple(here))
        return found

    def ladder(self, path: Sequence[Levels]) -> Ladder:
        """The states of a path; each adds a value of one difference."""
        states = [self.state_at(one) for one in path]
        adds = {
            state.name: self.step(before, after)
            for state, before, after in zip(states[1:], path, path[1:], strict=False)
        }
        return Ladder(
            f"{self.kind}s" if len(self.each) > 1 else f"{self.kind} {self.each[0].name}",
            tuple(states),
            adds if len(self.each) > 1 else {},
        )

    def step(self, before: Levels, after: Levels) -> str:
        """Words for the one difference that two neighbouring states of a path have."""
        at = self.changed(before, after)
        one = self.each[at]
        low, high = (
            one.values[levels[at]].removeprefix(f"{one.name}: ") for levels in (before, after)
        )
        return f"{one.name} from {low} to {high}"

    @staticmethod
    def changed(before: Levels, after: Levels) -> int:
        """Which difference two neighbouring states of a path have."""
        return next(at for at, level in enumerate(after) if before[at] != level)

    def reversed(self) -> Differences:
        """The same with each thing's last value first."""
        highest, state_at = self.highest, self.state_at
        return replace(
            self,
            each=tuple(Difference(one.name, one.values[::-1]) for one in self.each),
            state_at=lambda levels: state_at(
                tuple(most - level for most, level in zip(highest, levels, strict=True))
            ),
        )


def variables(texts: Sequence[str]) -> Differences:
    """`NAME=A,B`, each the values of a variable of the environment.

    Raises UsageError if one has no name or no value, none has several values, or a name stands twice.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not (name and equals):
            raise UsageError(_write(text))
        if name in found:
            raise UsageError(f"--env {text}: {name} stands twice; give all its values at once")
        found[name] = tuple(dict.fromkeys(values.split(",")))
    if all(len(values) == 1 for values in found.values()):
        raise UsageError(_write(texts[0]))
    each = tuple(Difference(name, values) for name, values in found.items())

    def state_at(levels: Levels) -> State:
        chosen = {one.name: one.values[at] for one, at in zip(each, levels, strict=True)}
        return State(" ".join(f"{name}={value}" for name, value in chosen.items()), chosen)

    return Differences("variable", each, state_at, are_listed=True)


def _write(text: str) -> str:
    return (
        f"--env {text}: write NAME=A,B with the value that agrees first, as in OMP_NUM_THREADS=1,4"
    )
