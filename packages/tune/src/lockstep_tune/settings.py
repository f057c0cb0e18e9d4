"""The knobs of `lockstep tune` with their values, and the YAML file of `lockstep run-tuned`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lockstep.errors import RecordingError, UsageError
from lockstep_tune.rewrites import Rewrite

Value = int | str | bool

VARIABLE = "LOCKSTEP_TUNED"
"""The environment variable that tells the process what is set in it, as JSON; see `applying`."""

INSIDE = "lockstep_tune.applying"
"""What a process loads to set it."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing that can be set without an edit of the script.

    what: What it sets, in a few words.
    values: Which values it takes, in words.
    takes: Whether it takes a value.
    place: What a training needs to have for it, "" for nothing.
    used_as: The `Use.knob` of that place.
    """

    what: str
    values: str
    takes: Callable[[Value], bool]
    place: str = ""
    used_as: str = ""


def _among(*words: Value) -> tuple[str, Callable[[Value], bool]]:
    known = [(type(one), one) for one in words]
    shown = ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in words)
    return f"one of {shown}", lambda value: (type(value), value) in known


def _whole(least: int) -> tuple[str, Callable[[Value], bool]]:
    def takes(value: Value) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return f"a whole number from {least}", takes


_LOADER = ("DataLoader of torch", "workers")
_MODEL = ("model that is trained by its forward", "model")

KNOBS: Mapping[str, Knob] = {
    "threads": Knob("threads of one process", *_whole(1)),
    "affinity": Knob("cores that threads stay on (OMP_PROC_BIND)", *_among("close", "spread")),
    "workers": Knob("processes that load data (num_workers)", *_whole(0), *_LOADER),
    "prefetch": Knob("batches that each of them has ready (prefetch_factor)", *_whole(1),
                     "DataLoader of torch with workers", "workers"),
    "pin": Knob("batches in page-locked memory (pin_memory)", *_among(True, False),
                "DataLoader of torch beside an accelerator", "workers"),
    "optimizer": Knob("kernels of the optimizer", *_among("plain", "foreach", "fused"),
                      "optimizer of torch.optim with such kernels", "optimizer"),
    "checkpointing": Knob("activation checkpointing", *_among(True, False),
                          "call of torch.utils.checkpoint, or gradient_checkpointing_enable", "checkpointing"),
    "channels_last": Knob("images with channels last in memory", *_among(True), "Conv2d", "channels_last"),
    "bucket": Knob("MB of gradients that DDP reduces together (bucket_cap_mb)", *_whole(1),
                   "DistributedDataParallel", "bucket"),
    "compile": Knob("torch.compile of the model", *_among("default", "reduce-overhead", "max-autotune"),
                    "model that is trained by its forward and not compiled yet", "model"),
    "float32_matmul": Knob("precision of float32 products (TF32)", *_among("highest", "high", "medium")),
    "autocast": Knob("16 bits where autocast allows (O1)", *_among("bfloat16", "float16"), *_MODEL),
    "weights": Knob("16-bit weights, float32 copies of them (O2)", *_among("bfloat16", "float16"), *_MODEL),
    "loss_scale": Knob(
        "how the loss is scaled for float16",
        'dynamic, or a power of two for a static one',
        lambda value: value == "dynamic" or (_whole(1)[1](value) and int(value).bit_count() == 1),
        "GradScaler, and nothing in float16", "loss_scale",
    ),
}  # fmt: skip
"""What Lockstep can set, in the order in which it is tried."""


@dataclass(frozen=True, slots=True)
class OwnKnob:
    """A knob of the user's.

    name: As it is printed.
    environment: Variables that are set for the command.
    python: A file that each process runs as soon as torch is loaded, "" for none; an absolute path.
    arguments: Words that are put behind the command.
    edit: What a person changes in the script to have it for good.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    arguments: tuple[str, ...] = ()
    edit: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Knobs that are set together.

    knobs: Those of `KNOBS`, with a value each.
    own: The user's.
    rewrites: Changes of the script; a file of settings has none of them.
    """

    knobs: Mapping[str, Value] = field(default_factory=dict)
    own: tuple[OwnKnob, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()

    def environment(self) -> dict[str, str]:
        """Variables that are set for the command."""
        found: dict[str, str] = {}
        if "threads" in self.knobs:
            names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
            found |= dict.fromkeys(names, str(self.knobs["threads"]))
        if "affinity" in self.knobs:
            found |= {"OMP_PROC_BIND": str(self.knobs["affinity"]), "OMP_PLACES": "cores"}
        for one in self.own:
            found |= one.environment
        return found

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command with the words that are added after it."""
        return [*command, *(word for one in self.own for word in one.arguments)]

    def variables(self, **more: Any) -> dict[str, str]:
        """Variables that are set for the command, with what `applying` is told in its process, and `more` for it."""
        request = {
            "knobs": dict(self.knobs),
            "python": [one.python for one in self.own if one.python],
        }
        return {**self.environment(), VARIABLE: json.dumps(request | more)}

    def __str__(self) -> str:
        words = [f"{name}={shown(value)}" for name, value in self.knobs.items()]
        words += [one.name for one in self.own] + [one.name for one in self.rewrites]
        return ", ".join(words) or "as it is"


def shown(value: Value) -> str:
    """A value as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_settings(file: Path) -> Settings:
    """Read what `lockstep tune` has written.

    Raises RecordingError if it cannot be read. Raises UsageError if it names an unknown knob, or a value that one does
    not take.
    """
    values = _values_of(file)
    knobs = {name: _checked(file, name, value) for name, value in _knobs_of(file, values).items()}
    return Settings(knobs, _own_of(file, values))


def read_choices(file: Path) -> tuple[dict[str, list[Value]], tuple[OwnKnob, ...]]:
    """Read what is to be tried: by knob the values, and the user's own knobs.

    Raises RecordingError, UsageError as of `read_settings`.
    """
    values = _values_of(file)
    wanted: dict[str, list[Value]] = {}
    for name, given in _knobs_of(file, values).items():
        listed = given if isinstance(given, list) else [given]
        wanted[name] = [_checked(file, name, one) for one in listed]
    return wanted, _own_of(file, values)


def settings_text(settings: Settings, about: Sequence[str] = ()) -> str:
    """The file as text; `about` stands above it as comments."""
    values: dict[str, Any] = {"knobs": dict(settings.knobs)}
    if settings.own:
        values["own"] = [_plain(one) for one in settings.own]
    comments = "".join(f"# {line}\n" for line in about)
    written: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return comments + written


def _plain(one: OwnKnob) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": one.name, "environment": dict(one.environment), "python": one.python,
        "arguments": list(one.arguments), "edit": one.edit,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def _values_of(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise RecordingError(file, f"cannot be read ({reason})") from error
    if not isinstance(values, dict) or not set(values) <= {"knobs", "own"}:
        raise UsageError(
            f"{file}: its keys are knobs and own alone; `lockstep tune` writes such a file"
        )
    return values


def _knobs_of(file: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    knobs = values.get("knobs") or {}
    if not isinstance(knobs, dict):
        raise UsageError(f"{file}: below knobs: write a line for each, as in `workers: 2`")
    for name in knobs:
        if name not in KNOBS:
            raise UsageError(f"{file}: unknown knob {name!r}; there are {', '.join(KNOBS)}")
    return knobs


def _checked(file: Path, name: str, value: Any) -> Value:
    if not (isinstance(value, (int, str)) and KNOBS[name].takes(value)):
        raise UsageError(
            f"{file}: {name}: {value!r} is not a value of it; give {KNOBS[name].values}"
        )
    return value


def _own_of(file: Path, values: Mapping[str, Any]) -> tuple[OwnKnob, ...]:
    rows = values.get("own") or []
    found = tuple(_own(file, row) for row in rows) if isinstance(rows, list) else ()
    if len(found) != len(rows):
        raise UsageError(f"{file}: below own: write a list, each entry with a name")
    names = [one.name for one in found]
    twice = next((one for one in names if names.count(one) > 1 or one in KNOBS), None)
    if twice is not None:
        raise UsageError(f"{file}: own: {twice!r} is the name of two knobs")
    return found


_OWN = ("name", "environment", "python", "arguments", "edit")


def _own(file: Path, row: Any) -> OwnKnob:
    if not (isinstance(row, dict) and isinstance(row.get("name"), str) and set(row) <= set(_OWN)):
        raise UsageError(f"{file}: own: each entry has a name, and of {', '.join(_OWN[1:])} some")
    environment, arguments = row.get("environment") or {}, row.get("arguments") or []
    if not (isinstance(environment, dict) and isinstance(arguments, list)):
        raise UsageError(
            f"{file}: own: {row['name']}: environment is NAME: value, arguments a list of words"
        )
    python = row.get("python") or ""
    if python:
        python = str((file.parent / str(python)).absolute())
        if not Path(python).is_file():
            raise UsageError(f"{file}: own: {row['name']}: there is no file {python}")
    if not (environment or arguments or python):
        raise UsageError(f"{file}: own: {row['name']} sets nothing")
    return OwnKnob(
        row["name"], {str(name): str(value) for name, value in environment.items()}, python,
        tuple(map(str, arguments)), str(row.get("edit") or ""),
    )  # fmt: skip
