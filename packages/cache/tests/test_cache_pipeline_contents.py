"""What a data set holds counts, wherever an object keeps it: two that differ in it are two pipelines."""

from __future__ import annotations

import array
import collections
import copy
import datetime
import decimal
import io
import operator
import re
import types
from typing import Any

import numpy as np
import polars
import pytest
import torch

from lockstep_cache.pipeline_checksum import Pipeline


class Holds:
    """A data set of what it holds."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __getitem__(self, index: int) -> Any:
        return self.held


class Boxes(torch.Tensor):
    """A tensor that knows how it is meant."""


def boxes(meant: str) -> torch.Tensor:
    made = torch.ones(4).as_subclass(Boxes)
    made.meant = meant  # type: ignore[attr-defined]
    return made


class Ages(collections.deque[int]):
    """A class of the user's above one that keeps all without attributes."""


PAIRS = {
    "range": (range(5), range(5, 10)),
    "slice": (slice(1), slice(2)),
    "deque": (collections.deque([1]), collections.deque([2])),
    "own deque": (Ages([1]), Ages([2])),
    "array": (array.array("d", [1]), array.array("d", [2])),
    "bytearray": (bytearray(b"a"), bytearray(b"b")),
    "memoryview": (memoryview(b"a"), memoryview(b"b")),
    "file in memory": (io.BytesIO(b"a"), io.BytesIO(b"b")),
    "text in memory": (io.StringIO("a"), io.StringIO("b")),
    "mapping proxy": (types.MappingProxyType({1: 1}), types.MappingProxyType({1: 2})),
    "date": (datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)),
    "decimal": (decimal.Decimal(1), decimal.Decimal(2)),
    "pattern": (re.compile("a"), re.compile("b")),
    "item": (operator.itemgetter(0), operator.itemgetter(1)),
    "order of keys": ({"cat": 0, "dog": 1}, {"dog": 1, "cat": 0}),
    "type of keys": ({1: "a"}, {"1": "a"}),
    "objects in an array": (np.array([{1: 2}], object), np.array([{1: 3}], object)),
    "records": (np.array([(1, 2.0)], "i4,f4"), np.array([(1, 3.0)], "i4,f4")),
    "mask": (np.ma.array([1, 2], mask=[False, True]), np.ma.array([1, 2], mask=[True, False])),
    "sparse": (torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse()),
    "attribute of a tensor": (boxes("corners"), boxes("centre and size")),
    "table": (polars.DataFrame({"a": [1, 2]}), polars.DataFrame({"a": [1, 3]})),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_other_contents_are_another_pipeline_and_a_copy_is_the_same(kind: str) -> None:
    one, other = (Pipeline(Holds(held)).checksum for held in PAIRS[kind])
    assert one != other
    first = PAIRS[kind][0]
    if kind not in (
        "memoryview",
        "mapping proxy",
        "attribute of a tensor",
    ):  # nobody can copy those
        assert Pipeline(Holds(copy.deepcopy(first))).checksum == one


def test_how_far_a_file_in_memory_is_read_is_no_matter() -> None:
    file = io.BytesIO(b"abc")
    before = Pipeline(Holds(file)).checksum
    file.read(2)
    assert Pipeline(Holds(file)).checksum == before


held = {"learning rate": 0.1}
"""A setting of the training under the name of an attribute."""


def test_a_name_of_the_module_that_is_an_attribute_s_too_is_no_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a data set that asks for `self.held`, and `held` of its module, which it does not ask for
    before = Pipeline(Holds(1)).checksum
    monkeypatch.setitem(held, "learning rate", 0.2)
    assert Pipeline(Holds(1)).checksum == before
    # and a function that takes it
    asking = Pipeline(lambda: held).checksum
    monkeypatch.setitem(held, "learning rate", 0.3)
    assert Pipeline(lambda: held).checksum != asking


def test_looking_leaves_what_it_looks_at_as_it_was() -> None:
    class Pair:
        __slots__ = ("held",)

        def __init__(self) -> None:
            self.held = 1

    one = Pair()
    assert Pipeline(one).checksum == Pipeline(one).checksum
