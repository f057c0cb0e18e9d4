"""`lockstep experts`: tokens that go to other experts, by rounding or beyond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from joined_ranks import recording_of_ranks
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import lockstep
from lockstep.cli.main import main
from lockstep_sampling.distributions.positions import Rounding
from lockstep_sampling.experts.routing import Router, Routing, may_round


def mixtral(**changed: Any) -> MixtralForCausalLM:
    """Two layers of eight experts, whose router takes the softmax before it chooses."""
    settings = MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2, initializer_range=0.2, **changed,
    )  # fmt: skip
    return MixtralForCausalLM(settings)


def recorded(
    path: Path, make: Any = None, dtype: torch.dtype = torch.float32, **changed: Any
) -> Path:
    """A forward and backward of two layers of eight experts; `fault` adds to a router's weights."""
    fault, layer = changed.pop("fault", 0.0), changed.pop("layer", 0)
    torch.manual_seed(0)
    model = (make or qwen)(**changed)
    gate = model.model.layers[layer].mlp.gate.weight
    gate.data[0] += fault * torch.randn(gate.shape[1], generator=torch.Generator().manual_seed(1))
    model.to(dtype)
    with lockstep.record(path, model=model, steps="0:1", save="tensors"):
        model(torch.arange(20).reshape(2, 10)).logits.float().logsumexp(-1).mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    return path


def qwen(**changed: Any) -> Qwen3MoeForCausalLM:
    settings = Qwen3MoeConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, head_dim=8,
        initializer_range=0.2, **changed,
    )  # fmt: skip
    return Qwen3MoeForCausalLM(settings)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("experts") / "ref", attn_implementation="eager")


def asked(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["experts", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_sound_run_with_another_attention_takes_the_same_experts(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = recorded(tmp_path / "cand", attn_implementation="sdpa")
    code, told = asked(capsys, reference, other)
    assert code == 0
    assert told["headline"] == "agree: 40 choices of 2 routers take the same experts"


@pytest.mark.parametrize("layer", [0, 1])
def test_a_router_with_other_weights_is_the_first_that_differs(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], layer: int
) -> None:
    other = recorded(tmp_path / "cand", attn_implementation="eager", fault=0.5, layer=layer)
    code, told = asked(capsys, reference, other)
    assert code == 1
    assert told["headline"].startswith(f"differs: first at model.layers.{layer}.mlp.gate in step 0")
    assert told["routers"][layer]["beyond_rounding"] > 0


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        ([(0, 0), (0, 0)], 0),
        ([(1, 0), (0, 0)], 0),
        ([(1, 1), (3, 3)], 1),
        ([(0, 0), (3, 1)], 1),
        ([(1, 0), (3, 2)], 2),  # what is behind a token that rounding moved is another computation
    ],
)
def test_behind_a_token_that_rounding_moved_nothing_is_judged(
    counts: list[tuple[int, int]], code: int
) -> None:
    routers = tuple(
        Router(0, f"layers.{at}", 9, *count, number=at) for at, count in enumerate(counts)
    )
    assert Routing(routers, ()).exit_code == code
    assert Routing(routers, ("rank1",)).exit_code == (code or 2)


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        ({"rank0": (1, 0), "rank1": (0, 0)}, 0),
        ({"rank0": (1, 0), "rank1": (2, 1)}, 1),  # it chose beside the first, not behind it
    ],
)
def test_ranks_choose_beside_each_other(counts: dict[str, tuple[int, int]], code: int) -> None:
    routers = tuple(Router(0, "layers.0", 9, *count, rank=rank) for rank, count in counts.items())
    assert Routing(routers, ()).exit_code == code
    # and behind what rounding moved on one rank, nothing is judged on another
    later = Router(0, "layers.1", 9, 3, 2, rank="rank1", number=1)
    assert Routing((*routers, later), ()).exit_code == (code or 2)


def test_routers_of_several_ranks_are_named_with_their_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given two ranks with rows of their own, and the same where the last one has another router
    def chosen(name: str, rows: slice, scale: float = 1.0) -> Path:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 6)
        scores = torch.randn(8, 8)[rows]
        model.weight.data[0] *= scale
        with lockstep.record(tmp_path / name, model=model, steps="0:1", save="tensors"):
            model(scores).topk(2).values.sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        return tmp_path / name

    first, last = slice(0, 4), slice(4, 8)
    parts = [chosen("first", first), chosen("last", last)]
    ours, same = (recording_of_ranks(tmp_path / name, *parts) for name in ("ours", "same"))
    other = recording_of_ranks(tmp_path / "other", parts[0], chosen("wrong", last, -3.0))
    # when they are compared, then the rank is named
    code, told = asked(capsys, ours, same)
    assert (code, told["headline"]) == (0, "agree: 8 choices of 2 routers take the same experts")
    code, told = asked(capsys, ours, other)
    assert code == 1
    assert " in step 0 of rank1: " in told["headline"]
    assert [one["rank"] for one in told["routers"]] == ["rank0", "rank1"]
    # and all rows on one rank have the choices of both
    code, told = asked(capsys, ours, chosen("whole", slice(0, 8)))
    assert (code, told["headline"]) == (0, "agree: 8 choices of 1 routers take the same experts")


@pytest.mark.parametrize(("apart", "expected"), [(1e-8, True), (1e-2, False)])
def test_rounding_moves_a_token_between_experts_of_close_scores_alone(
    apart: float, expected: bool
) -> None:
    ours = np.array([1.0, 0.5 + apart, 0.5, -1.0])
    theirs = np.array([1.0, 0.5, 0.5 + apart, -1.0])
    sides = np.array([0, 1]), np.array([0, 2])
    assert may_round(ours, theirs, *sides, Rounding("float32", 30)) is expected


def test_a_model_without_experts_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        model = torch.nn.Linear(4, 4)
        with lockstep.record(folder, model=model, steps="0:1", save="tensors"):
            model(torch.ones(2, 4)).sum().backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
    capsys.readouterr()
    assert main(["experts", *map(str, folders)]) == 2
    assert "no call of topk gives experts" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("fault", "code"), [(0.0, 0), (1.0, 1)])
def test_mixtral_is_judged_as_other_experts_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: torch.dtype, fault: float, code: int
) -> None:
    kinds = {"ref": ("eager", 0.0), "cand": ("sdpa", fault)}
    sides = [
        recorded(
            tmp_path / name, mixtral, dtype, attn_implementation=attention, fault=size, layer=1
        )
        for name, (attention, size) in kinds.items()
    ]
    found, told = asked(capsys, *sides)
    if code or dtype is torch.float32:
        assert found == code, told["headline"]
        assert not code or told["headline"].startswith("differs: first at model.layers.1.mlp.gate")
    else:  # rounding in 16 bits may send a token elsewhere, and what is behind it is then not judged
        assert found in (0, 2), told["headline"]
        assert told["routers"][0]["beyond_rounding"] == 0
