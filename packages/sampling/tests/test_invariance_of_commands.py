"""`lockstep invariance -- CMD`: the modules of a plain script are tested in its process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.main import main

TRAINING = """
import sys
import torch
from torch import nn

FAULT = sys.argv[1]

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Dropout(0.1))

    def forward(self, x):
        heads = [one.unflatten(-1, (4, 8)).transpose(1, 2) for one in self.qkv(self.norms[0](x)).split(32, -1)]
        p = 0.1 if self.training else 0.0
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=p)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        if FAULT == "norm":
            x = x / x.std()
        return x + self.mlp(self.norms[1](x))

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(32, 50)

    def forward(self, ids, targets=None):
        scores = self.head(self.blocks(self.tokens(ids)))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        return loss if FAULT == "loss" else (scores, loss)

torch.manual_seed(0)
model = Decoder()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    ids = torch.randint(0, 50, (4, 12))
    given = model(ids, targets=ids)
    loss = given if FAULT == "loss" else given[1]
    loss.backward()
    optimizer.step()
    print("step", step)
raise SystemExit("the command was not ended after its first step")
"""
PARTS = """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).train(MODE)
loss = nn.CrossEntropyLoss()
with torch.no_grad():
    if not net.training:
        net(torch.randn(1, 8))
    loss(net(torch.randn(6, 8)), torch.zeros(6, dtype=torch.long))
"""
TIME_FIRST = """
import torch
torch.nn.LSTM(8, 4)(torch.randn(7, 4, 8))
"""
ENGINE = """
import sys, torch
from torch import nn

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""

class Cache:
    def __init__(self):
        self.steps, self.note = [], lambda: None
    def put(self, keys):
        self.steps.append(keys.flatten(0, 1) if FAULT == "pool" else keys)
        pool = [one.view(len(keys), -1, one.shape[-1]) for one in self.steps] if FAULT == "pool" else self.steps
        return torch.cat(pool, 1)

class Engine(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.key, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)
    def forward(self, ids, cache):
        h = self.words(ids)
        keys = cache.put(self.key(h))
        scores = h @ keys.transpose(1, 2)
        if FAULT == "mean" and scores.shape[1] == 1:
            scores = scores - scores.mean(0)
        return self.head(scores.softmax(-1) @ keys)

@torch.no_grad()
def generate(engine, ids):
    cache = Cache()
    for _ in range(50):
        ids = engine(ids, cache)[:, -1:].argmax(-1)

torch.manual_seed(0)
generate(Engine().eval(), torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9], [3, 1, 2]]))
"""
Ask = Callable[..., tuple[int, dict[str, Any]]]
pytestmark = pytest.mark.cold


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    monkeypatch.chdir(tmp_path)

    def run(script: str, *words: str, options: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
        (tmp_path / "train.py").write_text(script)
        command = [sys.executable, "train.py", *words]
        code = main(["invariance", "--json", *options, "--", *command])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("fault", ["", "loss"])
def test_a_sound_decoder_with_dropout_agrees_as_it_trains(ask: Ask, fault: str) -> None:
    code, told = ask(TRAINING, fault)
    assert code == 0
    (model,) = told["models"]
    assert (model["model"], model["is_training"], model["rows"]) == ("Decoder", True, 4)
    assert model["compared_operators"] > 20
    assert ("one number for all rows" in told["headline"]) == (fault == "loss")
    assert told["command_exit_code"] == 0  # it was ended


def test_a_normalisation_over_the_batch_is_named_with_its_line(ask: Ask) -> None:
    code, told = ask(TRAINING, "norm")
    assert code == 1
    fault = told["models"][0]["beyond_rounding"]
    assert fault["operator"] == "torch.Tensor.div"
    assert fault["module"] == "blocks.0"
    assert "x / x.std()" in TRAINING.splitlines()[fault["line"] - 1]
    assert fault["one_result_for_all_rows"] == "torch.Tensor.std"


@pytest.mark.parametrize(("mode", "code"), [("True", 1), ("False", 0)])
def test_batch_norm_depends_in_training_mode_alone(ask: Ask, mode: str, code: int) -> None:
    # given a call of one row before, which is passed over, and a loss, which is one number for all rows
    found, told = ask(PARTS.replace("MODE", mode))
    assert found == code
    (model,) = told["models"]
    fault = model["beyond_rounding"]
    assert fault is None or fault["operator"] == "torch.nn.functional.batch_norm"
    assert (fault is None) == (code == 0)
    (left,) = told["not_tested"]
    assert left.startswith("CrossEntropyLoss (train.py:10, ")
    assert left.endswith(": it gives one number for all rows")


@pytest.mark.parametrize(("axis", "code"), [((), 2), (("1",), 0), (("0",), 1)])
def test_where_time_comes_first_the_axis_of_rows_is_asked_for(
    ask: Ask, axis: tuple[str, ...], code: int
) -> None:
    found, told = ask(TIME_FIRST, options=("--rows-axis", *axis) if axis else ())
    assert found == code
    assert ("give --rows-axis 0 or 1" in told["headline"]) == (code == 2)


@pytest.mark.parametrize(("fault", "code"), [("", 0), ("mean", 1), ("pool", 2)])
def test_a_call_with_a_filled_cache_is_tested_too(ask: Ask, fault: str, code: int) -> None:
    # given an engine whose first call fills a cache that is no tensor, and whose next calls read it
    found, told = ask(ENGINE, fault)
    assert found == code, told
    # then both kinds of calls are tested, and the line at fault is one of the second kind
    calls = {one["after_earlier_calls"]: one for one in told["models"]}
    assert calls[False]["verdict"] == "agrees"
    if fault == "pool":  # rows of a cache without an axis of rows cannot be given other neighbours
        (left,) = told["not_tested"]
        assert left.startswith(
            "Engine (train.py:31, evaluation mode, after earlier calls): tensor 0 of cache has no"
        )
        return
    assert calls[True]["rows"] == 4
    assert calls[True]["padding"]["not_tried"] == "the call goes on with what earlier ones left"
    if fault:
        line = calls[True]["beyond_rounding"]["line"]
        assert "scores - scores.mean(0)" in ENGINE.splitlines()[line - 1]


def test_a_script_without_a_batch_tells_that_nothing_was_tested(ask: Ask) -> None:
    code, told = ask("import torch\ntorch.nn.Linear(4, 2)(torch.ones(1, 4))\n")
    assert code == 2
    assert told["headline"].startswith(
        "nothing was tested: Linear (train.py:2, training mode): a call with 1 rows"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--training", "--", "python"), "--training and a command exclude each other"),
        (("--",), "no command after --"),
        ((), "no model: give MODEL"),
    ],
)
def test_what_excludes_a_command_is_said(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert main(["invariance", *words]) == 2
    assert said in capsys.readouterr().err
