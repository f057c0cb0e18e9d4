"""What `--on` names: a machine of `lockstep remote add`, or a job system with options of the job."""

from __future__ import annotations

import re

from lockstep.errors import UsageError
from lockstep.plugin import manager
from lockstep_remote.hookspecs import Executor
from lockstep_remote.machines import machines

_OPTION = re.compile(r"(?P<name>[A-Za-z][A-Za-z0-9-]*)=(?P<value>.*)", re.DOTALL)
_BETWEEN = re.compile(r",(?=[A-Za-z][A-Za-z0-9-]*=)")


def executors() -> dict[str, Executor]:
    """Return the job systems by name, the built-in ones first; of two with one name the first counts."""
    found: dict[str, Executor] = {}
    for given in reversed(manager().hook.lockstep_executors()):
        for one in given:
            found.setdefault(one.name, one)
    return found


def chosen_executor(text: str) -> tuple[Executor, dict[str, str]] | None:
    """Return the job system that `--on TEXT` names, and the options of the job; None where it names a machine.

    Raises UsageError if it names neither, or an option is none.
    """
    name, colon, rest = text.partition(":")
    named = machines()
    if not colon and name in named:
        return None
    known = executors()
    if name not in known:
        there = f"machines are {', '.join(named)}" if named else "you have named no machine yet"
        raise UsageError(
            f"--on {text}: no machine is called {name}, and no job system; job systems are"
            f" {', '.join(sorted(known))}, and {there}",
            command=f"lockstep remote add {name} user@host",
        )
    return known[name], parsed_options(text, rest)


def parsed_options(text: str, rest: str) -> dict[str, str]:
    """Return `partition=gpu,time=30` by name; a comma parts options only where `NAME=` follows it.

    Raises
    ------
    UsageError
        If one has no value, or stands there twice.

    Examples
    --------
    >>> parsed_options("slurm:...", "nodelist=a,b,time=30")
    {'nodelist': 'a,b', 'time': '30'}
    """
    found: dict[str, str] = {}
    for one in _BETWEEN.split(rest) if rest else ():
        option = _OPTION.fullmatch(one)
        if option is None:
            raise UsageError(
                f"--on {text}: {one!r} is not OPTION=VALUE; write --on NAME:OPTION=VALUE,OPTION=VALUE, and OPTION="
                " for one that takes no value"
            )
        if option["name"] in found:
            raise UsageError(f"--on {text}: {option['name']} stands there twice; leave one out")
        found[option["name"]] = option["value"]
    return found
