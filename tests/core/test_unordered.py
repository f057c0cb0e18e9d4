"""The list of operators without a fixed order, beside what the installed torch says of itself."""

from __future__ import annotations

import re

import pytest
import torch

from lockstep.core.operators import canonical_name
from lockstep.judge.repeated_runs import LISTED, why_unordered

_LEFT_OUT = {"bmm", "resize"}


def said_by_torch() -> set[tuple[str, frozenset[str], bool, bool | None]]:
    """Operator, devices, whether it is backward alone, and `accumulate`, as torch documents them."""
    text = torch.use_deterministic_algorithms.__doc__ or ""
    part = text[text.index("The following normally") : text.index("In addition, several")]
    part = part.replace("The following normally-nondeterministic", "\n        * END ")
    found = set()
    for item in re.split(r"\n\s+\* ", part):
        name = re.match(r":\w+:`([\w.]+)`", item)
        if name is None:
            continue
        devices = frozenset(one.lower() for one in re.findall(r"\b(CPU|CUDA)\b", item))
        backward = "differentiate" in item or "requires grad" in item
        flag = re.search(r"accumulate=(True|False)", item)
        found.add((canonical_name(name[1]), devices, backward, flag and flag[1] == "True"))
    return found


def test_the_list_is_the_one_of_the_installed_torch() -> None:
    listed = {
        (name, row.devices, "forward" not in row.passes, row.accumulates)
        for row, names in LISTED.items()
        for name in names.split()
    }
    assert listed == {one for one in said_by_torch() if one[0] not in _LEFT_OUT}


@pytest.mark.parametrize(
    ("op", "device", "accumulate", "backward", "cause"),
    [
        ("torch.Tensor.scatter_add_", "cuda:1", False, False, "atomic additions"),
        ("torch.Tensor.scatter_add_", "cuda:1", False, True, ""),
        ("torch.gather", "cuda:0", False, True, "atomic additions"),
        ("torch.gather", "cuda:0", False, False, ""),
        ("torch.Tensor.index_put_", "cpu", True, False, "atomic additions"),
        ("torch.Tensor.index_put_", "cuda:0", True, False, ""),
        ("aten.index_put_.default", "cuda:0", False, False, "several writes"),
        ("torch.nn.functional.linear", "cuda:0", False, False, ""),
    ],
)
def test_device_pass_and_argument_decide(
    op: str, device: str, accumulate: bool, backward: bool, cause: str
) -> None:
    said = why_unordered(op, device, {"args.3": accumulate}, backward=backward)
    assert bool(said) is bool(cause)
    assert cause in said
