"""Finding tensors and plain values inside arguments and results."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from lockstep.capture.leaves import (
    argument_tensors,
    plain,
    plain_arguments,
    plain_attributes,
    tensors_in,
)

ONE, TWO = torch.ones(1), torch.full((2,), 2.0)
Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Output:
    logits: Tensor
    extra: Any = None
    hidden: tuple[Tensor, ...] = field(default_factory=tuple)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (ONE, ["x"]),
        ((ONE, TWO), ["x.0", "x.1"]),
        ([ONE, [TWO]], ["x.0", "x.1.0"]),
        ({"a": ONE, "b": {"c": TWO}}, ["x.a", "x.b.c"]),
        ({1: ONE}, ["x.1"]),
        (OrderedDict(z=ONE, a=TWO), ["x.z", "x.a"]),
        (Pair(ONE, TWO), ["x.left", "x.right"]),
        (Output(ONE, hidden=(TWO,)), ["x.logits", "x.hidden.0"]),
        ((None, 3, "text", ONE), ["x.3"]),
        (None, []),
        (Output, []),
        (object(), []),
        (torch.max(torch.eye(2), dim=0), ["x.0", "x.1"]),
    ],
)
def test_tensors_are_found_with_their_names(value: Any, names: list[str]) -> None:
    assert [name for name, _ in tensors_in(value, "x")] == names


def test_a_packed_sequence_is_a_tuple_with_names() -> None:
    names = [name for name, _ in tensors_in(pack_sequence([TWO, ONE]), "x")]

    assert names == ["x.data", "x.batch_sizes"]


def test_containers_without_end_end() -> None:
    endless: list[Any] = [ONE]
    endless.append(endless)

    assert len(list(tensors_in(endless, "x"))) < 20


def test_arguments_are_named_by_position_and_keyword() -> None:
    found = argument_tensors((ONE, 3, [TWO], None), {"mask": TWO, "eps": 1e-5, "more": (ONE,)})

    assert [name for name, _ in found] == ["args.0", "args.2.0", "kwargs.mask", "kwargs.more.0"]
    assert found[0][1] is ONE


def test_arguments_that_hold_no_tensor_are_kept_as_plain_values() -> None:
    found = plain_arguments(
        (ONE, 3, [TWO], (1, 2), Output(ONE)),
        {"eps": 1e-5, "out": None, "state": {"h": ONE}, "dtype": torch.float16},
    )

    assert found == {
        "args.1": 3,
        "args.3": [1, 2],
        "kwargs.eps": 1e-5,
        "kwargs.out": None,
        "kwargs.dtype": "torch.float16",
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.5, 0.5),
        (math.inf, "inf"),
        (math.nan, "nan"),
        ("x" * 500, "x" * 120),
        ((1, [2, None]), [1, [2, None]]),
        (slice(1, None), "slice(1, None, None)"),
        (torch.device("cpu"), "cpu"),
        (torch.bfloat16, "torch.bfloat16"),
        ({"a": (1,), 2: math.inf}, {"a": [1], "2": "inf"}),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([7]), 7),
        (torch.tensor(math.nan), "nan"),
        (torch.tensor(1 + 2j), "(1+2j)"),
        (torch.ones(2), "tensor"),
        (torch.empty(1, device="meta"), "tensor"),
        (torch.eye(1).to_sparse(), "tensor"),
        (torch.ones(1, requires_grad=True), 1.0),
        (object(), "object"),
    ],
)
def test_plain_values_are_json(value: Any, expected: Any) -> None:
    found = plain(value)

    assert found == expected
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_anything_plain_can_be_written(value: Any) -> None:
    json.dumps(plain(value), allow_nan=False)


def test_long_lists_are_cut() -> None:
    assert plain(list(range(100))) == list(range(32))


def test_settings_of_a_module_are_its_public_attributes() -> None:
    convolution = nn.Conv2d(3, 8, 3, padding=1).eval()
    convolution.table = torch.ones(3)
    convolution.names = ["a", "b"]

    found = plain_attributes(convolution)

    assert found["kernel_size"] == [3, 3]
    assert found["padding"] == [1, 1]
    assert found["training"] is False
    assert found["names"] == ["a", "b"]
    assert "table" not in found
    assert not any(name.startswith("_") for name in found)


def test_settings_that_are_secrets_are_masked() -> None:
    # given a module that keeps a token, and settings that are called alike
    module: Any = nn.Module()
    module.hub_token, module.pad_token, module.reduction = "abc", "<pad>", "mean"
    module.source = "postgresql://me:hunter2@host/db"
    # then its settings hold the others only
    assert plain_attributes(module) == {
        "hub_token": "***",
        "pad_token": "<pad>",
        "reduction": "mean",
        "source": "postgresql://me:***@host/db",
        "training": True,
    }
    # and so do the arguments of a call
    kept = plain_arguments(({"api_key": "abc", "key": "q"},), {"password": "abc", "p": 0.5})
    assert kept == {
        "args.0": {"api_key": "***", "key": "q"},
        "kwargs.password": "***",
        "kwargs.p": 0.5,
    }
