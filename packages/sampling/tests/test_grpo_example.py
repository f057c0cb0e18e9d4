"""`examples/grpo.py`: a sound trainer and sampler agree, and what is planted is named."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.main import main
from lockstep_sampling.invariance.arming import ModuleCalls
from lockstep_sampling.invariance.asked_command import Request

EXAMPLE = Path(__file__).parents[3] / "examples" / "grpo.py"
KEYS = ("explanation", "pattern", "rounded_to")
Told = tuple[int, int, str | None, str, str]
"""Exit codes of `weights` and `logprobs`, the rule, pattern or dtype, and both headlines."""


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """What both verbs say of a training."""
    train = runpy.run_path(str(EXAMPLE))["train"]

    def run(sampler: str, fault: str, control: str = "") -> Told:
        train(sampler, fault, tmp_path / "out", 0, control)
        capsys.readouterr()
        answers: list[dict[str, Any]] = []
        codes = []
        for verb, suffix in (("weights", ""), ("logprobs", ".jsonl")):
            sides = [str(tmp_path / "out" / f"{side}{suffix}") for side in ("trainer", "engine")]
            codes.append(main([verb, *sides, "--json"]))
            answers.append(json.loads(capsys.readouterr().out))
        rule = next((answers[1][key] for key in KEYS if answers[1][key]), None)
        return codes[0], codes[1], rule, answers[0]["headline"], answers[1]["headline"]

    return run


@pytest.mark.parametrize("sampler", ["generate", "paged"])
def test_a_sound_trainer_and_sampler_agree(told: Callable[..., Told], sampler: str) -> None:
    weights, probabilities, _, said, _ = told(sampler, "")
    assert (weights, probabilities) == (0, 0)
    assert said == "equal: 27 of 27 tensors, at each of 3 steps"


@pytest.mark.parametrize(
    ("sampler", "fault", "rule"),
    [
        ("paged", "temperature", "temperature"),
        ("generate", "top-p", "top-p"),
        ("generate", "masked-eos", "masked"),
        ("paged", "wrong-log-probability", "shift"),
        ("generate", "left-padding", "padding"),
        ("paged", "cache-off-by-one", "cache"),
        ("paged", "bf16-head", "bfloat16"),
        ("generate", "bf16-head", "bfloat16"),
    ],
)
def test_a_rule_of_the_sampler_is_named(
    told: Callable[..., Told], sampler: str, fault: str, rule: str
) -> None:
    assert told(sampler, fault)[:3] == (0, 1, rule)


@pytest.mark.parametrize("fault", ["cache-off-by-one", ""])
def test_a_cache_that_is_off_by_one_is_named_by_its_places(tmp_path: Path, fault: str) -> None:
    # given what `lockstep invariance` does in the process of a command
    train = runpy.run_path(str(EXAMPLE))["train"]
    found: list[Mapping[str, Any]] = []
    stop = ModuleCalls(Request(str(tmp_path), 0, None), found.append, lambda: None).listen()
    try:
        train("paged", fault, tmp_path / "out", 0)
    finally:
        stop()
    # then the operator and the places are named, and nothing of a sound cache
    named = [one for one in found if "places" in one]
    assert len(named) == bool(fault)
    for one in named:
        assert one["operator"] == "torch.Tensor.roll"
        assert one["module"] == "model.layers.0.self_attn"
        assert "all 7 places stand 1 later than their tokens" in one["headline"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("stale-weights", "step 1: one step behind: equal to the reference's weights of step 0"),
        ("stale-layer", "step 1: model.layers.1 not updated (10 of 27 tensors): equal to"),
    ],
)
def test_old_weights_are_named(told: Callable[..., Told], fault: str, words: str) -> None:
    weights, probabilities, rule, said, _ = told("paged", fault)
    assert (weights, probabilities, rule) == (1, 1, None)
    assert said.startswith(words)


def test_a_prompt_with_its_template_twice_has_other_tokens(
    told: Callable[..., Told],
) -> None:
    weights, probabilities, rule, _, said = told("generate", "template-twice")
    assert (weights, probabilities, rule) == (0, 1, None)
    assert said.startswith("token 2 of")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("control", "sampler"), [
    ("sampling-seed", "generate"), ("shuffled", "generate"), ("split-batch", "generate"), ("bfloat16-both", "paged"),
    ("pruned-cache", "paged"), ("no-cache", "generate"), ("more-padding", "generate"), ("eager", "generate"),
    ("double", "paged"), ("temperature-both", "paged"),
    ("sampling-seed", "paged"), ("shuffled", "paged"), ("bfloat16-both", "generate"), ("no-cache", "paged"),
    ("eager", "paged"), ("double", "generate"), ("temperature-both", "generate"),
])  # fmt: skip
def test_a_sampler_that_does_the_same_by_other_means_agrees(
    told: Callable[..., Told], control: str, sampler: str
) -> None:
    weights, probabilities, rule, _, said = told(sampler, "", control)
    assert (weights, probabilities, rule) == (0, 0, None), said
