"""Variables, programs and packages around a script that name the old device, and their replacements.

What they are stands in `surroundings.json`; what takes their place each target says (`MigrationTarget`), and nothing
is said where nobody knows.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

from lockstep_migrate.engine.spans import Cover
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import Span

FOREIGN = "{new} reads this value otherwise than the old variable does"
COMPUTED = "is given a computed value: {new} reads numbers as the old variable does, and other values otherwise"

_OLD_DEVICE = re.compile(
    r"cuda|cudnn|cublas|cufft|cusparse|cusolver|curand|cupy|nccl|nvcc|nvidia|nvml|nvtx|nvprof|tensorrt|tf32|transformer_?engine"
    r"|(?<!\w)apex(?!\w)|\.cuh?(?!\w)",
    re.IGNORECASE,
)
_AROUND_NAMES = frozenset("./:+@%-_")
_BEFORE_NAMES = _AROUND_NAMES | {"=", "~"}


def old_names(
    text: str, start: int = 0, end: int | None = None, known: Cover | None = None
) -> Iterator[Span]:
    """Everything between two places that names the old device, with the word that it is part of.

    Names that lie in `known` are left out.

    Words are grown from the name outwards: a pattern for whole words would take the square of the length of a long one.
    """
    end = len(text) if end is None else end
    last = start
    for match in _OLD_DEVICE.finditer(text, start, end):
        if match.start() < last or (known and known.overlaps(Span(*match.span()))):
            continue
        low, high = match.span()
        while low > last and (text[low - 1].isalnum() or text[low - 1] in _BEFORE_NAMES):
            low -= 1
        while high < end and (text[high].isalnum() or text[high] in _AROUND_NAMES):
            high += 1
        last = high
        yield Span(low, high)


def names_old_device(text: str) -> bool:
    """Whether anything in a text names the old device."""
    return _OLD_DEVICE.search(text) is not None


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable.

    name: The variable; empty for the entry of a prefix.
    about: What it is for, to follow "the variable".
    values: A regular expression of the values that mean the same to other devices; empty where all do.
    """

    name: str
    about: str
    values: str = ""

    def is_foreign(self, value: str) -> bool:
        """Whether a value that stands there whole is one that other devices read otherwise."""
        computed = re.search(r"[$`]", value)
        return bool(self.values) and not computed and not re.fullmatch(self.values, value)

    def replacement(self, target: MigrationTarget) -> str:
        """What to write on a target; for the neutral form one entry a device."""
        return instead_of(target, self.name)


@dataclass(frozen=True, slots=True)
class Thing:
    """A program or a package: by which name targets say what takes its place, and what it is."""

    name: str
    about: str

    def replacement(self, target: MigrationTarget) -> str:
        """What to use on a target; for the neutral form one entry a device."""
        return instead_of(target, self.name)


def instead_of(target: MigrationTarget, name: str) -> str:
    """What a target says takes the place of a variable, a program or a package."""
    return said_of(target, lambda one: one.environment.get(name) or one.instead.get(name, ""))


def said_of(target: MigrationTarget, ask: Callable[[MigrationTarget], str]) -> str:
    """What a target says; for the neutral form, where it says nothing itself, what each device says side by side."""
    each = (f"{one.name}: {words}" for one in target.among if (words := ask(one)))
    return ask(target) or "; ".join(each)


def device_on(target: MigrationTarget, value: str) -> str:
    """A device such as `cuda:1` in a target's words; the only one of a machine has no number."""
    number = value.partition(":")[2]
    if target.single and number not in ("", "0"):
        return target.device
    return target.device and target.device + value[len("cuda") :]


def backend_on(target: MigrationTarget, value: str) -> str:
    """A backend in a target's words: `cpu:gloo,cuda:nccl` has a device in it, too."""
    named = re.sub(r"\bcuda:", f"{target.device}:", value)
    return target.backend and re.sub(r"\bnccl\b", target.backend, named)


def word_on(value: str, target: MigrationTarget) -> str:
    """A device, a backend or what a launcher counts in a target's words."""
    if value == "gpu":
        return target.launcher_device
    return (backend_on if "nccl" in value else device_on)(target, value)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The tables of `surroundings.json`."""

    variables: Mapping[str, Variable]
    prefixes: Mapping[str, str]
    programs: Mapping[str, Thing]
    packages: tuple[tuple[re.Pattern[str], Thing], ...]

    def variable(self, name: str, target: MigrationTarget) -> Variable | None:
        """The entry of a variable that is not the user's own."""
        if name in self.variables:
            return self.variables[name]
        for prefix, about in self.prefixes.items():
            if name.startswith(prefix) and name != prefix:
                return Variable(name, about)
        known = name in target.environment
        return Variable(name, "is of the old device's software") if known else None

    def package(self, name: str) -> Thing | None:
        """The entry of a package that needs the old device."""
        for pattern, thing in self.packages:
            if pattern.fullmatch(name.lower()):
                return thing
        return None


@functools.cache
def surroundings() -> Surroundings:
    """The tables, read once."""
    text = resources.files(__package__).joinpath("surroundings.json").read_text("utf-8")
    data = json.loads(text)
    things = {
        name: Thing(e["names"][0], e["about"]) for e in data["programs"] for name in e["names"]
    }
    packages = [
        (re.compile(e["pattern"]), Thing(e["pattern"], e["about"])) for e in data["packages"]
    ]
    return Surroundings(
        variables={entry["name"]: Variable(**entry) for entry in data["variables"]},
        prefixes={entry["prefix"]: entry["about"] for entry in data["prefixes"]},
        programs=things,
        packages=tuple(packages),
    )
