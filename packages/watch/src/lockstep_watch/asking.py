"""`lockstep watch --interactive`: the training waits at the end of a step while somebody asks."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import numpy as np

from lockstep.errors import LockstepError, UsageError
from lockstep.launch import WrittenStep
from lockstep.recordings import NUMBERS, Statistics, TensorRecord, is_chosen
from lockstep.terminal import Column, nearest_names, printable, table_text
from lockstep_watch.chosen_rules import ChosenRule, apply_setting, check_name
from lockstep_watch.lines import fired_line
from lockstep_watch.observed import Hit, Memory, ObservedStep
from lockstep_watch.running import end_soon

_BARS = 20
_WIDTH = 40
_MOST_ROWS = 40

HELP = """\
next [N]              go on, and ask again N steps later (return: 1)
until RULE            go on until this rule fires; `any` for each
go                    go on, and ask no more unless a rule fires
stop                  end the training behind this step
calls [PATTERN]       the calls of this step: modules, operators, sites
stats PATTERN         numbers of their tensors
diff PATTERN          the same beside the step before
hist PATTERN [NAME]   how the values of a tensor lie
slice PATTERN [NAME] [INDEX]   its values: slice fc1 result 0:2,:4
rules                 the rules that are at work, with their settings
set RULE.SETTING=VALUE   change one
check                 hold this step against the rules once more
help                  this"""


class Asking:
    """Asks after each step, or once a rule fires.

    rules: The rules at work; what is set here counts from now on.
    ask: Gives a line that was typed; raises `EOFError` where none comes any more: the training goes on then.
    answer: Prints.
    rank: Whose steps are asked about: ranks that train with it wait for it.
    """

    def __init__(
        self,
        rules: Sequence[ChosenRule],
        ask: Callable[[str], str],
        answer: Callable[[str], None],
        *,
        rank: str = "rank0",
    ) -> None:
        self._rules, self._ask, self._answer, self._rank = rules, ask, answer, rank
        self._wait_steps = 1
        self._until: str | None = None
        self._closed = False
        self._before: dict[tuple[str, ...], Statistics] = {}
        self._memory = Memory()
        self._leave = False

    def before(self, memory: Memory) -> None:
        """A step is about to be held against the rules: keep what they know, for `check`."""
        self._memory = copy.deepcopy(memory)

    def after(self, written: WrittenStep, hits: Sequence[Hit]) -> None:
        """A step was looked at: ask, if it is time."""
        if self._closed or written.name != self._rank:
            return
        step = ObservedStep(written.rank, written.name, written.number, copy.deepcopy(self._memory))
        if self._is_time(hits):
            self._converse(written, step)
        self._before = {_key(one): one.statistics for one in _records(step) if one.statistics}

    def _is_time(self, hits: Sequence[Hit]) -> bool:
        if self._until is not None:
            return any(self._until in ("any", hit.rule) for hit in hits)
        self._wait_steps -= 1
        return self._wait_steps <= 0

    def _converse(self, written: WrittenStep, step: ObservedStep) -> None:
        self._until, self._wait_steps, self._leave = None, 1, False
        loss = "unknown" if step.loss is None else f"{step.loss:.6g}"
        self._answer(f"step {step.number}, loss {loss}; help lists what can be asked")
        while not self._leave:
            try:
                words = shlex.split(self._ask(f"step {step.number}> "))
            except EOFError:
                self._closed = True
                return
            except ValueError as error:
                self._answer(f"{error}")
                continue
            try:
                for line in self._said(words or ["next"], written, step):
                    self._answer(line)
            except (LockstepError, LookupError) as error:
                self._answer(str(error))

    def _said(self, words: list[str], written: WrittenStep, step: ObservedStep) -> Iterator[str]:
        verb, *rest = words
        if verb == "next":
            self._go_on(steps=_count_of(rest))
        elif verb == "until":
            name = rest[0] if rest else "any"
            check_name(name, [*(rule.name for rule in self._rules), "any"])
            self._go_on(until=name)
        elif verb in ("go", "continue"):
            self._go_on(until="any")
        elif verb in ("stop", "quit"):
            self._closed = self._leave = True
            yield f"the training is asked to end after step {end_soon(written)}"
        elif verb == "help":
            yield HELP
        elif verb == "rules":
            yield from (_rule_line(rule) for rule in self._rules)
        elif verb == "set":
            apply_setting({rule.name: rule for rule in self._rules}, " ".join(rest))
        elif verb == "check":
            yield from self._checked(written)
        else:
            yield from self._looked(verb, rest, step)

    def _go_on(self, *, steps: int = 1, until: str | None = None) -> None:
        self._wait_steps, self._until, self._leave = steps, until, True

    def _checked(self, written: WrittenStep) -> Iterator[str]:
        step = ObservedStep(written.rank, written.name, written.number, copy.deepcopy(self._memory))
        found = [hits for rule in self._rules if (hits := rule.hits(step))]
        yield from (fired_line(hits) for hits in found)
        if not found:
            yield "no rule fires"

    def _looked(self, verb: str, rest: list[str], step: ObservedStep) -> Iterator[str]:
        if verb == "calls":
            rows = [
                [str(call.site), call.source]
                for call in step.calls
                if not rest or is_chosen(rest[0], call.site)
            ]
            yield table_text([Column("site"), Column("line")], rows, limit=_MOST_ROWS)
            return
        if verb not in ("stats", "diff", "hist", "slice"):
            near = ", ".join(nearest_names(verb, [line.split()[0] for line in HELP.splitlines()]))
            raise UsageError(
                f"there is no {verb!r}{f'; nearest: {near}' if near else ''}; help lists all"
            )
        if not rest:
            raise UsageError(f"{verb}: give a module path, an operator or a site")
        chosen = [one for one in _records(step) if is_chosen(rest[0], one.site)]
        if not chosen:
            names = [name for call in step.calls for name in (call.site.module, call.site.op)]
            like = ", ".join(nearest_names(rest[0], names)) or "calls lists all"
            raise UsageError(f"nothing of this step is {rest[0]!r}; nearest: {like}")
        if verb == "stats":
            yield _table(chosen)
        elif verb == "diff":
            yield self._beside_before(chosen)
        else:
            record = _named(chosen, rest[1] if len(rest) > 1 else "")
            yield f"{record.site}: {record.role.value} {record.name} {record.dtype}{list(record.shape)}"
            index = rest[2] if len(rest) > 2 else ""
            yield _histogram(record) if verb == "hist" else _slice(record, index)

    def _beside_before(self, records: Sequence[TensorRecord]) -> str:
        if not self._before:
            return "no step before this one was looked at"
        rows = []
        for one in records:
            before = self._before.get(_key(one))
            if one.statistics is not None:
                cells = [
                    f"{getattr(before, name):.4g} -> {getattr(one.statistics, name):.4g}"
                    if before
                    else "-"
                    for name in ("mean", "norm", "maximum")
                ]
                rows.append([one.role.value, one.name, *cells])
        columns = [Column("role"), Column("name"), *map(Column, ("mean", "norm", "maximum"))]
        return table_text(columns, rows, limit=_MOST_ROWS)


def _records(step: ObservedStep) -> Iterator[TensorRecord]:
    for call in step.calls:
        yield from call.records


def _key(record: TensorRecord) -> tuple[str, ...]:
    return str(record.site), record.role.value, str(record.index), record.name


def _count_of(rest: Sequence[str]) -> int:
    if not rest:
        return 1
    if not (rest[0].isdigit() and int(rest[0])):
        raise UsageError(f"next {rest[0]}: give a number of steps")
    return int(rest[0])


def _rule_line(rule: ChosenRule) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in rule.settings.items())
    off = f"off: it raised {rule.off_because}" if rule.off_because else settings
    return printable(f"{rule.name:28} {off}".rstrip())


def _table(records: Sequence[TensorRecord]) -> str:
    columns = [Column("role"), Column("name"), Column("dtype"), Column("shape")]
    columns += [Column(name.removesuffix("_count"), right=True) for name in NUMBERS]
    rows = [
        [one.role.value, one.name, one.dtype, list(one.shape)]
        + [getattr(one.statistics, name) if one.statistics else "-" for name in NUMBERS]
        for one in records
    ]
    return table_text(columns, rows, limit=_MOST_ROWS)


def _named(records: Sequence[TensorRecord], name: str) -> TensorRecord:
    found = [one for one in records if not name or name in (one.name, one.role.value, one.argument)]
    if not found:
        names = ", ".join(dict.fromkeys(one.name for one in records))
        raise UsageError(f"there is no tensor {name!r} here; there are {names}")
    outputs = [one for one in found if one.role.value == "output"]
    return (outputs or found)[0]


def _histogram(record: TensorRecord) -> str:
    values = np.abs(record.load()) if np.iscomplexobj(record.load()) else record.load()
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return "no element is finite"
    counts, edges = np.histogram(finite, bins=_BARS)
    most = max(1, int(counts.max()))
    return "\n".join(
        f"{edges[at]:>12.4g}  {'#' * round(_WIDTH * int(count) / most):<{_WIDTH}} {count}"
        for at, count in enumerate(counts)
    )


def _slice(record: TensorRecord, index: str) -> str:
    values = record.load()
    try:
        parts = tuple(_part(one) for one in index.split(",")) if index else ()
        chosen = values[parts]
    except (ValueError, IndexError) as error:
        raise UsageError(f"slice {index}: {error}; write it as 0:2,:4") from error
    with np.printoptions(threshold=200, edgeitems=4, precision=6):
        return str(chosen)


def _part(text: str) -> int | slice:
    if ":" not in text:
        return int(text)
    return slice(*(int(one) if one.strip() else None for one in text.split(":")))


def typed(prompt: str) -> str:
    """A line of the terminal, edited by readline where it is there."""
    with suppress(ImportError):
        import readline  # noqa: F401  # input() uses it once it is loaded
    return input(prompt)
