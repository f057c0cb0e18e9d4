"""`lockstep invariance`: sound models depend on their batch by rounding at most, faults are named with their line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from lockstep.cli.main import main
from lockstep_sampling.invariance.judging import Invariance, judge
from lockstep_sampling.invariance.module_arguments import ModuleCall

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, norm=None, mix=None):
        super().__init__()
        self.first = nn.Linear(16, 33)
        self.norm = norm or nn.LayerNorm(33)
        self.last = nn.Linear(33, 5)
        self.mix = mix or (lambda h: h)

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = self.mix(h)
        return self.last(self.norm(h))

def sound(): return Net()
def batch_norm(): return Net(nn.BatchNorm1d(33))
def mean(): return Net(mix=lambda h: h - h.mean())
def softmax(): return Net(mix=lambda h: torch.softmax(h, 0))
def in_place():
    class InPlace(Net):
        def forward(self, x): return super().forward(x.mul_(2))
    return InPlace()
def in_float32():
    class InFloat32(Net):
        def forward(self, x): return super().forward(x.float())
    return InFloat32()
def refuses():
    class Refuses(Net):
        def forward(self, x): raise ValueError("no such batch")
    return Refuses()
def elementwise():
    class Elementwise(nn.Module):
        def forward(self, x): return torch.sigmoid(nn.functional.layer_norm(x, (16,)))
    return Elementwise()
def scalar():
    class Scalar(Net):
        def forward(self, x): return super().forward(x).square().mean()
    return Scalar()
"""
Ask = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)

    def run(function: str, *words: str, rows: int = 6) -> tuple[int, dict[str, Any]]:
        spec = f"x:float32[{rows},16]"
        code = main(["invariance", f"net.py:{function}", "--inputs", spec, "--json", *words])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("function", ["sound", "batch_norm", "in_place"])
def test_a_sound_model_depends_on_its_batch_by_rounding_at_most(ask: Ask, function: str) -> None:
    code, told = ask(function)
    assert code == 0
    assert told["beyond_rounding"] is None
    rounding = told["first_other_bits"]
    assert rounding is None or rounding["relative"] < 1e-5


def test_a_model_without_sums_over_shapes_is_invariant_bit_by_bit(ask: Ask) -> None:
    code, told = ask("elementwise")
    assert code == 0
    assert told["headline"].startswith("invariant: 2 operators give each row the same bits")


@pytest.mark.parametrize(
    ("function", "words", "operator", "line"),
    [
        ("mean", (), "torch.Tensor.sub", "def mean()"),
        ("softmax", (), "torch.softmax", "def softmax()"),
        ("batch_norm", ("--training",), "torch.nn.functional.batch_norm", "self.norm(h)"),
    ],
)
def test_a_fault_is_named_with_its_line(
    ask: Ask, function: str, words: tuple[str, ...], operator: str, line: str
) -> None:
    code, told = ask(function, *words)
    assert code == 1
    fault = told["beyond_rounding"]
    assert fault["operator"] == operator
    assert line in NET.splitlines()[fault["line"] - 1]
    assert (fault["one_result_for_all_rows"] == "torch.Tensor.mean") == (function == "mean")


def test_a_variant_that_the_model_does_not_take_stands_in_the_headline(ask: Ask) -> None:
    _, told = ask("batch_norm", "--training")
    assert "not run: the first row alone (Expected more than 1 value" in told["headline"]


def test_a_result_without_rows_is_not_called_invariant(ask: Ask) -> None:
    code, told = ask("scalar")
    assert code == 2
    assert told["headline"].endswith("the model's result was not compared: it has no axis of rows")


def test_one_row_is_refused(tmp_path: Path, ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["invariance", "net.py:sound", "--inputs", "x:float32[1,16]"]) == 2
    assert "its inputs have 1 rows; give 2 or more with --inputs" in capsys.readouterr().err


def decoder() -> nn.Module:
    torch.manual_seed(0)
    settings = Qwen2Config(
        vocab_size=90, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return Qwen2ForCausalLM(settings).eval()


def judged(module: nn.Module) -> Invariance:
    ids = torch.randint(0, 90, (4, 7), generator=torch.Generator().manual_seed(1))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return judge(ModuleCall.of(module, (), given))


def test_a_decoder_of_transformers_is_sound() -> None:
    found = judged(decoder())
    assert (found.exit_code, found.fault) == (0, None)
    assert found.is_result_compared


def test_an_attention_that_reads_the_row_before_is_found() -> None:
    # given keys of which a little comes from the row before
    module = decoder()
    layer = module.get_submodule("model.layers.1.self_attn.k_proj")
    layer.register_forward_hook(lambda _, __, given: given + 1e-3 * given.roll(1, 0))
    found = judged(module)
    assert found.exit_code == 1
    assert found.fault is not None
    assert Path(found.fault.operator.file).name == Path(__file__).name


def test_a_model_that_cannot_run_in_double_precision_is_not_judged(ask: Ask) -> None:
    code, told = ask("in_float32")
    if told["first_other_bits"] is None:  # equal bits need no second computation
        assert code == 0
        return
    assert code == 2
    assert told["headline"].startswith(
        "not judged: rows depend on their batch, by rounding or more"
    )
    assert "not run: double precision (" in told["headline"]


def test_a_model_that_refuses_its_batch_is_said_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    assert main(["invariance", "net.py:refuses", "--inputs", "x:float32[6,16]"]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[0].endswith("the model does not run on its inputs: no such batch")


class Dropping(nn.Module):
    """Attention with dropout inside and after it, a chance for all rows, and dropout of flat positions."""

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True)
        self.dropout, self.last, self.leak = nn.Dropout(0.3), nn.Linear(16, 5), leak

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, _ = self.attention(x, x, x)
        h = self.dropout(h)
        if self.leak:
            h = h + self.leak * h.roll(1, 0)
        if torch.rand(()) < 0.5:
            h = h + 1
        flat = nn.functional.dropout(self.last(h).flatten(0, 1), 0.1, self.training)
        return flat.view(*h.shape[:2], -1)


@pytest.mark.parametrize(("leak", "code"), [(0.0, 0), (1e-3, 1)])
def test_dropout_gives_each_row_its_own_numbers_again(leak: float, code: int) -> None:
    torch.manual_seed(0)
    module = Dropping(leak).train()
    x = torch.randn(4, 6, 16)
    found = judge(ModuleCall.of(module, (x,), {}))
    assert found.exit_code == code
    assert found.is_result_compared
    assert found.hidden_draws == ()


class FewExperts(nn.Module):
    """Each row goes to one of two experts, so that other rows make other calls; `leak` mixes rows."""

    def __init__(self, leak: float = 0.0) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.leak = leak

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = ((x[:, 0] > 0) == bool(number)).nonzero()[:, 0]
            if rows.numel():
                given = x[rows]
                result[rows] = expert(given + self.leak * given.mean(0) if self.leak else given)
        return result


@pytest.mark.parametrize(("leak", "code"), [(0.0, 0), (0.1, 1)])
def test_where_rows_make_other_calls_the_result_is_compared(leak: float, code: int) -> None:
    torch.manual_seed(0)
    found = judge(ModuleCall.of(FewExperts(leak), (torch.randn(6, 8),), {}))
    assert found.parted
    assert found.exit_code == code
