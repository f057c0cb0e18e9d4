"""The lists that are known by a name: torch's own backends, and Ascend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lockstep.plugin import COMPOSED, SupportedOperators, SupportEntry
from lockstep_operators.support.list_files import list_from_file
from lockstep_operators.support.native_functions import (
    COMPOSITE,
    dispatch_keys,
    structured_delegates,
)

_FOLDER = Path(__file__).parent / "lists"
_DISPATCH_KEYS = {"cpu": "CPU", "cuda": "CUDA", "mps": "MPS", "xpu": "XPU"}
_FILES = {"ascend": "ascend.csv", "npu": "ascend.csv", "xpu": "xpu.csv"}

KNOWN = ("ascend", "cpu", "cuda", "mps", "npu", "xpu")
"""Names of lists; `npu`, torch's name for an Ascend device, is the same list as `ascend`."""

_LACKS = {
    "mps": dict.fromkeys(
        ("float64", "complex128"),
        "torch: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64",
    )
}
_PROBE = "aten::add.out"
"""What a backend has a kernel for in torch's table if that is the whole of it."""


def known_list(name: str, torch_version: str) -> SupportedOperators:
    """One of `KNOWN`.

    torch_version: Of the installed torch, whose operators are looked up.

    Raises UsageError if this torch does not ship its table of operators.
    """
    key = _DISPATCH_KEYS.get(name, "")
    own = {one for one, keys in dispatch_keys().items() if key in keys}
    if _PROBE in own:
        return with_composites(
            SupportedOperators(
                name,
                f"torch {torch_version}",
                "native_functions.yaml, which torch ships",
                {one: SupportEntry() for one in own},
                is_of_torch=True,
                lacks_dtypes=_LACKS.get(name, {}),
            )
        )
    found = list_from_file(_FOLDER / _FILES[name], version_of(torch_version), name=name)
    entries = {**dict.fromkeys(own, SupportEntry()), **found.entries}
    return with_composites(replace(found, entries=entries, for_all_overloads=frozenset()))


def with_composites(support: SupportedOperators) -> SupportedOperators:
    """Return a list with the operators that torch composes of others on every device, unless the list has them
    itself.
    """
    composed: Mapping[str, SupportEntry] = {
        one: SupportEntry(how=COMPOSED)
        for one, keys in dispatch_keys().items()
        if keys & COMPOSITE and support.entry_of(one) is None
    }
    delegated = dict(_delegated(support))
    return replace(support, entries={**composed, **delegated, **support.entries})


def _delegated(support: SupportedOperators) -> Iterator[tuple[str, SupportEntry]]:
    """What the list does not name, and torch makes of an out variant that it names."""
    for one, out in structured_delegates().items():
        entry = support.entry_of(out)
        if entry is not None and entry.has and support.entry_of(one) is None:
            yield one, replace(entry, how=f"made by torch of {out}")


def version_of(torch_version: str) -> tuple[int, int] | None:
    """Major and minor of a version of torch; None where it has none."""
    parts = torch_version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])
