"""The YAML file of a search: what it may say, and how each mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.core.errors import LockstepError, UsageError
from lockstep_tune.search.given import command_with
from lockstep_tune.search.plan import Kind, Source, read_plan


def _written(folder: Path, text: str) -> Path:
    file = folder / "search.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target: {name: loss", ":1: expected ',' or '}'"),
        ("- a\n", "the file takes keys with values"),
        ("target: {name: loss}\n", "parameters is missing"),
        ("target: {name: loss}\nparameters:\n  lr: {}\n", ":3: parameters.lr has neither bounds nor"),
        (
            "parameters:\n  lr:\n    bounds: [1, 2]\n    type: complex\n",
            ":4: parameters.lr.type is 'complex', which is not known; give one of float, int",
        ),
        ("parameters:\n  lr: {bounds: [2, 1]}\n", ":2: parameters.lr.bounds are [2, 1]; the second"),
        ("parameters:\n  lr: {bounds: [1, x]}\n", ":2: parameters.lr.bounds has 'x'"),
        ("parameters:\n  lr: {bounds: [0, 1.5], type: int}\n", "1.5, which is no whole number"),
        ("parameters:\n  lr: {bounds: [0, 1], scale: log}\n", "scale: log needs more than 0"),
        ("parameters:\n  lr: {bound: [0, 1]}\n", ":2: parameters.lr.bound is no key of a search; do you mean bounds"),
        ("parameters:\n  lr: {choice: [1]}\n  lr: {choice: [2]}\n", ":3: parameters.lr is given twice"),
        ("parameters:\n  lr: {choice: [[1]]}\n", "parameters.lr.choice has [1]"),
        ("parameters:\n  lr: {choice: [1], key: a.b}\n", ":2: parameters.lr.key needs the file"),
        ("parameters:\n  lr: {choice: [1]}\n", "target.name is missing"),
        ("parameters:\n  lr: {choice: [1]}\ntarget: {name: a, printed: 'a ('}\n", ":3: target.printed is no regular"),
        ("parameters:\n  lr: {choice: [1]}\ntarget: {name: a, printed: 'a'}\n", "target.printed has 0 groups"),
        ("parameters:\n  lr: {choice: [1]}\ntarget: {name: a, printed: '(a)', jsonl: b}\n", "give one of the two"),
        ("parameters:\n  lr: {choice: [1]}\ntarget: {name: a}\ntrials: 0\n", ":4: trials is 0; the least is 1"),
        ("parameters:\n  lr: {choice: [1]}\ntarget: {name: a}\ntuner: {name: gpp}\n", ":4: tuner.name is 'gpp'"),
        ("parameters:\n  lr: {choice: [1]}\ntarget: {name: a}\ncommand: \"it's\"\n", ":4: command is no command line"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_by_its_line_and_key(tmp_path: Path, text: str, words: str) -> None:
    file = _written(tmp_path, text)

    with pytest.raises(UsageError) as raised:
        read_plan(file)

    assert words in str(raised.value)
    assert str(file) in str(raised.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match="cannot be read"):
        read_plan(tmp_path / "none.yaml")


def test_a_file_for_mindoptimizer_is_read_as_it_is(tmp_path: Path) -> None:
    """Given a file as MindInsight's mindoptimizer takes it
    When it is read
    Then its command, folder, method, target and parameters are those of the search."""
    file = _written(
        tmp_path,
        f"""
command: sh run.sh
summary_base_dir: {tmp_path}/summaries
tuner:
    name: gp
    args:
        method: ucb
target:
    group: metric
    name: Accuracy
    goal: maximize
parameters:
    learning_rate:
        bounds: [1e-5, 0.001]
        type: float
    batch_size:
        choice: [32, 64]
        type: int
    momentum:
        source: user_defined
        choice: [0.8, 0.9]
        type: float
""",
    )

    plan = read_plan(file)
    trial = tmp_path / "trials" / "0003"
    values = {"learning_rate": 0.0001, "batch_size": 32, "momentum": 0.9}
    words, variables = command_with(plan, plan.command, values, trial)

    assert [one.kind for one in plan.parameters] == [Kind.FLOAT, Kind.CHOICE, Kind.CHOICE]
    assert (plan.parameters[0].low, plan.parameters[0].high) == (1e-5, 0.001)
    assert plan.sampler == "GPSampler"
    assert plan.target.maximize
    assert plan.target.source is Source.TENSORBOARD
    assert words[2:] == ["--learning_rate", "0.0001", "--batch_size", "32", "--momentum", "0.9"]
    assert f'"summary_dir": "{tmp_path}/summaries/0003"' in variables["MINDINSIGHT_HYPER_CONFIG"]
    assert '"learning_rate": 0.0001' in variables["MINDINSIGHT_HYPER_CONFIG"]


def test_values_reach_the_command_as_the_file_says(tmp_path: Path) -> None:
    """Given parameters with a flag, a key, a variable, a place in the command, and a switch
    When a trial's command is made
    Then each is where it was asked for, and the config file itself is not changed."""
    config = tmp_path / "train.yaml"
    config.write_text("optimizer: {lr: 0.1, name: adam}\nseed: 1\n")
    file = _written(
        tmp_path,
        f"""
target: {{name: loss}}
config: {config}
parameters:
  rate: {{bounds: [0, 1], key: optimizer.lr}}
  depth: {{bounds: [1, 9], type: int, flag: model.depth=}}
  width: {{choice: [8, 16]}}
  fast: {{type: switch}}
  slow: {{type: switch}}
  threads: {{choice: [1, 2], variable: OMP_NUM_THREADS}}
""",
    )
    plan = read_plan(file)
    trial = tmp_path / "trial"
    trial.mkdir()

    values = {"rate": 0.5, "depth": 3, "width": 8, "fast": True, "slow": False, "threads": 2}
    command = ["train", f"--config={config}", "w{width}", "--out", "{folder}"]
    words, variables = command_with(plan, command, values, trial)

    assert words == [
        "train", f"--config={trial}/config.yaml", "w8", "--out", str(trial), "model.depth=3", "--fast",
    ]  # fmt: skip
    assert variables["OMP_NUM_THREADS"] == "2"
    assert (trial / "config.yaml").read_text() == "optimizer:\n  lr: 0.5\n  name: adam\nseed: 1\n"
    assert "lr: 0.1" in config.read_text()


@pytest.mark.parametrize(
    ("key", "word", "words"),
    [
        ("optimizer.rl", "{config}", "has no key optimizer.rl; do you mean optimizer.lr"),
        ("optimizer.lr", "other.yaml", "the command does not name train.yaml"),
    ],
)
def test_a_key_that_cannot_be_set_is_said(tmp_path: Path, key: str, word: str, words: str) -> None:
    config = tmp_path / "train.yaml"
    config.write_text("optimizer: {lr: 0.1}\n")
    text = f"target: {{name: loss}}\nconfig: {config}\nparameters: {{rate: {{choice: [1], key: {key}}}}}\n"
    plan = read_plan(_written(tmp_path, text))

    with pytest.raises(UsageError, match=words.replace(".", r"\.")):
        command_with(plan, ["train", word.format(config=config)], {"rate": 1}, tmp_path)
