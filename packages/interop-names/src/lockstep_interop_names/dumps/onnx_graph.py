"""The nodes of an ONNX graph, in the order in which they stand, which is one that they can run in (onnx/onnx.proto)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import CorruptError
from lockstep.files import size_of
from lockstep.recordings import Role
from lockstep_interop_names.dumps.named_sites import Spot
from lockstep_interop_names.dumps.proto_tensor import parts_in, text_in
from lockstep_interop_names.dumps.wire import fields_of


@dataclass(frozen=True, slots=True)
class Node:
    """A node, its place in the order, and what its tensors are called ("" for one that is left out)."""

    name: str
    op: str
    order: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def spot(self, role: Role, index: int) -> Spot:
        """Where one of its tensors belongs: the path that torch's exporter writes into its name is the module's."""
        above, _, last = self.name.strip("/").replace("/", ".").rpartition(".")
        own = not last or re.fullmatch(rf"{re.escape(self.op)}(_\d+)?", last) is not None
        module = above if own else f"{above}.{last}".strip(".")
        return Spot(module, self.op, role=role, index=index, time=(self.order,))


def nodes_in(path: Path) -> list[Node]:
    """The nodes of a model's graph, those of graphs inside of it left out.

    Raises CorruptError if it is no ONNX file, or cut off.
    """
    try:
        if not size_of(path):
            raise ValueError("it is empty")
        nodes = _nodes(path.read_bytes())
    except (ValueError, OSError) as error:
        raise CorruptError(
            path, f"is not a model of ONNX, or cut off ({error})", advice="give another"
        ) from error
    if not nodes:
        raise CorruptError(
            path, "holds no node, so it is not a model of ONNX", advice="give another"
        )
    return nodes


def _nodes(data: bytes) -> list[Node]:
    found = []
    for graph in parts_in(fields_of(memoryview(data)), 7):
        for number, part in enumerate(parts_in(fields_of(graph), 1)):
            node = fields_of(part)
            inputs, outputs = (
                tuple(bytes(one).decode() for one in parts_in(node, field)) for field in (1, 2)
            )
            found.append(Node(text_in(node, 3), text_in(node, 4), number, inputs, outputs))
    return found


__all__ = ["Node", "nodes_in"]
