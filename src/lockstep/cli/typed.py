"""The command line that was typed, to print one that asks for more of the same."""

from __future__ import annotations

from collections.abc import Collection

import click
from click.core import ParameterSource


def typed_again(context: click.Context, *, without: Collection[str] = ()) -> list[str]:
    """Return the verb's arguments and options as they were given; those with their defaults are left out.

    Parameters
    ----------
    context
        The verb's.
    without
        Names of parameters that are left out too.
    """
    words: list[str] = []
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or name in without:
            continue
        value = context.params[name]
        values = list(value) if parameter.nargs != 1 or parameter.multiple else [value]
        option = max(parameter.opts, key=len)
        if not isinstance(parameter, click.Option):
            words += map(str, values)
        elif parameter.is_flag:
            words.append(option)
        else:
            words += [word for one in values for word in (option, str(one))]
    return words
