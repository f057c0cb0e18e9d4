"""Giving a training its values: as flags, in its config file, and in variables of the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lockstep.errors import UsageError
from lockstep.terminal import nearest_names
from lockstep_tune.search.plan import Kind, Parameter, Plan, Value

FOLDER = "LOCKSTEP_TRIAL"
"""The variable by which a training finds the folder of its trial, and Lockstep its processes."""


def command_with(
    plan: Plan, command: Sequence[str], values: Mapping[str, Value], folder: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the words of a trial's command, and the variables it gets.

    `{folder}` in a word becomes the trial's folder, `{NAME}` the value of the parameter NAME. A parameter that stands
    in no word is given by its flag, its key or its variable.

    Raises UsageError if the command does not name the config file, or that has no such key.
    """
    summaries = summaries_of(plan, folder)
    places = {"{folder}": str(folder), "{summaries}": str(summaries)}
    places |= {f"{{{name}}}": _text(value) for name, value in values.items()}
    words = [_filled(word, places) for word in command]
    variables = {FOLDER: str(folder)}
    for one in plan.parameters:
        value = values[one.name]
        if one.variable:
            variables[one.variable] = _text(value)
        elif not one.key and not any(f"{{{one.name}}}" in word for word in command):
            words += _flag(one, value) if one.flag or plan.flags else []
    keyed = {one.key: values[one.name] for one in plan.parameters if one.key}
    if keyed and plan.config is not None:
        copy = folder / f"config{plan.config.suffix}"
        words = _with_config(words, plan.config, copy)
        _write_config(plan, keyed, copy)
    # What MindInsight's HyperConfig reads, so that a script made for its mindoptimizer runs as it is.
    told = {"summary_dir": str(summaries), "params": dict(values), "custom_lineage_data": {}}
    return words, variables | {"MINDINSIGHT_HYPER_CONFIG": json.dumps(told)}


def summaries_of(plan: Plan, folder: Path) -> Path:
    """Return where a trial's event files go."""
    return folder if plan.summaries is None else plan.summaries / folder.name


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, text in places.items():
        word = word.replace(place, text)
    return word


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flag(one: Parameter, value: Value) -> list[str]:
    flag = one.flag or f"--{one.name}"
    if one.kind is Kind.SWITCH:
        return [flag] if value else []
    return [f"{flag}{_text(value)}"] if flag.endswith("=") else [flag, _text(value)]


def _with_config(words: Sequence[str], config: Path, copy: Path) -> list[str]:
    replaced = []
    for word in words:
        before, equals, path = word.rpartition("=")
        same = bool(path) and Path(path).absolute() == config
        replaced.append(f"{before}{equals}{copy}" if same else word)
    if list(words) == replaced:
        raise UsageError(
            f"the command does not name {config.name}, in which keys are to be set; give it its path"
        )
    return replaced


def _write_config(plan: Plan, keyed: Mapping[str, Value], copy: Path) -> None:
    """Write the config file with some keys set; `a.b` is the key b of the key a."""
    assert plan.config is not None
    try:
        values = yaml.safe_load(plan.config.read_text("utf-8"))  # of which JSON is a part
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{plan.config}: is not readable YAML or JSON: {error}") from error
    for key, value in keyed.items():
        *above, last = key.split(".")
        place = values
        for name in [*above, last]:
            if not isinstance(place, dict) or name not in place:
                raise UsageError(f"{plan.config}: has no key {key}{_nearest(key, values)}")
            place, around = place[name], place
        around[last] = value
    text = json.dumps(values) if copy.suffix == ".json" else yaml.safe_dump(values, sort_keys=False)
    copy.write_text(text, "utf-8")


def _nearest(key: str, values: Any) -> str:
    near = nearest_names(key, _keys(values, ""), 1)
    return f"; do you mean {near[0]}?" if near else ""


def _keys(values: Any, before: str) -> list[str]:
    if not isinstance(values, dict):
        return []
    found = []
    for name, value in values.items():
        found += [f"{before}{name}", *_keys(value, f"{before}{name}.")]
    return found
