"""Read the module and the line of code that the exporter noted of an ONNX node."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_NODE = re.compile(r"(?:Name:|node with name |[Nn]ode \()'?([^')]+)['):]")
"""How the runtime names a node that it refuses."""


def module_of(node: Any) -> str:
    """Module path by the exporter's metadata: `['', 'conv1', 'conv2d']` is the call of an operator in `conv1`."""
    try:
        scopes = ast.literal_eval(_metadata(node).get("pkg.torch.onnx.name_scopes", "[]"))
    except (ValueError, SyntaxError):
        return ""
    named = [one for one in scopes[:-1] if isinstance(one, str) and one]
    return named[-1] if named else ""


def source_of(node: Any) -> str:
    """`file:line` of the innermost frame that the exporter noted, of the user's code where there is such a frame."""
    frames = _FRAME.findall(_metadata(node).get("pkg.torch.onnx.stack_trace", ""))
    own = [frame for frame in frames if "site-packages" not in frame[0]]
    return ":".join((own or frames)[-1]) if frames else ""


def described(node: Any) -> str:
    """A node with its module and its line."""
    module, source = module_of(node), source_of(node)
    return f"{node.op_type} {node.name!r}{f' of {module}' if module else ''}{f', {source}' if source else ''}"


def untaken_branches(model: Any) -> Iterator[str]:
    """Return a sentence for each `If` of a graph: one of its branches was not run, and nobody compared it."""
    for node in model.graph.node:
        if node.op_type == "If":
            yield f"one of the two branches of {described(node)} was not compared: these inputs do not take it"


def refused_in(model: Any, said: str) -> str:
    """The node of a model that the runtime says it refuses, where it names one, as a clause."""
    found = _NODE.search(said)
    node = next((one for one in model.graph.node if found and one.name == found[1]), None)
    return "" if node is None else f", at {described(node)}"


def _metadata(node: Any) -> dict[str, str]:
    return {one.key: one.value for one in node.metadata_props}
