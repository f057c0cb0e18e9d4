"""`lockstep weights`: contents that are all there, but not in their place, are never called equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lockstep_sampling.weights.live import fingerprint_of_tensor
from lockstep_sampling.weights.matching import Matching, Weight, match
from lockstep_sampling.weights.order import order_in_name
from lockstep_sampling.weights.relation import Standing
from lockstep_sampling.weights.sources import open_side
from lockstep_sampling.weights.verdict import judge

Tensors = dict[str, torch.Tensor]


def matched(reference: Tensors, candidate: Tensors) -> Matching:
    sides = [
        [Weight(name, (fingerprint_of_tensor(name, one),)) for name, one in side.items()]
        for side in (reference, candidate)
    ]
    return match(*sides)


def standings(found: Matching) -> set[Standing]:
    assert not found.missing
    assert not found.unexpected
    return {pair.relation.standing for pair in found.pairs}


def drawn(*names: str, shape: tuple[int, ...] = (4, 16)) -> Tensors:
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draw) for name in names}


def layers(words: str, count: int = 12) -> Tensors:
    return drawn(*(f"layers.{layer}.{word}" for layer in range(count) for word in words.split()))


def renumbered(weights: Tensors, of: dict[int, int]) -> Tensors:
    """Under other names, with other numbers."""
    return {
        re.sub(
            r"layers\.(\d+)", lambda one: f"blocks.{of.get(int(one[1]), int(one[1]))}", name
        ): tensor
        for name, tensor in weights.items()
    }


@pytest.mark.parametrize("offset", [0, 9])
def test_layers_of_other_names_and_numbers_are_equal(offset: int) -> None:
    # given norms of ones too, which contents do not tell apart
    weights = layers("o")
    weights |= {f"layers.{layer}.norm": torch.ones(4) for layer in range(12)}
    found = matched(weights, renumbered(weights, {one: one + offset for one in range(12)}))
    assert standings(found) == {Standing.EQUAL}


@pytest.mark.parametrize("of", [{2: 3, 3: 2}, {one: (one + 1) % 12 for one in range(12)}])
def test_layers_in_another_order_differ(of: dict[int, int]) -> None:
    weights = layers("o q")
    found = matched(weights, renumbered(weights, of))
    different = [pair for pair in found.pairs if pair.relation.standing is Standing.DIFFERS]
    assert len(different) == 2 * len(of)
    assert "another order" in different[0].relation.words


def together(weights: Tensors, name: str, order: str, count: int = 3) -> Tensors:
    return {
        f"layers.{layer}.{name}": torch.cat([weights[f"layers.{layer}.{word}"] for word in order])
        for layer in range(count)
    }


def test_a_fused_tensor_in_the_order_of_its_name_is_equal() -> None:
    weights = layers("q k v", 3)
    assert standings(matched(weights, together(weights, "qkv", "qkv"))) == {Standing.EQUAL}


def test_a_fused_tensor_against_its_name_is_not_judged() -> None:
    weights = layers("q k v", 3)
    found = matched(weights, together(weights, "qkv", "kqv"))
    assert standings(found) == {Standing.NOT_JUDGED}
    assert found.pairs[0].relation.words.endswith("that its name denies: k + q + v")


def test_where_the_name_is_silent_the_modules_order_counts_and_the_alphabets_does_not() -> None:
    weights = layers("q k v", 3)
    fused = together(weights, "inner", "qkv")
    assert standings(matched(weights, fused)) == {Standing.EQUAL}
    by_alphabet = {name: weights[name] for name in sorted(weights)}
    assert standings(matched(by_alphabet, fused)) == {Standing.NOT_JUDGED}
    other = together(weights, "inner", "kqv")
    assert standings(matched(weights, other)) == {Standing.NOT_JUDGED}
    assert standings(matched(by_alphabet, other)) == {Standing.NOT_JUDGED}


def test_one_layer_put_together_otherwise_differs() -> None:
    weights = layers("q k v", 3)
    fused = together(weights, "qkv", "qkv")
    fused["layers.1.qkv"] = torch.cat([weights[f"layers.1.{word}"] for word in "kqv"])
    found = matched(weights, fused)
    assert [pair.relation.agrees for pair in found.pairs] == [True, False, True]
    assert found.pairs[1].relation.standing is Standing.DIFFERS


def test_parts_of_two_layers_that_are_exchanged_inside_of_a_fused_tensor_differ() -> None:
    weights = layers("q k v", 3)
    swapped = dict(weights)
    swapped["layers.0.k"], swapped["layers.1.k"] = weights["layers.1.k"], weights["layers.0.k"]
    found = matched(weights, together(swapped, "qkv", "qkv"))
    assert [pair.relation.standing for pair in found.pairs] == [
        Standing.DIFFERS, Standing.DIFFERS, Standing.EQUAL,
    ]  # fmt: skip


@pytest.mark.parametrize("is_sound", [True, False])
def test_experts_stand_in_the_order_of_their_numbers(is_sound: bool) -> None:
    weights = drawn(*(f"layers.{layer}.experts.{n}.w" for layer in range(2) for n in range(12)))
    order = sorted(range(12), key=int if is_sound else str)
    stacked = {
        f"layers.{layer}.experts.w": torch.stack(
            [weights[f"layers.{layer}.experts.{n}.w"] for n in order]
        )
        for layer in range(2)
    }
    expected = Standing.EQUAL if is_sound else Standing.DIFFERS
    assert standings(matched(weights, stacked)) == {expected}


def test_a_layer_that_is_a_copy_of_another_and_is_missing_is_not_judged() -> None:
    # given a model grown in depth: its last layer is a copy
    weights = layers("o", 3)
    weights["layers.3.o"] = weights["layers.2.o"].clone()
    lacking = {name: one for name, one in weights.items() if name != "layers.3.o"}
    assert standings(matched(weights, lacking)) == {Standing.EQUAL, Standing.NOT_JUDGED}
    # then its twin is equal, also under other names
    assert standings(matched(weights, renumbered(weights, {}))) == {Standing.EQUAL}


def test_an_empty_tensor_is_no_evidence_of_a_transposed_layout() -> None:
    one = {"empty": torch.zeros(0, 4), "square": torch.eye(4) + 1}
    found = matched(one, {"empty": torch.zeros(4, 0), "square": torch.eye(4) + 1})
    assert [pair.relation.standing for pair in found.pairs] == [Standing.DIFFERS, Standing.EQUAL]


@pytest.mark.parametrize(
    ("whole", "parts", "expected"),
    [
        ("h.qkv_proj.w", ["h.q_proj.w", "h.k_proj.w", "h.v_proj.w"], [0, 1, 2]),
        ("h.query_key_value", ["h.value", "h.key", "h.query"], [2, 1, 0]),
        ("h.gate_up.w", ["h.up.w", "h.gate.w"], [1, 0]),
        ("h.w13", ["h.w1", "h.w3"], [0, 1]),
        ("h.inner.w", ["h.q.w", "h.k.w"], None),
    ],
)
def test_the_name_of_a_fused_tensor_tells_the_order(
    whole: str, parts: list[str], expected: list[int] | None
) -> None:
    told = None if expected is None else [parts[place] for place in expected]
    assert order_in_name(whole, parts) == told


# -- what lies beside the weights in a file


def code(reference: Path, candidate: Path) -> int:
    return judge(open_side(reference), open_side(candidate)).exit_code


def test_a_counter_beside_the_models_weights_does_not_hide_them(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("twin", 0), ("b", 1)):
        torch.manual_seed(seed)
        model = torch.nn.Linear(4, 4).state_dict()
        torch.save({"step": torch.tensor(3), "model": model}, tmp_path / f"{name}.pt")
    assert code(tmp_path / "a.pt", tmp_path / "twin.pt") == 0
    assert code(tmp_path / "a.pt", tmp_path / "b.pt") == 1


def test_a_state_that_is_no_tensor_is_not_judged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        told = {"w": torch.ones(3), "epoch": 3}
        torch.save({**told, "w._extra_state": {"scale": 3}}, tmp_path / f"{name}.pt")
        torch.save(told, tmp_path / f"plain-{name}.pt")
    assert code(tmp_path / "plain-a.pt", tmp_path / "plain-b.pt") == 0
    assert code(tmp_path / "a.pt", tmp_path / "b.pt") == 2


def test_a_folder_of_several_torch_files_asks_for_one_of_them_or_an_index(tmp_path: Path) -> None:
    for name in ("model.bin", "optimizer.pt"):
        torch.save({"w": torch.ones(3)}, tmp_path / name)
    with pytest.raises(Exception, match=r"model\.bin, optimizer\.pt, and no index"):
        code(tmp_path / "model.bin", tmp_path)
    index = tmp_path / "model.bin.index.json"
    index.write_text('{"weight_map": {"w": "model.bin"}}')
    assert code(tmp_path / "model.bin", tmp_path) == 0
    index.write_text('{"weight_map": {"w": "absent.bin"}}')
    with pytest.raises(Exception, match="in the index, but not there"):
        code(tmp_path / "model.bin", tmp_path)


def test_a_tensor_that_the_index_does_not_name_is_said(tmp_path: Path) -> None:
    file = tmp_path / "model-1.safetensors"
    save_file({"w": torch.ones(3), "more": torch.ones(3)}, file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"w": "model-1.safetensors"}}')
    with pytest.raises(Exception, match="more is in the file, but not in the index"):
        code(tmp_path, file)
