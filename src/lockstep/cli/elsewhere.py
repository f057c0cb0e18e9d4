"""`--on NAME`: a decorator that lets any verb with a command run on a different machine; the command after `--`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lockstep.cli import options
from lockstep.core.errors import UsageError
from lockstep.core.members import lacking
from lockstep.hookspecs import Elsewhere, PathWord, Use
from lockstep.plugins import manager
from lockstep.store.urls import url_of

_META = "lockstep.on"


def runs_elsewhere(
    *,
    writes: tuple[str, ...] = (),
    records: tuple[str, ...] = (),
    stays: tuple[str, ...] = (),
) -> Callable[[click.Command], click.Command]:
    """Return the decorator that gives a verb the option `--on`.

    Parameters
    ----------
    writes
        The options whose paths it writes; every other path is one that it reads.
    records
        The options under which it makes a recording.
    stays
        The switches with which it runs on this machine alone.
    """
    uses = dict.fromkeys(writes, Use.WRITES) | dict.fromkeys(records, Use.RECORDS)

    def add(verb: click.Command) -> click.Command:
        here = verb.callback

        @functools.wraps(here or add)
        def run(**values: Any) -> Any:
            context = click.get_current_context()
            machine = context.meta.get(_META)
            if machine is None:
                assert here is not None
                return here(**values)
            here_alone = [name for name in stays if values.get(name.strip("-").replace("-", "_"))]
            if here_alone:
                raise UsageError(f"{here_alone[0]} works on this machine only; leave out --on")
            asked = _asked(context, machine, uses)
            if not asked.command:
                raise UsageError(
                    "--on runs a training's command on another machine; give the command after --"
                )
            return _run(asked, "--on")

        verb.callback = run
        on = options.option("--on", expose_value=False, callback=_keep)
        on(run)
        verb.params.append(run.__dict__.pop("__click_params__")[0])
        return verb

    return add


def run_where_it_lies(name: str, *, writes: tuple[str, ...]) -> int:
    """Run the verb that was typed on the machine where the larger of its recordings lies; returns its exit code.

    name: The switch that asks for it.
    writes: The options whose paths the verb writes.
    """
    context = click.get_current_context()
    asked = _asked(context, "", dict.fromkeys(writes, Use.WRITES), Use.LIES)
    words = tuple(word for word in asked.words if word != name)
    return _run(dataclasses.replace(asked, words=words), name)


def _run(asked: Elsewhere, name: str) -> int:
    code: int | None = manager().hook.lockstep_run_elsewhere(asked=asked)
    if code is None:
        raise lacking(name, "remote")
    return code


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[_META] = value


def _asked(
    context: click.Context, machine: str, uses: dict[str, Use], arguments: Use = Use.READS
) -> Elsewhere:
    """Return what was typed, so that it can be typed elsewhere."""
    command = training_command()
    words: list[str | PathWord] = list(context.command_path.split()[1:])
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if context.get_parameter_source(parameter.name or "") is not ParameterSource.COMMANDLINE:
            continue
        if isinstance(parameter, click.Option):
            use = uses.get(max(parameter.opts, key=len), Use.READS)
            words.extend(_option_words(parameter, value, use))
        elif parameter.type is click.UNPROCESSED:
            command = tuple(map(str, value or ()))
        else:
            words.extend(_word(one, arguments) for one in _several(parameter, value))
    return Elsewhere(machine, tuple(words), command, bool(context.params.get("force")))


def _option_words(option: click.Option, value: Any, use: Use) -> Iterator[str | PathWord]:
    if not option.expose_value:
        return
    name = max(option.opts, key=len)
    if option.is_flag:
        yield name if value else max(option.secondary_opts, key=len, default=name)
        return
    for one in _several(option, value):
        yield from (name, _word(one, use))


def _several(parameter: click.Parameter, value: Any) -> list[Any]:
    return list(value) if parameter.multiple or parameter.nargs != 1 else [value]


def _word(value: Any, use: Use) -> str | PathWord:
    if isinstance(value, Path):
        return url_of(value) or PathWord(value, use)  # storage is reached from there
    return str(value)


_TRAINING = "lockstep.training"


class TrainingCommand(click.Command):
    """A command that takes a training to run after `--`; `usage` is how its help writes that."""

    usage = "-- COMMAND..."

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Keep the words after `--` apart."""
        if "--" in args:
            at = args.index("--")
            context.meta[_TRAINING] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(context, args)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """Return `[OPTIONS]` and the verb's arguments."""
        return ["[OPTIONS]", self.usage]


def training_command() -> tuple[str, ...]:
    """Return the words after `--`; empty if there are none."""
    command: tuple[str, ...] = click.get_current_context().meta.get(_TRAINING, ())
    return command
