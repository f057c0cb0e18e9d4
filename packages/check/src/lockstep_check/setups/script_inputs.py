"""Compare what two scripts take from outside: libraries, environment variables, arguments, files of settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.compare import SetupDifference, names_this_run
from lockstep.recordings import (
    REDACTED,
    SETTINGS_FOLDER,
    SETTINGS_UNREAD,
    RankManifest,
    is_withheld,
)
from lockstep_check.setups.answers import Answers

_PLACE = re.compile(
    r"(^|[._])(dir|path|folder|file|output|out|log\w*|name|run\w*|tag|host\w*|port|url|device\w*|rank|local_rank|id|uuid|project|"
    r"entity|user|date|time\w*|cache\w*|checkpoint\w*|resume\w*|report_to|home|pwd|tmp\w*|temp|root)($|[._])"
)
"""Settings that say where something lies or what it is called."""

_WRITTEN = re.compile(
    r"(^|[._-])(out|output|log|logs|save|saved|result|results|metrics|report|checkpoint)($|[._-])"
)
"""Settings that name what a script writes."""


def look_at_script_inputs(left: RankManifest, right: RankManifest, answers: Answers) -> None:
    """Compare libraries and variables, then arguments and settings with the files that they name."""
    if left.libraries and right.libraries:
        told = left.packages.keys() | right.packages.keys()
        both = left.libraries.keys() & right.libraries.keys()
        # A library that one run alone has loaded by then may be loaded later in the other.
        for name in sorted(both - told):
            _differ("versions", name, left.libraries, right.libraries, answers)
        _look_at_variables(left, right, answers)
    else:
        answers.not_known(["variables"], "an earlier build, or another framework, does not tell")
    _look_at_configuration(left, right, answers)


def _look_at_variables(left: RankManifest, right: RankManifest, answers: Answers) -> None:
    variables = left.variables.keys() | right.variables.keys()
    if REDACTED in variables:
        answers.not_known(["variables"], "they were taken out of a redacted recording")
        return
    for name in sorted(variables - (left.environment.keys() | right.environment.keys())):
        if not names_this_run(name):
            aspect = "configured-places" if _PLACE.search(name.lower()) else "variables"
            _differ(aspect, name, left.variables, right.variables, answers)


def _differ(
    aspect: str, name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], answers: Answers
) -> None:
    sides = [_shown(one, name) for one in (ours, theirs)]
    if sides[0] != sides[1]:
        answers.differ(aspect, SetupDifference(name, *sides))


def _shown(values: Mapping[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "-"


def _look_at_configuration(left: RankManifest, right: RankManifest, answers: Answers) -> None:
    """Parsed arguments, TrainingArguments and trees of OmegaConf."""
    kinds = left.configuration.keys() & right.configuration.keys()
    if not kinds:
        why = "a recording has no parsed arguments: redacted, of an earlier build, or parsed before torch was loaded"
        answers.not_known(["configuration", "configured-places"], why)
    for kind in sorted(kinds):
        ours, theirs = left.configuration[kind], right.configuration[kind]
        for name in sorted(ours.keys() | theirs.keys()):
            sides = _shown(ours, name), _shown(theirs, name)
            if any(map(is_withheld, sides)):
                answers.not_known(["configuration"], f"{name} was taken out of a recording")
                continue
            files = left.settings_files.get(sides[0]), right.settings_files.get(sides[1])
            where = f"{name} ({kind})"
            if files[0] is not None and files[1] is not None and not _WRITTEN.search(name):
                answers.differ("configuration", *_of_files(where, files[0], files[1]))
            if sides[0] != sides[1]:
                is_place = None not in files or _names_a_place(name, sides)
                aspect = "configured-places" if is_place else "configuration"
                answers.differ(aspect, SetupDifference(where, *sides))


def _names_a_place(name: str, sides: tuple[str, str]) -> bool:
    return _PLACE.search(name) is not None or any("/" in one or "\\" in one for one in sides)


def _of_files(
    where: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[SetupDifference]:
    """What two files of settings hold otherwise, key by key where both could be read; of folders nothing."""
    if SETTINGS_FOLDER in ours or SETTINGS_FOLDER in theirs:
        return
    if (SETTINGS_UNREAD in ours) != (SETTINGS_UNREAD in theirs):
        yield SetupDifference(f"contents of the file of {where}", "one", "another one")
        return
    for key in sorted(ours.keys() | theirs.keys()):
        sides = _shown(ours, key), _shown(theirs, key)
        if sides[0] != sides[1]:
            what = "contents" if key == SETTINGS_UNREAD else key
            yield SetupDifference(f"{what} in the file of {where}", *sides)
