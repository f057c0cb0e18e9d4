"""Dumps after the published layouts, made of recordings: what another tool would have left of the training."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.store.reader import Recording

_KINDS = {"torch.nn.functional.": "Functional", "torch.Tensor.": "Tensor", "torch.": "Torch"}


def api_of(op: str, numbers: Counter[str]) -> str:
    """`Functional.gelu.0` for the first gelu, the next number for each more."""
    start = next(start for start in _KINDS if op.startswith(start))
    name = f"{_KINDS[start]}.{op.removeprefix(start)}"
    numbers[name] += 1
    return f"{name}.{numbers[name] - 1}"


def probe_dump(recording: Recording, folder: Path, *, task: str = "statistics") -> Path:
    """Every call of the first step as mindstudio-probe tells it, at level mix."""
    for rank in recording.ranks.values():
        place = folder / "step0" / rank.name
        place.mkdir(parents=True)
        data: dict[str, Any] = {}
        names: dict[int, str] = {}
        numbers: Counter[str] = Counter()
        calls = [
            call for call in rank.calls(0) if call.kind in (CallKind.MODULE, CallKind.OPERATOR)
        ]
        for call in calls:
            path, _, kind = call.site.module, None, call.site.op.rpartition(".")[2]
            dotted = f"{path}.{kind}" if path else kind
            module = f"Module.{dotted}.forward.{call.site.call}"
            names[call.id] = (
                module
                if call.kind is CallKind.MODULE
                else f"{api_of(call.site.op, numbers)}.forward"
            )
        ended = sorted(
            calls,
            key=lambda call: max((one.sequence for one in call.with_role(Role.OUTPUT)), default=0),
        )
        for call in ended:
            data[names[call.id]] = {
                "input_args": _values(call, Role.INPUT), "input_kwargs": {}, "output": _values(call, Role.OUTPUT),
            }  # fmt: skip
        for call in calls[::-1]:
            gradients = _values(call, Role.GRAD_OUTPUT)
            if gradients and call.kind is CallKind.MODULE:
                data[names[call.id].replace("forward", "backward")] = {
                    "input": gradients, "output": _values(call, Role.GRAD_INPUT),
                }  # fmt: skip
        parents = {names[call.id]: names.get(call.parent) for call in calls}
        dump = {
            "task": task,
            "level": "mix",
            "framework": "pytorch",
            "dump_data_dir": None,
            "data": data,
        }
        (place / "dump.json").write_text(json.dumps(dump, indent=1))
        (place / "construct.json").write_text(json.dumps(parents))
        (place / "stack.json").write_text("{}")
    return folder


def _values(call: Call, role: Role) -> list[Any]:
    return [_leaf(record) for record in call.with_role(role)]


def _leaf(record: TensorRecord) -> dict[str, Any]:
    """Numbers as torch takes them, where every element counts."""
    values, whole = record.load(), record.dtype.startswith(("int", "uint", "bool"))
    with np.errstate(all="ignore"):
        numbers = {
            "Max": values.max().item(), "Min": values.min().item(),
            "Mean": None if whole else float(values.mean(dtype=np.float32)),
            "Norm": None if whole else float(np.float32(np.linalg.norm(values))),
        }  # fmt: skip
    shape = list(record.shape)
    return {"type": "torch.Tensor", "dtype": f"torch.{record.dtype}", "shape": shape, **numbers}


def ptdbg_dump(recording: Recording, folder: Path, *, mark: str = "_", whole: bool = True) -> Path:
    """Every operator of the first step as ptdbg_ascend tells it: with `_` in names at first, with `.` later."""
    for rank in recording.ranks.values():
        place = folder / "ptdbg_dump_v4.0" / "step0" / rank.name
        (place / "dump").mkdir(parents=True)
        if not whole:
            (place / "dump").rmdir()
        lines: list[list[Any]] = []
        numbers = Counter[str]()
        calls = [call for call in rank.calls(0) if call.kind is CallKind.OPERATOR]
        names = {call.id: api_of(call.site.op, numbers).replace(".", mark) for call in calls}
        passes = [(call, "forward", (Role.INPUT, Role.OUTPUT)) for call in calls]
        passes += [(call, "backward", (Role.GRAD_OUTPUT, Role.GRAD_INPUT)) for call in calls[::-1]]
        for call, phase, roles in passes:
            start = f"{names[call.id]}{mark}{phase}"
            lines.append(
                [f"{start}{mark}stack_info", [["train.py", "7", "forward", "x = relu(x)"]]]
            )
            for role, what in zip(roles, ("input", "output"), strict=True):
                for number, record in enumerate(call.with_role(role)):
                    name, leaf = f"{start}{mark}{what}.{number}", _leaf(record)
                    values = [leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"]]
                    lines.append([name, 1, [], leaf["dtype"], leaf["shape"], values])
                    if whole:
                        np.save(place / "dump" / f"{name}.npy", record.load())
        (place / "dump.pkl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def probe_leaf(value: np.ndarray, late: np.ndarray | None = None) -> dict[str, Any]:
    """What mindstudio-probe says of a tensor by `md5`: numbers at once, and the checksum of what it was later."""
    whole, summed = value.dtype.kind in "iu", value if late is None else late
    return {
        "type": "torch.Tensor", "dtype": f"torch.{value.dtype}", "shape": list(value.shape),
        "Max": value.max().item(), "Min": value.min().item(), "Mean": None if whole else float(value.mean()),
        "Norm": None if whole else float(np.linalg.norm(value)), "requires_grad": False,
        "md5": f"{zlib.crc32(np.ascontiguousarray(summed).tobytes()):08x}",
    }  # fmt: skip


def probe_records(
    folder: Path,
    data: Mapping[str, Mapping[str, Any]],
    *,
    level: str = "L1",
    parents: Mapping[str, str | None] | None = None,
) -> Path:
    """A dump of mindstudio-probe by `md5` of one step, of records as they stand in its dump.json."""
    place = folder / "step0" / "rank0"
    place.mkdir(parents=True)
    told = {"task": "statistics", "level": level, "framework": "pytorch", "data": data}
    (place / "dump.json").write_text(json.dumps(told))
    (place / "construct.json").write_text(json.dumps(parents or {}))
    (place / "stack.json").write_text("{}")
    return folder


def probe_call(entering: list[Any], leaving: Any) -> dict[str, Any]:
    """A record of a forward call."""
    return {"input_args": entering, "input_kwargs": {}, "output": [leaving]}
