"""Pipelines that give other samples have other checksums, equal ones have equal ones, and changes are seen."""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import io
import operator
import os
import re
import sys
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from lockstep_cache.pipeline_checksum import Pipeline


class Holding:
    """A data set, or a part of one."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, index: int) -> Any:
        return self.value


def checksum(value: Any) -> str:
    return Pipeline(Holding(value)).checksum


def of_a_class_with(value: Any) -> Any:
    """An object of a class that holds something for all its objects."""
    return type("Same", (Holding,), {"shared": Holding(value), "__module__": "__main__"})(0)


def a_kind_of(base: type, code: Any, content: Any) -> Any:
    """A collection of a class with code of its own."""
    return type("Same", (base,), {"__call__": code, "__module__": "__main__"})(content)


def with_attribute(value: Any) -> Any:
    def called() -> int:
        return 1

    called.factor = value  # type: ignore[attr-defined]
    return called


def nested(value: Any) -> Any:
    for _ in range(40):
        value = Holding(value)
    return value


def of_a_module_without_file(text: str) -> Any:
    module = types.ModuleType("made_while_running")
    sys.modules["made_while_running"] = module
    exec(text, vars(module))
    return module.__dict__["work"]


PAIRS: dict[str, Callable[[int], Any]] = {
    "whole or not": lambda n: (1, 1.0)[n],
    "truth": lambda n: (1, True)[n],
    "sign of zero": lambda n: (0.0, -0.0)[n],
    "large number": lambda n: 10**200 + n,
    "pattern": lambda n: re.compile("ab"[n]),
    "getter": operator.itemgetter,
    "range": lambda n: range(n, n + 3),
    "slice": slice,
    "partial": lambda n: partial(divmod, n),
    "deque": lambda n: collections.deque([n]),
    "default": lambda n: collections.defaultdict((int, float)[n]),
    "date": lambda n: datetime.date(2026, 1, 1 + n),
    "decimal": decimal.Decimal,
    "array": lambda n: array.array("i", [n]),
    "bytes": lambda n: bytearray([n]),
    "stream of bytes": lambda n: io.BytesIO(bytes([n])),
    "view of a dict": lambda n: types.MappingProxyType({"a": n}),
    "order of a dict": lambda n: dict([("a", 1), ("b", 2)][:: (1, -1)[n]]),
    "kind of key": lambda n: {(1, "1")[n]: 0},
    "method of a dict": lambda n: {"a": n}.get,
    "array of objects": lambda n: np.array(["a", n], dtype=object),
    "array of records": lambda n: np.full(2, n, [("a", "i4")]),
    "long list with arrays": lambda n: [("a", np.array([0.1 + n * 1e-12] * 2))] * 70,
    "long list": lambda n: [None] * 70 + [n],
    "bfloat16": lambda n: torch.full((3,), n, dtype=torch.bfloat16),
    "sparse tensor": lambda n: torch.eye(2).mul(n + 1).to_sparse(),
    "table": lambda n: pl.DataFrame({"a": [n]}),
    "column": lambda n: pl.Series("a", [n]),
    "code": lambda n: compile(str(n), "text", "eval"),
    "something deep": nested,
    "class of a list": lambda n: a_kind_of(list, (lambda one: 1, lambda one: 2)[n], [1]),
    "class of a dict": lambda n: a_kind_of(dict, (lambda one: 1, lambda one: 2)[n], {"a": 1}),
    "value of a class": of_a_class_with,
    "attribute of a function": with_attribute,
    "module without a file": lambda n: of_a_module_without_file(f"def work(): return {n}"),
}


@pytest.mark.parametrize("make", PAIRS.values(), ids=PAIRS)
def test_what_is_another_one_has_another_checksum(make: Callable[[int], Any]) -> None:
    # given two values that differ: then their pipelines do, and one that is looked at again is what it was
    first, second = make(0), make(1)
    assert checksum(first) != checksum(second)
    assert checksum(first) == checksum(first)
    assert not Pipeline(Holding(first)).unknown


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_equal_has_an_equal_checksum(name: str) -> None:
    assert checksum(PAIRS[name](1)) == checksum(PAIRS[name](1))


def test_a_file_that_keeps_its_time_is_seen_to_be_written(tmp_path: Path) -> None:
    file = tmp_path / "data.bin"
    file.write_bytes(b"one")
    known, before = file.stat(), checksum(str(file))
    file.write_bytes(b"two")
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert checksum(str(file)) != before


def test_a_variable_of_a_module_counts_as_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a module of settings, which a script sets from its options, as two scripts do that share a cache
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "settings_of_mine.py").write_text("SIZE = 1\n")
    (tmp_path / "set_of_mine.py").write_text(
        "import settings_of_mine\n"
        "class Sized:\n    def __getitem__(self, index): return settings_of_mine.SIZE * index\n"
    )
    import set_of_mine
    import settings_of_mine

    first = Pipeline(set_of_mine.Sized())
    settings_of_mine.SIZE = 2
    assert first.has_changed()
    assert Pipeline(set_of_mine.Sized()).checksum != first.checksum


factor = 1


def with_a_global() -> int:
    return factor


def change_the_global(_: Any) -> None:
    global factor
    factor += 1


def with_a_closure() -> tuple[Any, Callable[[Any], None]]:
    value = 1

    def called() -> int:
        return value

    def change(_: Any) -> None:
        nonlocal value
        value = 2

    return Holding(called), change


CHANGES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "whole or not": (Holding(1), lambda one: setattr(one, "value", 1.0)),
    "sign of zero": (Holding(0.0), lambda one: setattr(one, "value", -0.0)),
    "value in a dict": (Holding({"a": 1}), lambda one: one.value.update(a=2)),
    "short list": (Holding([1, 2]), lambda one: one.value.reverse()),
    "long list": (Holding(list(range(1000))), lambda one: one.value.reverse()),
    "set": (Holding({1}), lambda one: one.value.add(2)),
    "tensor": (Holding(torch.zeros(3)), lambda one: one.value.add_(1)),
    "global": (Holding(with_a_global), change_the_global),
    "closure": with_a_closure(),
    "class": (of_a_class_with(1), lambda one: setattr(type(one), "size", 1)),
}


@pytest.mark.parametrize(("dataset", "change"), CHANGES.values(), ids=CHANGES)
def test_what_is_changed_in_place_is_seen(dataset: Any, change: Callable[[Any], Any]) -> None:
    before = Pipeline(dataset)
    assert not before.has_changed()
    change(dataset)
    assert before.has_changed()
    assert Pipeline(dataset).checksum != before.checksum
