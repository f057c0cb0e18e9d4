"""Files of `torch.utils.dumper` (Ascend's PyTorch 1.5 and 1.8): a data set `/{OpName}/{seq}/{input|output}/{param}`.

Operators are those of the dispatcher, without modules; a backward is a call of its own. Numbers `seq` that are told
once each, over all operators, are taken for the order; else there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import CorruptError, LockstepError
from lockstep.recordings import (
    MODULES,
    ORDER,
    LaterTensor,
    NotSeen,
    Phase,
    ReadCall,
    ReadLater,
    ReadTensor,
    Role,
    digested,
)
from lockstep_interop_names.dumps.hdf5_file import DataSet, data_sets

_PATH = re.compile(r"([^/]+)/(\d{1,12})/(input|output)\w*/(.+)")
_OF_DEVICE = re.compile(
    r"(?:Cudnn|Native|Npu|Mkldnn|Miopen|Thnn)(?=(?:Convolution|BatchNorm|Conv)\w*Backward)"
)
"""How a device's own backward of the same operator begins."""

_TENSORS = (0, 1)
"""Values of the attribute Type of tensors and lists of them; others are plain arguments."""

_MOST_VALUES = 64


def recognises(path: Path) -> bool:
    """Whether a file has the form, by the first of its data sets."""
    if path.suffix.lower() not in (".h5", ".hdf5") or not path.is_file() or path.is_symlink():
        return False
    try:
        first = next(data_sets(path), None)
    except LockstepError:
        return False
    return first is not None and _PATH.fullmatch(first.path) is not None


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield the calls of the step, and what such a file lacks."""
    calls: dict[tuple[str, int], list[tuple[Role, str, DataSet]]] = {}
    unread: list[str] = []
    for one in data_sets(path):
        found = _PATH.fullmatch(one.path)
        if found is None or one.tensor is None:
            unread.append(one.path)
            continue
        role = Role.INPUT if found[3] == "input" else Role.OUTPUT
        calls.setdefault((found[1], int(found[2])), []).append(
            (role, found[4].replace("/", "."), one)
        )
    if not calls:
        raise CorruptError(
            path, "holds no data set of torch.utils.dumper", advice="give the .h5 that it wrote"
        )
    yield NotSeen(MODULES, "torch.utils.dumper tells every operator outside of them")
    yield NotSeen(
        "losses, batches, parameters and optimizers", "torch.utils.dumper tells operators alone"
    )
    if len({number for _, number in calls}) < len(calls):
        yield NotSeen(ORDER, "its numbers are not those of all operators together")
    if unread:
        yield NotSeen(
            f"{len(unread)} data sets",
            f"they are no numbers of an operator: {', '.join(unread[:3])}",
        )
    for (op, _), told in sorted(calls.items(), key=lambda one: (one[0][1], one[0][0])):
        yield _call(op, told)


def _call(op: str, told: list[tuple[Role, str, DataSet]]) -> ReadCall:
    told.sort(key=lambda one: one[0] is Role.OUTPUT)
    tensors, arguments = [], {}
    for role, name, one in told:
        assert one.tensor is not None
        if int(np.ravel(one.attributes.get("Type", 0))[0]) in _TENSORS:
            tensors.append(ReadTensor(role, name, digested(one.tensor)))
        else:
            arguments[name] = _plain(one.tensor)
    phase = Phase.BACKWARD if op.endswith("Backward") else Phase.FORWARD
    return ReadCall(0, "", _OF_DEVICE.sub("", op), tensors, phase=phase, arguments=arguments)


def _plain(tensor: LaterTensor) -> Any:
    value = ReadLater(tensor)()
    return value.tolist() if value.size <= _MOST_VALUES else f"{value.size} numbers"
