"""The kernels of torch's own backends, as the installed torch declares them.

torch's wheel ships `native_functions.yaml`, the table that its dispatcher is generated from, in the package `torchgen`:
so a list is of exactly this version, and is the same on a build without the backend. It is read without torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lockstep.errors import UsageError, reason_of

COMPOSITE = frozenset(
    {
        "CompositeImplicitAutograd",
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
    }
)
"""Dispatch keys of kernels that call other operators, and so serve every backend that has those."""

_FILE = Path("packaged", "ATen", "native", "native_functions.yaml")


@cache
def dispatch_keys() -> Mapping[str, frozenset[str]]:
    """The dispatch keys that each operator of torch has a kernel for, by its name in the dispatcher.

    Raises UsageError if this torch does not ship the table, or it cannot be read.
    """
    return keys_of(_rows())


@cache
def structured_delegates() -> Mapping[str, str]:
    """The out variants that torch makes operators of, by the operator's name.

    torch's generator gives each structured operator, in place or not, a kernel that calls its out variant
    (`CompositeExplicitAutogradNonFunctional`; torchgen, gen.py), so that a backend needs that one alone.

    Raises UsageError if this torch does not ship the table, or it cannot be read.
    """
    return {
        f"aten::{row['func'].partition('(')[0]}": f"aten::{row['structured_delegate']}"
        for row in _rows()
        if "structured_delegate" in row
    }


@cache
def _rows() -> list[dict[str, Any]]:
    specification = importlib.util.find_spec("torchgen")
    if specification is None or specification.origin is None:
        raise UsageError("this torch ships no torchgen, so its operators cannot be listed")
    file = Path(specification.origin).parent / _FILE
    # libyaml's loader is ten times as fast, and not in every build of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        rows: list[dict[str, Any]] = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(
            f"{file}: torch's table of operators cannot be read ({reason_of(error)})"
        ) from error
    return rows


def keys_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[str]]:
    """The dispatch keys of the rows of such a table.

    Examples
    --------
    >>> rows = [{"func": "a.out(T x) -> T", "dispatch": {"CPU, MPS": "a"}, "structured": True},
    ...         {"func": "a(T x) -> T", "structured_delegate": "a.out"}, {"func": "b(T x) -> T"}]
    >>> sorted(keys_of(rows)["aten::a"]), sorted(keys_of(rows)["aten::b"])
    (['CPU', 'MPS'], ['CompositeImplicitAutograd'])
    """
    rows = list(rows)
    own = {row["func"].partition("(")[0]: _own_keys(row) for row in rows}
    found = {}
    for row in rows:
        name = row["func"].partition("(")[0]
        # A structured operator has its kernels at its out variant.
        found[f"aten::{name}"] = own[name] | own.get(
            row.get("structured_delegate", ""), frozenset()
        )
        for variant in row.get("autogen", "").split(","):
            # What the generator makes of an operator calls it.
            if variant.strip():
                found[f"aten::{variant.strip()}"] = frozenset({"CompositeExplicitAutograd"})
    return found


def _own_keys(row: Mapping[str, Any]) -> frozenset[str]:
    if "dispatch" not in row and "structured_delegate" not in row:
        return frozenset({"CompositeImplicitAutograd"})
    # Of an inner loop the generator makes kernels for these two.
    made = {"CPU", "CUDA"} if "ufunc_inner_loop" in row else set()
    return frozenset(made.union(*(keys.split(", ") for keys in row.get("dispatch") or ())))
