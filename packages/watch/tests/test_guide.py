"""`lockstep guide`: every command that it names can be typed, and symptoms are found by their words."""

from __future__ import annotations

import json
import shlex

import click
import pytest
from click.testing import CliRunner

from lockstep.cli.main import cli
from lockstep.plugins import verbs
from lockstep_watch.chosen_rules import choose
from lockstep_watch.guide_command import guide
from lockstep_watch.symptoms import Symptom, symptoms

COMMANDS = sorted({check.command for one in symptoms() for check in one.checks})
STAGES = ["settings", "code", "model", "data", "run", "result"]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_a_verb_with_its_options(line: str) -> None:
    # Given a command of the guide
    program, verb, *words = shlex.split(line)
    # When it is parsed as if it were typed
    command = cli.get_command(click.Context(cli), verb)
    # Then the verb is there, and takes these options with these values
    assert program == "lockstep"
    assert verb in verbs()
    assert command is not None
    own = words[: words.index("--")] if "--" in words else words
    context = click.Context(command, info_name=verb)
    given, _, _ = command.make_parser(context).parse_args(list(own))
    for parameter in command.params:
        is_option = isinstance(parameter, click.Option) and parameter.name in given
        if is_option and not isinstance(parameter.type, click.Path):
            parameter.type_cast_value(context, given[parameter.name])
    # And the rules that it names are there, with these settings
    settings = given.get("settings") or []
    choose(
        [],
        only=[*(given.get("only_rules") or []), *(given.get("save_on") or [])],
        settings=settings,
    )


@pytest.mark.parametrize("symptom", symptoms(), ids=lambda one: one.name)
def test_checks_come_in_the_order_of_the_method(symptom: Symptom) -> None:
    # Given a symptom
    stages = [STAGES.index(check.stage) for check in symptom.checks]
    # Then settings, code and model come before data, the run and what comes out
    assert len(stages) >= 3
    assert stages[0] <= 1
    assert stages[-1] >= 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "dead-relu"),
        (["runs-away"], "the loss runs away, or is NaN: check in this order\\n1. settings: "),
        (["frozen"], "weights do not change: check in this order"),
        (["nan"], "the loss runs away, or is NaN: check"),
        (["not learning"], "the loss does not fall, or falls slowly: check"),
        (["loss spike"], "the loss runs away, or is NaN: check"),
        (["diverges", "after", "1000", "steps"], "the loss runs away, or is NaN: check"),
        (["all gradients are zero"], "gradients vanish: check"),
        (
            ["loss differs upgrade"],
            "the loss is worse on a new device, or after an upgrade or a port: check",
        ),
        (["hangs"], "the training hangs: check in this order\n1. settings: "),
        (["my training hangs"], "the training hangs: check"),
        (["nccl timeout on rank 3"], "the training hangs: check"),
        (["slow"], "the training is slow: check in this order\n1. settings: "),
        (["my dataloader is slow"], "the training is slow: check"),
        (["falls slowly"], "the loss does not fall, or falls slowly: check"),
        (["worse in bf16"], "the loss is worse in bfloat16 or float16: check"),
    ],
)
def test_a_symptom_is_found_by_its_name_or_words(words: list[str], says: str) -> None:
    # Given words of a symptom
    # When it is asked for
    shown = CliRunner().invoke(guide, words)
    # Then it is told, or all are listed
    assert shown.exit_code == 0
    assert says.replace("\\n", "\n") in shown.output


def test_no_two_symptoms_are_called_the_same() -> None:
    # Given what people call symptoms
    called = [name for one in symptoms() for name in (one.name, *one.also)]
    # Then each leads to one page, and is spelled as it is looked up
    assert len(called) == len(set(called))
    assert all(name == name.lower() for name in called)


def test_an_unknown_symptom_is_told_with_the_nearest() -> None:
    # Given a slip
    # When it is asked for
    shown = CliRunner().invoke(guide, ["runs-avay"])
    # Then the nearest is told
    assert "nearest: runs-away" in str(shown.exception)


def test_the_guide_as_json_has_all() -> None:
    # Given the guide
    # When it is asked for as JSON
    values = json.loads(CliRunner().invoke(guide, ["--json"]).output)
    # Then each symptom has its checks
    assert [one["name"] for one in values["symptoms"]] == [one.name for one in symptoms()]
    assert all(check["command"] for one in values["symptoms"] for check in one["checks"])
