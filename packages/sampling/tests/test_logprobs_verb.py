"""`lockstep logprobs`: sound pairs agree, and each rule is said only where computing it explains all positions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joined_ranks import recording_of_ranks

import lockstep
from lockstep.cli.main import main
from lockstep_sampling.distributions.judging import Judged, judge
from lockstep_sampling.distributions.positions import Scores
from lockstep_sampling.distributions.sequences import Told

Rows = np.ndarray
Say = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def run(*words: object) -> tuple[int, list[str]]:
        code = main(["logprobs", *map(str, words)])
        shown = capsys.readouterr()
        return code, (shown.out or shown.err).splitlines()

    return run


def drawn(seed: int = 0, tokens: int = 8, vocabulary: int = 40) -> Rows:
    return np.random.default_rng(seed).normal(0, 2, (tokens, vocabulary))


def log_softmax(scores: Rows) -> Rows:
    shifted = scores - scores.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def told(rows: Rows, tokens: list[int] | None = None, dtype: str = "float32") -> list[Told]:
    single = rows.astype(np.float32).astype(np.float64)
    ids = tokens if tokens is not None else [3] * len(rows)
    return [Told("0", tuple(ids), tuple(Scores(row) for row in single), dtype)]


def kept(scores: Rows, keep: Rows) -> Rows:
    with np.errstate(divide="ignore"):
        return log_softmax(np.where(keep, scores, -np.inf))


def top_k(scores: Rows, count: int) -> Rows:
    return kept(scores, scores >= np.sort(scores, -1)[:, -count, None])


def top_p(scores: Rows, mass: float) -> Rows:
    order = np.argsort(-scores, -1)
    sorted_mass = np.take_along_axis(np.exp(log_softmax(scores)), order, -1)
    before = np.cumsum(sorted_mass, -1) - sorted_mass
    keep = np.zeros(scores.shape, bool)
    np.put_along_axis(keep, order, before < mass, -1)
    return kept(scores, keep)


def kind_of(judged: Judged) -> str:
    return "" if judged.explanation is None else judged.explanation.kind


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), dtype=st.sampled_from(["float32", "bfloat16", "float16"]))
def test_rounded_scores_agree(seed: int, dtype: str) -> None:
    # given scores that each side rounds once, by its own kernel
    scores = torch.from_numpy(drawn(seed)).float()
    kernel = getattr(torch, dtype)
    other = (scores * (1 + torch.finfo(kernel).eps / 4)).to(kernel)
    ours, theirs = (one.double().log_softmax(-1).numpy() for one in (scores.to(kernel), other))
    judged = judge(told(ours, dtype=dtype), told(theirs, dtype=dtype))
    assert (judged.exit_code, judged.beyond) == (0, ())


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    value=st.sampled_from([0.01, 0.5, 0.7, 0.9, 1.1, 2.0]),
)
def test_a_temperature_is_fitted(seed: int, value: float) -> None:
    scores = drawn(seed)
    judged = judge(told(log_softmax(scores)), told(log_softmax(scores / value)))
    assert kind_of(judged) == "temperature"
    assert judged.explanation is not None
    assert judged.explanation.said == f"temperature {value:.3g} at all positions"


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**31),
    rule=st.sampled_from(["top-k", "top-p", "masked", "shift", "top-k and temperature"]),
)
def test_each_rule_is_told_and_no_other(seed: int, rule: str) -> None:
    scores = drawn(seed)
    eos = np.arange(scores.shape[1]) != 7
    changed = {
        "top-k": lambda: top_k(scores, 5),
        "top-p": lambda: top_p(scores, 0.9),
        "masked": lambda: kept(scores, np.broadcast_to(eos, scores.shape)),
        "shift": lambda: log_softmax(np.roll(scores, -1, 0)),
        "top-k and temperature": lambda: top_k(scores / 0.7, 5),
    }[rule]()
    judged = judge(told(log_softmax(scores)), told(changed))
    assert kind_of(judged) == rule.removesuffix(" and temperature")
    assert judged.explanation is not None
    assert ("temperature 0.7" in judged.explanation.said) == rule.endswith("temperature")


@settings(max_examples=40)
@given(seed=st.integers(0, 2**31), place=st.integers(0, 7))
def test_what_no_rule_explains_is_said_without_one(seed: int, place: int) -> None:
    # given a temperature everywhere but at one position, as stale weights change it
    scores = drawn(seed)
    theirs = log_softmax(scores / 0.8)
    theirs[place] = log_softmax(scores[place] + np.random.default_rng(seed + 1).normal(0, 0.1, 40))
    judged = judge(told(log_softmax(scores)), told(theirs))
    assert judged.exit_code == 1
    assert kind_of(judged) == ""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("seed", range(4))
def test_scores_rounded_by_one_side_are_told_by_their_digits(dtype: str, seed: int) -> None:
    scores = torch.from_numpy(drawn(seed)).float()
    rounded = scores.to(getattr(torch, dtype)).float()
    ours, theirs = scores.log_softmax(-1).numpy(), rounded.log_softmax(-1).numpy()
    judged = judge(told(ours), told(theirs), layers=2)
    assert (judged.exit_code, judged.coarser) == (1, dtype)
    # and of both sides, that is their dtype
    other = torch.from_numpy(drawn(seed + 9)).float().to(getattr(torch, dtype)).float()
    sides = told(theirs, dtype=""), told(other.log_softmax(-1).numpy(), dtype="")
    assert judge(*sides).rounding.dtype == dtype


def test_how_far_rounding_goes_inside_of_a_model_is_not_guessed(tmp_path: Path, say: Say) -> None:
    # given differences of twice what rounding the scores allows
    scores = log_softmax(drawn())
    allowed = 4 * 2.0**-24 * np.ptp(scores, -1, keepdims=True)
    other = scores + np.random.default_rng(1).uniform(-1, 1, scores.shape) * 2 * allowed
    judged = judge(told(scores), told(other))
    assert (judged.exit_code, judged.lacking) == (2, ("--layers N",))
    assert judge(told(scores), told(other), layers=0).exit_code == 1
    assert judge(told(scores), told(other), layers=2).exit_code == 0
    # and nor is the dtype
    files = [
        write(tmp_path / name, {"tokens": [3] * 8, "logprobs": rows.tolist()})
        for name, rows in (("a", scores), ("b", other))
    ]
    code, lines = say(*files)
    assert code == 2
    assert lines[0].startswith("not judged: 8 of 8 positions")
    assert lines[0].endswith("give --rounding DTYPE and --layers N to say what rounding allows")
    # and a file may tell both
    more = {"tokens": [3] * 8, "dtype": "float32", "layers": 2}
    files = [
        write(tmp_path / name, {**more, "logprobs": rows.tolist()})
        for name, rows in (("a", scores), ("b", other))
    ]
    assert say(*files)[0] == 0
    # while more than ten thousand layers allow is a difference, however many there are
    assert judge(told(scores), told(log_softmax(drawn(1)))).exit_code == 1


def test_probabilities_that_do_not_add_up_to_one_on_one_side_are_not_compared() -> None:
    scores = log_softmax(drawn())
    judged = judge(told(scores), told(scores + np.log(2)))
    assert judged.exit_code == 2
    assert judged.alone[0].endswith("in the candidate the probabilities do not add up to 1")
    assert judge(told(scores + 1), told(scores + 2)).exit_code == 0  # scores on both sides


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"id": "a", "tokens": [1.5], "logprobs": [-1.0]}, "a token is no whole number"),
        ({"id": "a", "tokens": [1], "logprobs": [0.5]}, "a log-probability is above 0"),
        ({"id": "a", "tokens": [1], "logprobs": [-1.0], "layers": -1}, "layers is less than 0"),
        ({"id": "b", "tokens": [1], "logprobs": [-1.0]}, "two sequences have the id b"),
    ],
)
def test_a_line_that_would_be_misread_is_refused(
    tmp_path: Path, say: Say, line: dict[str, Any], words: str
) -> None:
    sound = {"id": "b", "tokens": [1], "logprobs": [-1.0]}
    code, lines = say(write(tmp_path / "a", sound), write(tmp_path / "b", sound, line))
    assert code == 2
    assert words in lines[0]


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_drawn_token_that_differs_is_said_as_that(tmp_path: Path, say: Say) -> None:
    scores = drawn(tokens=6)
    ours = {"tokens": [1, 2, 3, 4, 5, 6], "logprobs": log_softmax(scores).tolist()}
    theirs = {"tokens": [1, 2, 3, 4, 5, 9], "logprobs": log_softmax(scores / 0.01).tolist()}
    files = write(tmp_path / "a", ours), write(tmp_path / "b", theirs)
    code, lines = say(*files)
    assert code == 1
    assert lines[0].startswith(
        "token 5 of sequence 0 differs: 9, in the reference 6: temperature 0.01 at all positions"
    )
    # and where the probabilities agree, it was drawn
    files = write(tmp_path / "a", ours), write(tmp_path / "b", {**ours, "tokens": theirs["tokens"]})
    code, lines = say(*files)
    assert code == 1
    assert lines[0].endswith("6 positions (whole vocabulary) agree up to there: it was drawn otherwise")  # fmt: skip


def test_log_probabilities_of_the_tokens_alone_and_of_the_most_likely_are_read(
    tmp_path: Path, say: Say
) -> None:
    scores = log_softmax(drawn(tokens=4))
    tokens = [5, 6, 7, 8]
    alone = [float(row[token]) for row, token in zip(scores, tokens, strict=True)]
    first = write(tmp_path / "a", {"id": "x", "tokens": tokens, "logprobs": alone})
    pairs = zip(scores, tokens, strict=True)
    listed = [{str(one): float(row[one]) for one in (token, 0, 1)} for row, token in pairs]
    second = write(tmp_path / "b", {"id": "x", "tokens": tokens, "logprobs": listed})
    code, lines = say(first, second)
    said = "agree: 4 positions (of the tokens alone), at most 0 apart, which rounding allows"
    assert (code, lines[0]) == (0, said)
    # and a shift by one is told of them too
    shifted = {"id": "x", "tokens": tokens, "logprobs": [-1.5, alone[0], alone[1], alone[2]]}
    code, lines = say(first, write(tmp_path / "d", shifted))
    assert (code, lines[0].partition(":")[2][:15]) == (1, " shifted by one")
    # and where they differ, it takes the dtype and depth to say so
    moved = {"id": "x", "tokens": tokens, "logprobs": [alone[1] - 1, alone[2], alone[0], -1.5]}
    third = write(tmp_path / "c", {**moved, "tokens": tokens})
    assert say(first, third)[0] == 2
    assert say(first, third, "--rounding", "float32", "--layers", 28)[0] == 1


def test_what_is_missing_stands_in_the_headline(tmp_path: Path, say: Say) -> None:
    one = {"id": "a", "tokens": [1, 2], "logprobs": [-1.0, -2.0]}
    first = write(tmp_path / "a", one, {**one, "id": "b"})
    code, lines = say(first, write(tmp_path / "b", one))
    assert code == 2
    assert lines[0].endswith("; not compared: sequence b is missing in the candidate")
    longer = {"id": "a", "tokens": [1, 2, 3], "logprobs": [-1.0, -2.0, -1.0]}
    code, lines = say(write(tmp_path / "c", one), write(tmp_path / "d", longer))
    assert code == 2
    assert lines[0].endswith("not compared: sequence a has 3 tokens, in the reference 2")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", '{"tokens": [1], "logprobs": []}', '{"tokens": [1], "logprobs": [NaN]}'],
)
def test_a_line_that_is_no_sequence_is_one_sentence(tmp_path: Path, say: Say, text: str) -> None:
    good = write(tmp_path / "a", {"tokens": [1], "logprobs": [-1.0]})
    (tmp_path / "b").write_text(text)
    code, lines = say(good, tmp_path / "b")
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(f"lockstep: {tmp_path / 'b'}: ")


def recorded(folder: Path, name: str, temperature: float, rows: slice = slice(None)) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(30, 8), torch.nn.Linear(8, 30))
    ids = torch.arange(24).reshape(4, 6)[rows]
    if temperature != 1:
        model[1].weight.data /= temperature
        model[1].bias.data /= temperature
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(folder / name, model=model, steps="0:1", save="tensors"):
        model(ids).logsumexp(-1).mean().backward()
        optimizer.step()
    return folder / name


def test_recorded_scores_are_compared(tmp_path: Path, say: Say) -> None:
    ours = recorded(tmp_path, "ours", 1)
    assert say(ours, recorded(tmp_path, "same", 1))[0] == 0
    code, lines = say(ours, recorded(tmp_path, "cold", 0.5), "--json")
    assert code == 1
    assert json.loads("\n".join(lines))["explanation"] == "temperature"


def test_ranks_with_rows_of_their_own_are_compared_one_by_one(tmp_path: Path, say: Say) -> None:
    # given a trainer of two ranks with two rows each, and samplers with the same rows, one of whose ranks is colder
    halves = [slice(0, 2), slice(2, 4)]
    parts = [recorded(tmp_path, f"part{at}", 1, rows) for at, rows in enumerate(halves)]
    trainer = recording_of_ranks(tmp_path / "trainer", *parts)
    sound = recording_of_ranks(tmp_path / "sound", *parts)
    cold = recording_of_ranks(
        tmp_path / "cold", parts[0], recorded(tmp_path, "cold1", 0.5, halves[1])
    )
    # when each is compared, then the rank that differs is named
    code, lines = say(trainer, sound)
    assert (code, "24 positions" in lines[0]) == (0, True), lines
    code, lines = say(trainer, cold)
    assert code == 1
    assert "12 of 24 positions" in lines[0]
    assert any("rank1 step 0" in line for line in lines), lines
    # and a sampler with all rows on one rank has those of both
    assert say(trainer, recorded(tmp_path, "whole", 1))[0] == 0
    assert say(recorded(tmp_path, "cold whole", 0.5), trainer)[0] == 1


def test_a_sound_model_with_another_attention_agrees_without_options(
    tmp_path: Path, say: Say
) -> None:
    # given recordings, which tell how many operators the model runs
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folders = []
    for kind in ("eager", "sdpa"):
        torch.manual_seed(0)
        settings_of_model = Qwen2Config(
            vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, initializer_range=0.2, attn_implementation=kind,
        )  # fmt: skip
        model = Qwen2ForCausalLM(settings_of_model)
        with lockstep.record(tmp_path / kind, model=model, steps="0:1", save="tensors"):
            model(torch.arange(20).reshape(2, 10)).logits.logsumexp(-1).mean().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        folders.append(tmp_path / kind)
    code, lines = say(*folders)
    assert code == 0, lines
