"""Finding tensors and plain values inside arguments and results."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

import lockstep
from lockstep.capture.calls.leaves import (
    argument_tensors,
    plain,
    plain_arguments,
    plain_attributes,
    tensors_in,
    values_refused,
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
        (slice(torch.tensor(1), np.int64(3)), "slice(1, 3, None)"),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.float32("nan"), "nan"),
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


class NoClass:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class NoLength(tuple[Any, ...]):
    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Any:
        raise RuntimeError("no items")


class NoItems(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


class NoSlice(str):
    def __getitem__(self, at: Any) -> Any:
        raise RuntimeError("no slice")


class NoComparison(float):
    __hash__ = float.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute")


@dataclass
class NoField:
    extra: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name == "extra":
            raise RuntimeError("no field")
        return object.__getattribute__(self, name)


REFUSE = [NoClass, NoLength, NoItems, NoSlice, NoComparison, NoText, NoField]


@pytest.mark.parametrize("kind", REFUSE)
def test_a_value_that_refuses_to_be_looked_at_is_left_out(kind: type) -> None:
    value = kind()
    tensors = argument_tensors((value, ONE, [value, TWO]), {"mask": TWO, "odd": value})
    assert [name for name, _ in tensors] == ["args.1", "args.2.1", "kwargs.mask"]
    assert json.dumps(plain_arguments((value, 1, [value]), {"dim": 2}))
    module = nn.Linear(1, 1)
    module.__dict__["odd"] = value
    assert plain_attributes(module)["in_features"] == 1
    values_refused()


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)

    def forward(self, x: Tensor, odd: Any, more: Any = None) -> tuple[Tensor, Any]:
        return self.inner(x), odd


@pytest.mark.parametrize("refuses", [True, False])
def test_recording_goes_on_and_notes_what_was_left_out(tmp_path: Path, refuses: bool) -> None:
    # given a model that takes, returns and is optimized with values that refuse to be looked at, or with others
    model = Takes()
    odd = [kind() for kind in REFUSE] if refuses else [(1, 2), {"a": 1}, "text", 1.5, object()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["odd"] = odd[0]
    # when two of its steps are recorded
    with lockstep.record(tmp_path / "ref", model=model, steps="0:2", save="tensors"):
        for _ in range(2):
            for value in odd:
                optimizer.zero_grad()
                model(torch.ones(1, 2), value, more={"held": value})[0].sum().backward()
            optimizer.step()
    # then both are complete, and what may have held tensors is noted by its type
    rank = lockstep.open(tmp_path / "ref").ranks["rank0"]
    assert rank.complete_steps == (0, 1)
    assert rank.manifest.stopped_because == ""
    gaps = [gap for gap in rank.manifest.not_seen if "raised as it was looked at" in gap.reason]
    assert {gap.what.rpartition(" holds")[0].rpartition(".")[2] for gap in gaps} == (
        {"NoClass", "NoLength", "NoItems", "NoField"} if refuses else set()
    )
