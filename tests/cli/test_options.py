"""One option for one thing: each verb's options are those of the one table, and old spellings still work."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_tree import every_command

import lockstep.commands
from lockstep.cli import options
from lockstep.cli.main import main
from lockstep.core.errors import UsageError
from lockstep.core.selection import RankSelection, StepSelection, is_rank
from lockstep.core.sizes import bytes_of

OF_OTHER_TOOLS = ("msaccucmp", "msprobe")
"""Verbs whose options are those of the tool that they stand for."""

RUN_BOTH = ("zoom",)
"""Verbs that run the commands that both recordings hold, which a dump of another tool does not."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every verb and every job, except those whose options are another tool's."""
    return (one for one in every_command() if one[0].split()[0] not in OF_OTHER_TOOLS)


def long_names(command: click.Command) -> Iterator[str]:
    """The options of a verb by their long names."""
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden:
            yield max(one.opts, key=len)


def test_every_option_of_every_verb_is_as_the_table_has_it() -> None:
    known = dict(commands())
    assert len(known) > 30
    # when the options of each are compared with the table
    found = {name: wrong for name, one in known.items() if (wrong := options.disagreements(one))}
    # then names, types, defaults and words are the same
    assert found == {}


def test_an_option_that_two_verbs_take_stands_in_the_table_and_every_row_is_used() -> None:
    used = defaultdict(set)
    for name, command in commands():
        for option in long_names(command):
            used[option].add(name.split()[0])
    shared = {option for option, names in used.items() if len(names) > 1}
    assert shared - set(options.OPTIONS) == set()
    assert set(options.OPTIONS) - set(used) == set()


def test_every_option_that_a_printed_command_has_is_one_of_a_verb() -> None:
    # given the package that writes the commands which reports and messages tell you to type
    folder = Path(lockstep.commands.__file__).parent
    texts = [ast.parse(one.read_text("utf-8")) for one in folder.glob("*.py")]
    written = {
        node.value
        for text in texts
        for node in ast.walk(text)
        if isinstance(node, ast.Constant)
        and str(node.value).startswith("--")
        and node.value != "--"
    }
    # then it names no option that no verb takes
    known = {option for name, command in commands() for option in long_names(command)}
    assert "--only" in written
    assert written - known == set()


def test_an_option_of_another_meaning_is_found() -> None:
    # given a verb with a switch, a type, a default, a short name and words of its own
    @click.command()
    @click.option(
        "--steps",
        is_flag=True,
        help="Take these steps: 0, 0:3 (0 to 2), 10,20 or 0::10 (each tenth).",
    )
    @click.option("--memory", type=int, help="Use at most this much memory, as in 8GB.")
    @click.option(
        "--limit", type=click.IntRange(min=1), default=7, metavar="N", help="Print at most N rows."
    )
    @click.option("-o", "--other", help="Something.")
    @click.option("--force", is_flag=True, help="Do it although it is wrong.")
    def odd(**_: object) -> None: ...

    # then each is told
    found = options.disagreements(odd)
    told = "\n".join(found)
    for part in (
        "--steps: switch",
        "--memory: type",
        "--limit: default",
        "-o is --output",
        "--force: words",
    ):
        assert part in told, part


def test_an_old_spelling_is_the_name_of_no_option_of_that_verb_and_is_not_shown() -> None:
    seen = 0
    for name, command in commands():
        old = {one for option in command.params for one in getattr(option, "old", ())}
        seen += len(old)
        assert old & set(long_names(command)) == set(), name
        # A command keeps the help option that it is asked for first: as the command line asks.
        context = click.Context(command, info_name=name, help_option_names=["-h", "--help"])
        shown = command.get_help(context).split()
        assert [one for one in old if one in shown] == [], name
    assert seen > 15


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--step", "0"], ["--steps", "0"]),
        (["--rank=rank0"], ["--ranks=0"]),
        (["--step=1"], ["--steps=1:2"]),
    ],
)
def test_an_old_spelling_does_the_same_and_says_the_new_name(
    old: list[str],
    new: list[str],
    lockstep_recording: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # when a recording is shown by the old spelling, and by the new one
    assert main(["show", str(lockstep_recording), *old]) == 0
    by_old = capsys.readouterr()
    assert main(["show", str(lockstep_recording), *new]) == 0
    by_new = capsys.readouterr()
    # then both print the same, and only the old one says something
    assert by_old.out == by_new.out
    names = [words[0].partition("=")[0] for words in (old, new)]
    assert (
        by_old.err
        == f"lockstep: {names[0]} is called {names[1]}; the old name goes with the next release\n"
    )
    assert by_new.err == ""


def test_an_option_that_may_be_repeated_takes_both_spellings() -> None:
    # given what two patterns choose, one of them by the old spelling
    @click.command()
    @options.option("--only", multiple=True, old=["--site"])
    def verb(only: tuple[str, ...]) -> None:
        click.echo(" ".join(only))

    from click.testing import CliRunner

    assert CliRunner().invoke(verb, ["--only", "a", "--site", "b"]).stdout == "a b\n"


WITHOUT_JSON = {
    "record": "the recording is the answer, and `show --json` tells it",
    "report": "writes a page; `compare --json` has its facts",
    "plot": "writes pictures",
    "shell": "a prompt; each command of it may be another verb",
    "ui": "serves pages",
    "serve": "serves models",
    "skill": "prints a page",
    "extract": "writes a file",
    "map": "writes a file",
    "convert": "writes a recording or files",
    "tfdbg": "writes files",
    "run-tuned": "runs the training, whose output it is",
    "cache": "a group of jobs",
    "cache start": "starts a daemon",
    "cache stop": "stops it",
    "cache session": "prints a name",
    "cache destroy": "drops a session",
    "copy": "copies files",
    "remote": "a group of jobs",
    "remote add": "keeps a machine, and `remote list` tells it",
    "remote remove": "forgets a machine",
    "remote attach": "prints what a command prints",
    "remote stop": "ends a command",
}


def test_every_verb_that_prints_facts_has_json() -> None:
    lacking = {name for name, one in commands() if "--json" not in long_names(one)}
    assert lacking == set(WITHOUT_JSON)


def test_every_verb_that_takes_a_recording_takes_a_dump_of_another_tool() -> None:
    takes = {"recording", "recordings", "reference", "directory", "source"}
    found = {
        name: command
        for name, command in commands()
        if any(isinstance(one, click.Argument) and one.name in takes for one in command.params)
        if name not in RUN_BOTH
    }
    assert len(found) > 8
    assert [name for name, one in found.items() if "--format" not in long_names(one)] == []


def test_every_size_is_read_as_people_write_it() -> None:
    for name, command in commands():
        for one in command.params:
            if {"--memory"} & set(one.opts) or any(opt.endswith("-bytes") for opt in one.opts):
                assert one.type.convert("8GB", one, None) == 8_000_000_000, name
    assert bytes_of("memory", "512 MiB") == 512 << 20
    assert bytes_of("memory", 4096) == bytes_of("memory", "4096") == 4096
    assert bytes_of("memory", "1.5kb") == 1500
    for wrong in ("", "8 XB", "-1GB", "0", "GB", "1e9", None, True, 1.5):
        with pytest.raises(UsageError):
            bytes_of("memory", wrong)


def test_a_number_of_steps_is_refused_in_python_with_both_ways_to_write_it() -> None:
    assert 0 in StepSelection.parse("0:2")
    assert 0 not in StepSelection.parse("2")
    with pytest.raises(
        UsageError, match=r"steps='0:2' for the first 2 steps, or steps='2' for step 2 alone"
    ):
        StepSelection.parse(2)  # type: ignore[arg-type]
    for wrong in (True, None, [0, 1]):
        with pytest.raises(UsageError, match="write a text"):
            StepSelection.parse(wrong)  # type: ignore[arg-type]


def test_ranks_are_chosen_by_number_or_by_name() -> None:
    chosen = RankSelection.parse("1, rank2-1")
    assert [one for one in ("rank0", "rank1", "rank1-1", "rank2", "rank2-1") if is_rank(chosen, one)] == [
        "rank1", "rank1-1", "rank2-1",
    ]  # fmt: skip
    for wrong in ("a", "0,", "rank", "-1"):
        with pytest.raises(UsageError, match="not a list of ranks"):
            RankSelection.parse(wrong)
