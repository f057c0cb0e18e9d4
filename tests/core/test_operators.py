"""The catalogue of operators, held against what torch computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lockstep.core import operators
from lockstep.core.operators import Trait, canonical_name, operator_of, writes_in_place

TABLES = (operators._NAMES, operators._TRAITS, operators._PRODUCTS)


def whole(*shape: int) -> Tensor:
    """Small whole numbers: their sums are exact in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).double()


@pytest.mark.parametrize("table", TABLES, ids=["families", "traits", "products"])
def test_every_name_is_spelled_as_it_is_looked_up(table: dict[object, str]) -> None:
    names = [name for group in table.values() for name in group.split()]

    assert [name for name in names if canonical_name(name) != name] == []


@pytest.mark.parametrize("table", TABLES[::2], ids=["families", "products"])
def test_no_operator_stands_in_two_groups(table: dict[object, str]) -> None:
    names = [name for group in table.values() for name in group.split()]

    assert len(names) == len(set(names))


PRODUCTS: dict[str, tuple[Callable[..., Tensor], Sequence[Tensor]]] = {
    "linear": (F.linear, (whole(3, 4), whole(5, 4), whole(5))),
    "matmul": (torch.matmul, (whole(2, 3, 4), whole(2, 4, 5))),
    "mm": (torch.mm, (whole(3, 4), whole(4, 5))),
    "bmm": (torch.bmm, (whole(2, 3, 4), whole(2, 4, 5))),
    "mv": (torch.mv, (whole(3, 4), whole(4))),
    "dot": (torch.dot, (whole(4), whole(4))),
    "inner": (torch.inner, (whole(3, 4), whole(5, 4))),
    "addmm": (torch.addmm, (whole(3, 5), whole(3, 4), whole(4, 5))),
    "baddbmm": (torch.baddbmm, (whole(2, 3, 5), whole(2, 3, 4), whole(2, 4, 5))),
    "addbmm": (torch.addbmm, (whole(3, 5), whole(2, 3, 4), whole(2, 4, 5))),
    "addmv": (torch.addmv, (whole(3), whole(3, 4), whole(4))),
    "conv1d": (F.conv1d, (whole(2, 4, 6), whole(5, 4, 3), whole(5))),
    "conv2d": (F.conv2d, (whole(2, 4, 6, 6), whole(5, 4, 3, 3))),
    "convtranspose1d": (F.conv_transpose1d, (whole(2, 4, 6), whole(4, 5, 3), whole(5))),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_is_the_sum_of_those_over_the_halves_of_its_contracted_axis(name: str) -> None:
    call, tensors = PRODUCTS[name]
    product = operator_of(name).product
    assert product is not None
    assert product.contracted is not None
    given = [tensor.clone() for tensor in tensors]
    if product.added is not None and product.added < len(given):
        given[product.added].zero_()

    halves = []
    for half in (0, 1):
        part = list(given)
        for place, axis in zip((product.left, product.right), product.contracted, strict=True):
            part[place] = given[place].chunk(2, axis)[half]
        halves.append(call(*part))

    assert torch.equal(halves[0] + halves[1], call(*given))
    assert bool(call(*given).any())


@pytest.mark.parametrize("name", [name for name, (_, given) in PRODUCTS.items() if len(given) == 3])
def test_what_is_added_comes_in_once(name: str) -> None:
    call, tensors = PRODUCTS[name]
    product = operator_of(name).product
    assert product is not None
    assert product.added is not None
    given = list(tensors)

    given[product.added] = given[product.added] + 1

    assert torch.equal(call(*given), call(*tensors) + 1)


@pytest.mark.parametrize("name", ["outer", "einsum", "bilinear", "relu", "exp"])
def test_what_sums_over_no_axis_that_shapes_tell_has_none(name: str) -> None:
    product = operator_of(name).product

    assert product is None or product.contracted is None


GRID = whole(4, 4)
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda x: x.view(16), "reshape": lambda x: x.reshape(2, 8), "flatten": torch.flatten,
    "squeeze": torch.squeeze, "unsqueeze": lambda x: x.unsqueeze(0), "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(1, 0), "t": torch.t, "detach": torch.detach, "narrow": lambda x: x.narrow(0, 0, 2),
    "select": lambda x: x.select(0, 1), "expand": lambda x: x.unsqueeze(0).expand(2, 4, 4),
    "unbind": lambda x: x.unbind()[0], "split": lambda x: x.split(2)[0], "chunk": lambda x: x.chunk(2)[0],
    "diagonal": torch.diagonal, "clone": torch.clone, "flip": lambda x: x.flip(0), "roll": lambda x: x.roll(1),
    "repeat": lambda x: x.repeat(2, 1), "tril": torch.tril, "relu": torch.relu, "neg": torch.neg,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_views_are_what_returns_the_memory_it_is_given(name: str) -> None:
    shared = CALLS[name](GRID).untyped_storage().data_ptr() == GRID.untyped_storage().data_ptr()

    assert (Trait.VIEWS in operator_of(name).traits) is shared


@pytest.mark.parametrize("name", ["mul", "div", "pow", "add", "sub"])
def test_the_neutral_number_leaves_any_tensor_alone(name: str) -> None:
    call = vars(torch)[name]
    neutral = operator_of(name).neutral
    assert neutral is not None

    assert torch.equal(call(GRID, neutral), GRID)
    assert not torch.equal(call(GRID, neutral + 1), GRID)


IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "torch.Tensor.add_": lambda x: x.add_(1),
    "torch.Tensor.__imul__": lambda x: x.__imul__(2),
    "torch.Tensor.__ifloordiv__": lambda x: x.__ifloordiv__(2),
    "torch.Tensor.zero_": torch.Tensor.zero_,
    "torch.Tensor.add": lambda x: x.add(1),
    "torch.Tensor.__rmul__": lambda x: 2 * x,
    "torch.Tensor.__len__": len,
    "torch.Tensor.__getitem__": lambda x: x[0],
    "torch.Tensor.__invert__": lambda x: ~x.bool(),
}


@pytest.mark.parametrize("op", IN_PLACE)
def test_what_writes_in_place_is_told_by_its_name(op: str) -> None:
    tensor = GRID.clone()
    before = tensor._version

    IN_PLACE[op](tensor)

    assert writes_in_place(op) is (tensor._version != before)


@pytest.mark.parametrize(
    ("op", "arguments", "share"),
    [
        ("torch.nn.functional.dropout", {}, 0.5),
        ("torch.nn.functional.dropout", {"args.1": 0.1}, 0.1),
        ("torch.nn.functional.dropout", {"kwargs.p": 0.2}, 0.2),
        ("torch.nn.Dropout", {"p": 0.3}, 0.3),
        ("torch.nn.functional.scaled_dot_product_attention", {"args.4": 0.4}, 0.4),
        ("torch.nn.functional.scaled_dot_product_attention", {"args.1": 0.4}, 0.0),
    ],
)
def test_the_share_that_is_dropped(op: str, arguments: dict[str, Any], share: float) -> None:
    dropped = operator_of(op).dropped

    assert dropped is not None
    assert dropped.of(arguments) == share
    assert operator_of("torch.relu").dropped is None
