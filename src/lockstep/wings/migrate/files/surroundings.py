"""What surrounds a script names the old device too: variables, programs, packages, and what takes their place.

The tables are data, in `surroundings.json`. Where a variable holds the same values on a target under another name it is
renamed there; otherwise the table says in words what to use instead, and nothing is said where nobody knows.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from lockstep.wings.migrate.engine.spans import Cover
from lockstep.wings.migrate.hookspecs import MigrationTarget
from lockstep.wings.migrate.plan import Span

DEVICES = ("npu", "xpu", "hpu", "mps")
NEUTRAL = "neutral"

FOREIGN = "{new} reads this value otherwise than the old variable does"
COMPUTED = "is given a computed value: {new} reads numbers as the old variable does, and other values otherwise"

NOTHING: Mapping[str, str] = {}

_OLD_DEVICE = re.compile(
    r"cuda|cudnn|cublas|cufft|cusparse|cusolver|curand|cupy|nccl|nvcc|nvidia|nvml|nvtx|nvprof|tensorrt|tf32"
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

    Parameters
    ----------
    name
        The variable; empty for the entry of a prefix.
    about
        What it is for, to follow "the variable".
    rename
        Its name on each target where its values mean the same.
    instead
        What to do on the other targets.
    values
        A regular expression of the values that keep their meaning; empty where all do.
    """

    name: str
    about: str
    rename: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    values: str = ""

    def is_foreign(self, value: str) -> bool:
        """Whether a value that stands there whole is one that other devices read otherwise."""
        computed = re.search(r"[$`]", value)
        return bool(self.values) and not computed and not re.fullmatch(self.values, value)

    def replacement(self, target: str) -> str:
        """What to write on `target`; for the neutral form one entry a device."""
        return per_device({**self.instead, **self.rename}, target)


@dataclass(frozen=True, slots=True)
class Thing:
    """A program or a package: what it is, and what takes its place on each target."""

    about: str
    instead: Mapping[str, str]

    def replacement(self, target: str) -> str:
        """What to use on `target`; for the neutral form one entry a device."""
        return per_device(self.instead, target)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The tables of `surroundings.json`; `devices` is what each target calls its device."""

    devices: Mapping[str, str]
    backends: Mapping[str, str]
    launcher_devices: Mapping[str, str]
    containers: Mapping[str, str]
    images: Mapping[str, str]
    paths: Mapping[str, str]
    indexes: Mapping[str, str]
    variables: Mapping[str, Variable]
    prefixes: Mapping[str, str]
    programs: Mapping[str, Thing]
    packages: tuple[tuple[re.Pattern[str], Thing], ...]

    def variable(self, name: str) -> Variable | None:
        """The entry of a variable that is not the user's own."""
        if name in self.variables:
            return self.variables[name]
        for prefix, about in self.prefixes.items():
            if name.startswith(prefix) and name != prefix:
                return Variable(name, about)
        return None

    def package(self, name: str) -> Thing | None:
        """The entry of a package that needs the old device."""
        for pattern, thing in self.packages:
            if pattern.fullmatch(name.lower()):
                return thing
        return None


def per_device(table: Mapping[str, str], target: str) -> str:
    """The entry for `target`; for the neutral form its own entry, or those of all devices side by side."""
    if target in table or target != NEUTRAL:
        return table.get(target, "")
    return "; ".join(f"{device}: {table[device]}" for device in DEVICES if device in table)


@functools.cache
def surroundings() -> Surroundings:
    """The tables, read once."""
    text = resources.files(__package__).joinpath("surroundings.json").read_text("utf-8")
    data = json.loads(text)
    return Surroundings(
        devices={device: device for device in DEVICES},
        **{key: data[key] for key in ("backends", "launcher_devices", "containers", "images")},
        paths=data["paths"],
        indexes=data["indexes"],
        variables={entry["name"]: Variable(**entry) for entry in data["variables"]},
        prefixes={entry["prefix"]: entry["about"] for entry in data["prefixes"]},
        programs={name: _thing(entry) for entry in data["programs"] for name in entry["names"]},
        packages=tuple((re.compile(entry["pattern"]), _thing(entry)) for entry in data["packages"]),
    )


def surroundings_of(target: MigrationTarget) -> Surroundings:
    """The tables with a target in them that is none of the built-in ones, by what it says of itself."""
    known, name = surroundings(), target.name
    if name == NEUTRAL or name in known.devices:
        return known
    variables = dict(known.variables)
    for old, new in target.environment.items():
        entry = known.variable(old) or Variable(old, "is of the old device's software")
        variables[old] = replace(entry, rename={**entry.rename, name: new})
    own = {
        "devices": target.device,
        "launcher_devices": target.device,
        "backends": target.backend,
        "images": target.image,
        "containers": target.container_options,
        "indexes": target.package_index,
        "paths": target.folder,
    }
    tables: dict[str, Any] = {
        table: {**getattr(known, table), name: said} for table, said in own.items() if said
    }
    return replace(known, variables=variables, **tables)


def _thing(entry: dict[str, Any]) -> Thing:
    return Thing(entry["about"], entry.get("instead", NOTHING))
