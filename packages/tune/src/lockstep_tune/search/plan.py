"""The YAML file of a search, read into a `Plan`; each mistake is named by its line and key."""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from lockstep.errors import RecordingError, UsageError, reason_of
from lockstep.terminal import nearest_names

Value = float | int | str | bool

NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf|nan)"
"""A number as Python, C and printf write it."""

SAMPLERS = {
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "random": "RandomSampler",
    "cmaes": "CmaEsSampler",
}
"""`tuner.name`, and the class of Optuna that it stands for."""

PRUNERS = {"median": "MedianPruner", "hyperband": "HyperbandPruner"}
"""`prune.by`, and the class of Optuna that it stands for."""


class Kind(str, enum.Enum):
    """The kind of values of a parameter; the words are those of `type`."""

    FLOAT = "float"
    INT = "int"
    CHOICE = "choice"
    SWITCH = "switch"
    """A flag that is given or left out."""


class Source(str, enum.Enum):
    """Where the objective is read; the words are the keys of `target`."""

    PRINTED = "printed"
    JSON_LINES = "jsonl"
    TENSORBOARD = "tensorboard"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that is searched.

    name, kind: How it is called, and what values it takes.
    low, high, log: The bounds of a number, both included, and whether it is drawn on a logarithmic scale.
    choices: The values of a choice.
    flag, key, variable: How the training gets it: a flag, a key of the config file, or a variable of the environment.
        At most one is not "".
    """

    name: str
    kind: Kind
    low: float = math.nan
    high: float = math.nan
    log: bool = False
    choices: tuple[Value, ...] = ()
    flag: str = ""
    key: str = ""
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """The number to make small or large.

    name: How it is called: the tag of TensorBoard, the key of a JSON line.
    maximize: Whether more is better.
    source, where: Where it is read: a pattern with one group for printed lines, else a file or folder.
    best: Whether the best of its values counts, not the last.
    """

    name: str
    maximize: bool
    source: Source
    where: str
    best: bool


@dataclass(frozen=True, slots=True)
class Resources:
    """The processors and accelerators that one trial takes on a cluster, or that a node has."""

    cpus: int = 1
    gpus: int = 0

    def fit(self, node: Resources) -> bool:
        """Return whether a node has as many."""
        return self.cpus <= node.cpus and self.gpus <= node.gpus


@dataclass(frozen=True, slots=True)
class Plan:
    """The contents of a search file.

    parameters, target: What is searched, and for what.
    command: The training's; empty where the file has none.
    config: The training's own config file, whose keys are set; None for none.
    flags: Whether a parameter without `flag`, `key` and `variable` is given as `--NAME VALUE`.
    summaries: A folder in which each trial gets one of its own for its event files; None for the trial's folder.
    sampler, pruner, warmup_steps, every: By which classes of Optuna values are drawn and trials are cut ("" for never),
        from which step on, and of which steps it hears.
    reference: A recording that each trial may not leave by a fault.
    rules: Rules of `lockstep watch` that none may fire.
    resources: What each trial takes of a cluster.
    trials, processes, seed, where: How many, how many at a time, from which random numbers, and the file, for messages.
    """

    parameters: tuple[Parameter, ...]
    target: Target
    command: tuple[str, ...] = ()
    config: Path | None = None
    flags: bool = True
    summaries: Path | None = None
    sampler: str = "TPESampler"
    pruner: str = ""
    warmup_steps: int = 0
    every: int = 1
    reference: Path | None = None
    rules: tuple[str, ...] = ()
    resources: Resources = Resources()
    trials: int = 20
    processes: int = 1
    seed: int | None = None
    where: str = "search.yaml"

    def subject(self) -> str:
        """The values and the target that a later run must share with this one to go on."""
        return repr((self.parameters, self.target, self.reference, self.rules))


def read_plan(path: Path) -> Plan:
    """Read the YAML file of a search.

    Raises RecordingError if it cannot be read. Raises UsageError if something in it is wrong; the message begins with
    the file, the line and the key.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordingError(
            path, f"cannot be read ({reason_of(error)})", advice="give a YAML file"
        ) from error
    try:
        node, values = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}") from error
    reader = _Reader(str(path))
    if node is not None:
        reader.learn(node, ())
    return reader.plan(values)


class _Reader:
    """Takes values out of the file and knows the line of each key."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lines: dict[tuple[str, ...], int] = {}

    def learn(self, node: yaml.Node, at: tuple[str, ...]) -> None:
        """Note the line of each key, and refuse one that is given twice."""
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            below = (*at, str(key.value))
            again = below in self._lines
            self._lines[below] = key.start_mark.line + 1
            if again:
                self.wrong(below, "is given twice")
            self.learn(value, below)

    def wrong(self, at: tuple[str, ...], what: str) -> NoReturn:
        """Raise, with the line of a key or of what is around it."""
        for length in range(len(at), 0, -1):
            if at[:length] in self._lines:
                raise UsageError(f"{self._where}:{self._lines[at[:length]]}: {'.'.join(at)} {what}")
        raise UsageError(f"{self._where}: {'.'.join(at)} {what}")

    def plan(self, values: Any) -> Plan:
        """Return the plan."""
        top = self._mapping((), values, _KEYS)
        if not top.get("parameters"):
            self.wrong(
                ("parameters",),
                "is missing; list the settings to search, each with bounds or choice",
            )
        given = self._mapping(("parameters",), top["parameters"])
        parameters = tuple(self._parameter(name, value) for name, value in given.items())
        config = self._path(top, "config")
        keyed = next((one for one in parameters if one.key), None)
        if keyed and config is None:
            self.wrong(
                ("parameters", keyed.name, "key"), "needs the file that has it: config: FILE"
            )
        tuner = self._mapping(("tuner",), top.get("tuner") or {}, ("name", "args"))
        prune = self._mapping(("prune",), top.get("prune") or {}, ("by", "after", "every"))
        return Plan(
            parameters, self._target(top), self._command(top), config,
            flags=self._among(("give",), top.get("give", "flags"), ("flags", "environment")) == "flags",
            summaries=self._path(top, "summary_base_dir"),
            sampler=SAMPLERS[self._among(("tuner", "name"), tuner.get("name", "tpe"), SAMPLERS)],
            pruner=PRUNERS[self._among(("prune", "by"), prune.get("by", "median"), PRUNERS)] if prune else "",
            warmup_steps=self._whole(("prune", "after"), prune.get("after", 0), 0),
            every=self._whole(("prune", "every"), prune.get("every", 1), 1),
            reference=self._path(top, "reference"),
            rules=self._words(("rules",), top.get("rules") or []),
            resources=self._resources(top),
            trials=self._whole(("trials",), top.get("trials", 20), 1),
            processes=self._whole(("processes",), top.get("processes", 1), 1),
            seed=None if top.get("seed") is None else self._whole(("seed",), top["seed"], 0),
            where=self._where,
        )  # fmt: skip

    def _target(self, top: Mapping[str, Any]) -> Target:
        sources = [source.value for source in Source]
        keys = ("name", "goal", "group", "take", *sources)
        given = self._mapping(("target",), top.get("target") or {}, keys)
        if not isinstance(given.get("name"), str):
            self.wrong(("target", "name"), "is missing; name what is to become small or large")
        read = [source for source in sources if source in given]
        if len(read) > 1:
            self.wrong(("target", read[1]), f"and {read[0]}: give one of the two")
        source = Source(read[0]) if read else Source.PRINTED
        name = given["name"]
        where = str(given[read[0]]) if read else rf"(?i)\b{re.escape(name)}\b\W{{1,3}}({NUMBER})"
        if top.get("summary_base_dir") and not read:
            source, where = Source.TENSORBOARD, "{summaries}"
        if source is Source.PRINTED:
            self._check_pattern(where)
        goal = self._among(
            ("target", "goal"), given.get("goal", "minimize"), ("minimize", "maximize")
        )
        take = self._among(("target", "take"), given.get("take", "last"), ("last", "best"))
        return Target(name, goal == "maximize", source, where, take == "best")

    def _resources(self, top: Mapping[str, Any]) -> Resources:
        given = self._mapping(("resources",), top.get("resources") or {}, ("cpus", "gpus"))
        cpus, gpus = (
            self._whole(("resources", name), given.get(name, least), 0)
            for name, least in (("cpus", 1), ("gpus", 0))
        )
        return Resources(cpus, gpus)

    def _check_pattern(self, pattern: str) -> None:
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            self.wrong(("target", "printed"), f"is no regular expression: {error}")
        if groups != 1:
            self.wrong(("target", "printed"), f"has {groups} groups; put the number in one (...)")

    def _parameter(self, name: str, value: Any) -> Parameter:
        at = ("parameters", str(name))
        keys = ("bounds", "choice", "type", "scale", "source", "flag", "key", "variable")
        given = self._mapping(at, value, keys)
        kinds = [kind.value for kind in Kind]
        default = "choice" if "choice" in given else "float"
        kind = Kind(self._among((*at, "type"), given.get("type", default), kinds))
        way = {one: str(given[one]) for one in ("flag", "key", "variable") if one in given}
        if len(way) > 1:
            self.wrong(at, f"has {' and '.join(way)}; give one")
        return dataclasses.replace(self._drawn(str(name), kind, at, given), **way)  # type: ignore[arg-type]

    def _drawn(
        self, name: str, kind: Kind, at: tuple[str, ...], given: Mapping[str, Any]
    ) -> Parameter:
        """Return a parameter with its values."""
        if kind is Kind.SWITCH:
            return Parameter(name, kind, choices=(False, True))
        if "choice" in given:  # then, as mindoptimizer has it, `type` is what its numbers are
            return Parameter(name, Kind.CHOICE, choices=self._choices(at, given, kind))
        low, high = self._bounds(at, given, whole=kind is Kind.INT)
        scale = self._among((*at, "scale"), given.get("scale", "linear"), ("linear", "log"))
        if scale == "log" and low <= 0:
            self.wrong((*at, "bounds"), f"begin at {low:g}; scale: log needs more than 0")
        return Parameter(name, kind, low, high, scale == "log")

    def _bounds(
        self, at: tuple[str, ...], given: Mapping[str, Any], *, whole: bool
    ) -> tuple[float, float]:
        bounds = given.get("bounds")
        if bounds is None:
            self.wrong(
                at, "has neither bounds nor choice; give bounds: [LOW, HIGH], or choice: [A, B]"
            )
        if not isinstance(bounds, list) or len(bounds) != 2:
            self.wrong((*at, "bounds"), "take two numbers: [LOW, HIGH]")
        low, high = (self._number((*at, "bounds"), one, whole=whole) for one in bounds)
        if not low < high:
            self.wrong((*at, "bounds"), f"are [{low:g}, {high:g}]; the second has to be larger")
        return low, high

    def _choices(
        self, at: tuple[str, ...], given: Mapping[str, Any], kind: Kind
    ) -> tuple[Value, ...]:
        choices = given["choice"]
        if not isinstance(choices, list) or not choices:
            self.wrong((*at, "choice"), "takes a list of values")
        if kind in (Kind.FLOAT, Kind.INT):
            return tuple(
                self._number((*at, "choice"), one, whole=kind is Kind.INT) for one in choices
            )
        odd = next((one for one in choices if not isinstance(one, Value)), None)
        if odd is not None:
            self.wrong((*at, "choice"), f"has {odd!r}; values are numbers, texts or true and false")
        return tuple(choices)

    def _number(self, at: tuple[str, ...], value: Any, *, whole: bool) -> float:
        """Return a number; YAML 1.1 reads 1e-5 as a text."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number) or (whole and number != int(number)):
            self.wrong(at, f"has {value!r}, which is no {'whole ' if whole else ''}number")
        return int(number) if whole else number

    def _whole(self, at: tuple[str, ...], value: Any, least: int) -> int:
        number = int(self._number(at, value, whole=True))
        if number < least:
            self.wrong(at, f"is {number}; the least is {least}")
        return number

    def _among(self, at: tuple[str, ...], value: Any, known: Any) -> str:
        if value not in list(known):
            self.wrong(at, f"is {value!r}, which is not known; give one of {', '.join(known)}")
        return str(value)

    def _words(self, at: tuple[str, ...], value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self.wrong(at, "takes a list of names")
        return tuple(value)

    def _command(self, top: Mapping[str, Any]) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(str(top.get("command") or "")))
        except ValueError as error:
            self.wrong(("command",), f"is no command line: {error}")

    def _path(self, top: Mapping[str, Any], key: str) -> Path | None:
        value = top.get(key)
        if value is not None and not isinstance(value, str):
            self.wrong((key,), "takes a path")
        return None if value is None else Path(value).expanduser().absolute()

    def _mapping(self, at: tuple[str, ...], value: Any, keys: Any = ()) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.wrong(at or ("the file",), "takes keys with values, a line each")
        for key in value:
            if keys and key not in keys:
                near = nearest_names(str(key), keys, 1)
                hint = f"; do you mean {near[0]}?" if near else f"; known are {', '.join(keys)}"
                self.wrong((*at, str(key)), f"is no key of a search{hint}")
        return value


_KEYS = (
    "command", "summary_base_dir", "tuner", "target", "parameters", "config", "give", "prune",
    "reference", "rules", "resources", "trials", "processes", "seed",
)  # fmt: skip
