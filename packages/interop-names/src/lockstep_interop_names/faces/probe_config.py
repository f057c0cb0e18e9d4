"""The config.json of mindstudio-probe, and what arguments say in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.options import choice_of, path_of, patterns_of
from lockstep_interop_names.dumps.places import json_in
from lockstep_interop_names.faces.dump_choice import DumpChoice
from lockstep_interop_names.faces.probe_files import ProbeChoice

_TASKS = ("statistics", "tensor", "overflow_check")
_LEVELS = ("L0", "L1", "mix")
_SUMMARIES = ("statistics", "md5")
_PARTS = ("all", "forward", "backward", "input", "output")


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """The parts to dump, the folder, and the steps.

    folder: The dump.
    choice: What of a step.
    steps, ranks: Numbers; () for all.
    overflow_nums: Behind so many overflows the training ends; -1 for never.
    """

    folder: Path
    choice: ProbeChoice
    steps: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    overflow_nums: int = 1


def probe_config(config_path: Any, given: Mapping[str, Any]) -> ProbeConfig:
    """Return the settings of a file, replaced by arguments that are not None.

    Raises UsageError if a value is none that is known. Raises CorruptError if the file cannot be read.
    """
    values = {} if config_path is None else json_in(path_of("config_path", config_path))
    if not isinstance(values, dict):
        raise UsageError(
            f"{config_path}: holds no JSON object; give one with task, dump_path, level"
        )
    values = {**values, **{key: value for key, value in given.items() if value is not None}}
    task = choice_of("task", values.get("task") or "statistics", _TASKS)
    level = choice_of("level", values.get("level") or "L1", _LEVELS)
    own = values.get(task)
    own = own if isinstance(own, dict) else {}
    summary = own.get("summary_mode") or "statistics"
    checksums = choice_of("summary_mode", summary, _SUMMARIES) == "md5" and task == "statistics"
    return ProbeConfig(
        path_of("dump_path", values.get("dump_path")).absolute(),
        ProbeChoice(task, level, checksums, _chosen(own)),
        _numbers("step", values.get("step")), _numbers("rank", values.get("rank")),
        int(own.get("overflow_nums") or 1),
    )  # fmt: skip


def _chosen(own: Mapping[str, Any]) -> DumpChoice:
    scope = patterns_of("scope", own.get("scope") or [])
    names = patterns_of("list", own.get("list") or [])
    if scope and (names or len(scope) != 2):
        raise UsageError("scope takes two names, the first and the last, and no list beside it")
    parts = [choice_of("data_mode", one, _PARTS) for one in own.get("data_mode") or ["all"]]
    mode = "range" if scope else "api_list" if names else "all"
    return DumpChoice(mode, tuple(scope or names), parts=() if "all" in parts else tuple(parts))


def _numbers(name: str, given: Any) -> tuple[int, ...]:
    """Numbers, single ones and spans such as "3-5"."""
    found: list[int] = []
    for one in given if isinstance(given, Sequence) and not isinstance(given, str) else [given]:
        if one is None:
            continue
        first, _, last = str(one).partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            raise UsageError(f"{name} has {one!r}; give numbers or spans, as in [0, '3-5']")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)
