"""The graph that a device runs (`ge_proto_*_Build.txt`): which of its operators stand for which of the framework's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import CorruptError
from lockstep.files import read_manifest
from lockstep_interop_names.dumps.device_dump import Origin
from lockstep_interop_names.dumps.device_layouts import HWCN, NCHW, NHWC
from lockstep_interop_names.dumps.wire import Message, text_message

_FORMATS = {"NCHW": NCHW, "NHWC": NHWC, "HWCN": HWCN}


@dataclass(frozen=True, slots=True)
class DeviceOperator:
    """An operator of the graph: those of the framework that it stands for, and what each of its outputs was there."""

    originals: tuple[str, ...]
    outputs: tuple[Origin | None, ...]


def plain_name(name: str) -> str:
    """An operator as files name it.

    >>> plain_name("resnet/conv1.bias")
    'resnet_conv1_bias'
    """
    return re.sub(r"[/.\\\s]", "_", name)


def operators_in(path: Path) -> Mapping[str, DeviceOperator]:
    """The operators of a graph by name, as files name them.

    Raises CorruptError if the file is no such graph, or cut off.
    """
    try:
        text = read_manifest(path).decode(errors="replace")
        graphs = _inner(text_message(text), "graph")
        found = {}
        for graph in graphs:
            for op in _inner(graph, "op"):
                outputs = tuple(map(_origin, _inner(op, "output_desc")))
                found[plain_name(_text(op, "name"))] = DeviceOperator(_originals(op), outputs)
    except ValueError as error:
        raise CorruptError(
            path, f"is not a graph of a device as text, or cut off ({error})", advice="dump again"
        ) from error
    if not found:
        raise CorruptError(
            path, "holds no graph with operators", advice="give ge_proto_*_Build.txt"
        )
    return found


def _inner(message: Message, name: str) -> list[Message]:
    return [one for one in message.get(name, ()) if isinstance(one, dict)]


def _text(message: Message, name: str) -> str:
    value = message.get(name, [""])[0]
    return value if isinstance(value, str) else ""


def _attributes(message: Message) -> dict[str, Message]:
    return {
        _text(one, "key"): value
        for one in _inner(message, "attr")
        for value in _inner(one, "value")[:1]
    }


def _originals(op: Message) -> tuple[str, ...]:
    told = _attributes(op).get("_datadump_original_op_names", {})
    return tuple(
        str(one)
        for part in _inner(told, "list")
        for one in part.get("s", ())
        if isinstance(one, str)
    )


def _origin(output: Message) -> Origin | None:
    told = _attributes(output)
    name = _text(told.get("_datadump_origin_name", {}), "s")
    index = _text(told.get("_datadump_origin_output_index", {}), "i")
    layout = _text(told.get("_datadump_origin_format", {}), "s")
    return (
        Origin(name, int(index[:6]) if index.isdigit() else 0, _FORMATS.get(layout))
        if name
        else None
    )
