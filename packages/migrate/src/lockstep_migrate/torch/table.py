"""Tables of names: what each API of CUDA becomes on a target.

A table is CSV with the columns `name,action,becomes,arguments,reason`:

name
    A dotted name, or a prefix with `.*`, or the start of a last name with `*`; the longest match counts,
    a target's own table before the common one. `torch.cuda.current_stream().cuda_stream` is what a call's result is
    asked for (`[]` stands for an index or for unpacking), `.double()` a method of whatever it is.
    Of several rows of one name the first counts whose arguments can be carried out.
action
    `rename` writes `becomes` in its place, `differs` does so too where it does not mean the same (the reason says how),
    `similar` does so only with `--similar` and is a risk, `list` asks a person (`becomes` says what to use instead),
    `keep` leaves it, `alias` looks `becomes` up instead.
becomes
    An expression: `{type}` stands for the device type, `{device}` for the device to place things on, `{backend}` for
    the collective backend, `{module}` for the module that stands for `torch.cuda`, `{accelerator}` for the neutral
    target's helper, `*` for what a prefix left over.
arguments
    Of a `list` row: `used`, it holds only where the value is used for more than being shown; `set`, where it is set,
    `on`, and to more than False;
    `called`, only where it may be called: an import, a type to ask for and one of several names need nothing;
    `placed`, it holds only where the value may reach the device; `beside`, in a module that places tensors itself;
    `numpy`, where it is made of NumPy's numbers in double precision; `given`, or of an array that a function is given;
    `alone`, the call that gave the result is migrated all the same; `anywhere`, it holds
    for whatever has the field, in a module that calls the function.
    Of others: what happens to a call's arguments, steps as the words of a shell;
    see `lockstep_migrate.engine.arguments`.
reason
    Why, in words.
"""

from __future__ import annotations

import csv
import enum
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

from lockstep_migrate.hookspecs import MigrationTarget

COLUMNS = ("name", "action", "becomes", "arguments", "reason")
_ALIASES = 4


class Action(enum.Enum):
    """The action of a row."""

    RENAME = "rename"
    DIFFERS = "differs"
    SIMILAR = "similar"
    LIST = "list"
    KEEP = "keep"
    ALIAS = "alias"

    @property
    def writes(self) -> bool:
        """Whether a row of this kind changes the text without being asked to."""
        return self in (Action.RENAME, Action.DIFFERS)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a table; of a prefix row, filled in for the name that was looked up."""

    name: str
    action: Action
    becomes: str
    arguments: tuple[str, ...]
    reason: str
    table: str
    otherwise: Entry | None = None
    """The next row of this name in its table, for calls whose arguments this one cannot take."""

    @property
    def rule(self) -> str:
        """The identifier that reports show."""
        return f"names/{self.table}/{self.name}"


class TableError(ValueError):
    """A table of names is malformed."""


class Table:
    """The rows that hold for one target."""

    def __init__(self, target: MigrationTarget, entries: tuple[Entry, ...]) -> None:
        self.entries = entries
        self._target = target
        self._exact: dict[str, Entry] = {}
        self._prefixes: dict[str, Entry] = {}
        self._longest: dict[str, tuple[str, Entry] | None] = {}
        self._starts: dict[str, Entry] = {}
        for entry in entries:  # a target's own rows come first and win
            if entry.name.endswith(".*"):
                self._prefixes.setdefault(entry.name[:-2], entry)
            elif entry.name.endswith("*"):
                self._starts.setdefault(entry.name[:-1], entry)
            else:
                self._exact.setdefault(entry.name, entry)
        self.loose = frozenset(
            name
            for name, entry in self._exact.items()
            if name.startswith(".") or (name.endswith("Tensor") and "placed" in entry.arguments)
        )
        """What rows speak of wherever it stands: `.double()`, and `torch.DoubleTensor` as a text."""
        self.results = frozenset(
            name.partition("()")[0] for name in (*self._exact, *self._prefixes) if ")." in name
        )
        """The functions of whose results rows speak."""
        self.words = frozenset(
            _word(name.removesuffix("()"))
            for name, entry in self._exact.items()
            if name.startswith(".")
            or ("placed" in entry.arguments and "numpy" not in entry.arguments)
        )
        """Names that a file is read for although they name no device, such as `float64`."""
        self.anywhere = {
            name.rpartition(".")[2]: (name.partition("()")[0], entry)
            for name, entry in self._exact.items()
            if "anywhere" in entry.arguments
        }
        """What a result has that nothing else is likely to have: the function that gives it, and the row."""

    def lookup(self, name: str) -> Entry | None:
        """The row for exactly this dotted name, aliases followed and prefixes filled in."""
        for _ in range(_ALIASES):
            entry = self._find(name)
            if entry is None or entry.action is not Action.ALIAS:
                return entry and self._existing(entry, name)
            name = entry.becomes
        raise TableError(f"{name}: aliases lead in a circle")

    def result(self, name: str) -> Entry | None:
        """The row for what a result is asked for: `torch.cuda.get_device_properties().major`."""
        return self._exact.get(name) or self._prefixes.get(name.rpartition(".")[0])

    def longest(self, name: str) -> tuple[str, Entry] | None:
        """The longest prefix of a dotted name that has a row, and that row.

        A row of its own beats one with `.*` unless the latter names more of it. Where the target lacks the whole
        name, a class in it that the target has counts (`torch.cuda.Stream.query`).
        """
        if name not in self._longest:
            self._longest[name] = self._find_longest(name)
        return self._longest[name]

    def _find_longest(self, name: str) -> tuple[str, Entry] | None:
        parts = name.split(".")
        prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        exact = next((p for p in prefixes if p in self._exact or self._starting(p)), "")
        wild = next((prefix for prefix in prefixes[1:] if prefix in self._prefixes), "")
        if exact and len(exact) > len(wild):
            entry = self.lookup(exact)
            return (exact, entry) if entry else None
        candidates = [prefix for prefix in prefixes if len(prefix) > len(wild)] if wild else []
        found = [(prefix, entry) for prefix in candidates if (entry := self.lookup(prefix))]
        there = [
            (prefix, entry)
            for prefix, entry in found
            if entry.action is not Action.LIST and (prefix == name or _is_class(prefix))
        ]
        return next(iter(there or found), None)

    def _find(self, name: str) -> Entry | None:
        if name in self._exact:
            return self._exact[name]
        starting = self._starting(name)
        if starting:
            return starting
        prefix = name
        while "." in prefix:
            prefix = prefix.rpartition(".")[0]
            if prefix in self._prefixes:
                entry = self._prefixes[prefix]
                rest = name[len(prefix) + 1 :]
                return replace(entry, becomes=entry.becomes.replace("*", rest))
        return None

    def _starting(self, name: str) -> Entry | None:
        """The row for names that start like this one."""
        return next(
            (
                entry
                for start, entry in self._starts.items()
                if name.startswith(start) and "." not in name[len(start) :]
            ),
            None,
        )

    def _existing(self, entry: Entry, name: str) -> Entry:
        """The row as it is, or a listing where the target has no such name."""
        writes = entry.action.writes or entry.action is Action.SIMILAR
        if not writes or self._has(entry.becomes):
            return entry
        lacking = [one.name for one in self._target.among if not self._gives(one, entry.becomes)]
        first, last = ", ".join(lacking[:-1]), (lacking or [self._target.name])[-1]
        who = f"{first} and {last} have" if first else f"{last} has"
        reason = f"{who} no counterpart of {name}"
        return replace(entry, action=Action.LIST, becomes="", reason=reason)

    def _gives(self, device: MigrationTarget, becomes: str) -> bool:
        return device.has_name("{module}" + becomes.rpartition(")")[2].removeprefix("{module}"))

    def _has(self, becomes: str) -> bool:
        bare = becomes.split("(")[0]
        if becomes.startswith("{module}"):
            return self._target.has_name(becomes)
        return not bare or bare.startswith("{") or self._target.has_name(bare)


def _word(name: str) -> str:
    """The part of a dotted name that tells it from plain English: `torch.put`, but `CTCLoss` and `float64`."""
    last = name.rpartition(".")[2]
    plain = last.isalpha() and last.islower() and not name.startswith(".")
    return ".".join(name.split(".")[-2:]) if plain else last


def _is_class(name: str) -> bool:
    """Whether a dotted name is a class by its spelling, so that what follows is an attribute and no other API."""
    return name.rpartition(".")[2][:1].isupper()


@lru_cache(maxsize=8)
def table_of(target: MigrationTarget) -> Table:
    """The rows for a target: what it cannot run, its own, then the common ones.

    Raises TableError if a table is malformed.
    """
    lacks = tuple(
        Entry(name, Action.LIST, "", (), reason, f"{target.name} lacks")
        for name, reason in target.lacks.items()
    )
    own = read_table(target.rules, target.name)
    common = read_table(built_in("common.csv"), "common")
    return Table(target, lacks + own + tuple(_without_kernels(target)) + common)


def _without_kernels(target: MigrationTarget) -> Iterator[Entry]:
    """Rows for the functions that Apple's GPU has no kernel for, on it and where it is one of several devices."""
    instead = "the tensors stay on the CPU for it, or PYTORCH_ENABLE_MPS_FALLBACK=1"
    if target.device == "mps":
        arguments, reason = ["placed"], "has no kernel for Apple's GPU, and stops there"
    elif any(one.device == "mps" for one in target.among):
        arguments = ["placed", "beside"]
        reason = "if this runs on Apple's GPU, it stops with an error: that has no kernel for it"
    else:
        return
    for name in built_in("mps_lacks.txt").splitlines():
        if not name.startswith("#"):
            yield Entry(name, Action.LIST, instead, tuple(arguments), reason, "mps lacks")


def built_in(name: str) -> str:
    """The text of a file of tables that Lockstep ships, such as `npu.csv`."""
    return (resources.files(__package__) / "tables" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=16)
def read_table(text: str, table: str) -> tuple[Entry, ...]:
    """Parse a table; lines that start with `#` are comments.

    Raises TableError if a row lacks a column, or names an unknown action.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    entries = []
    for row in csv.DictReader(lines, fieldnames=COLUMNS):
        if None in row or None in row.values():
            raise TableError(f"table {table}: {row['name']}: needs {len(COLUMNS)} columns")
        try:
            action = Action(row["action"])
        except ValueError as error:
            raise TableError(f"table {table}: {row['name']}: {error}") from error
        arguments = tuple(shlex.split(row["arguments"]))
        entries.append(Entry(row["name"], action, row["becomes"], arguments, row["reason"], table))
    return tuple(_chained(entries))


def _chained(entries: list[Entry]) -> list[Entry]:
    """Rows of one name as one row with the others behind it."""
    found: dict[str, Entry] = {}
    for entry in reversed(entries):
        found[entry.name] = replace(entry, otherwise=found.get(entry.name))
    return [found[name] for name in dict.fromkeys(entry.name for entry in entries)]
