"""`lockstep doctor`: this machine, and what is wrong with it."""

from __future__ import annotations

import dataclasses

import click

from lockstep import options
from lockstep.errors import ExitCode, code_of
from lockstep.terminal import (
    Column,
    Page,
    add_line,
    add_paragraph,
    counted,
    enveloped,
    json_text,
    printable,
    table_text,
)
from lockstep_check.machine.facts import look
from lockstep_check.machine.findings import Level, MachineFinding, findings, known_variables

_VARIABLES = (Column("variable or option"), Column("recommended"), Column("what it does"))


@click.command()
@click.option(
    "--variables", is_flag=True, help="List all known variables and compile options instead."
)
@options.as_json
def doctor(variables: bool, as_json: bool) -> int:
    """Check this machine: torch and its devices, cores, memory, disk, image libraries and variables.

    Problems come first, each with the command that cures it; then advice on speed and
    repeatability; then facts. Nothing is changed.

    Exit code 1 if there is a problem, else 0.

    \b
    lockstep doctor
    lockstep doctor --variables
    """
    if variables:
        click.echo(_variables(as_json=as_json))
        return ExitCode.AGREES
    found = findings(look())
    if as_json:
        click.echo(json_text(enveloped({"findings": [_values(one) for one in found]})))
    else:
        click.echo(render(found).plain, nl=False)
    return code_of(differs=any(one.level is Level.PROBLEM for one in found), looked=True)


def render(found: list[MachineFinding]) -> Page:
    """Problems and advice with their cures, then facts, a line each."""
    text = Page()
    counts = {level: sum(one.level is level for one in found) for level in Level}
    head = f"{counted(counts[Level.PROBLEM], 'problem')}, {counts[Level.ADVICE]} to advise"
    add_line(
        text, head if counts[Level.PROBLEM] or counts[Level.ADVICE] else "Nothing is wrong here"
    )
    for one in found:
        if one.level is Level.FACT:
            continue
        add_line(text, "")
        add_line(text, f"{one.level.value}: {printable(one.title)}")
        add_paragraph(text, printable(one.meaning))
        add_line(text, f"  {printable(one.cure)}")
    add_line(text, "")
    for one in found:
        if one.level is Level.FACT:
            add_paragraph(text, printable(f"{one.title}: {one.meaning}"), first="")
    return text


def _values(one: MachineFinding) -> dict[str, str]:
    values = dataclasses.asdict(one)
    return {"id": values.pop("name"), **values, "level": one.level.value}


def _variables(*, as_json: bool) -> str:
    known = known_variables().values()
    if as_json:
        return json_text(enveloped({"variables": [dataclasses.asdict(one) for one in known]}))
    return table_text(
        _VARIABLES, [(one.name, one.recommended or "-", one.meaning) for one in known]
    )
