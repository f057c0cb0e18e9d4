"""Nodes of an exported program as calls of a recording: where each stands in the user's model, what it was given."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind

from lockstep.recorder import argument_tensors, module_of, plain_arguments
from lockstep.recordings import (
    CallKind,
    CallsOfRank,
    Frame,
    Options,
    Phase,
    RankOnDisk,
    ReadCall,
    ReadTensor,
    Role,
    RunDirectory,
    closed_manifest,
)
from lockstep_deploy.engines import bfloat16, first_line

Array = npt.NDArray[Any]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')

_SPELLED = {"prims.convert_element_type.default": "torch.Tensor.to"}
"""Operators that decompositions put in, by the name that torch's API has for them: only those can be run again."""


RETURNED = "return"
"""What the call is named that is given what a model returns."""


class WrittenRun:
    """A recording that is written call by call, of one step of one rank.

    path: A directory that is not there yet.
    command: What is said to have been run.

    Raises OutputExistsError if it is there, or cannot be written.
    """

    def __init__(self, path: Path, command: Sequence[str]) -> None:
        self._command = list(command)
        options = Options(steps="0:1", save="tensors", level="aten")
        self._directory = RunDirectory.create(path, self._command, options, force=False)
        self._calls, self._rank = CallsOfRank(0), RankOnDisk(self._directory.path / "rank0")

    def add(self, call: ReadCall) -> None:
        """Write the next call."""
        self._rank.add(self._calls.made_of(call))

    def finish(self) -> Path:
        """Write what closes a recording; returns where it lies."""
        self._rank.finish(closed_manifest(0, 1, self._command))
        self._directory.finish(exit_code=0)
        return self._directory.path


@dataclass(frozen=True, slots=True)
class Produced:
    """One tensor that a node makes: which of its results it is, and what an exporter may call its value."""

    index: int
    name: str
    values: tuple[str, ...]


def produced_by(node: fx.Node) -> tuple[Produced, ...]:
    """The tensors that a node makes and that are used: one, or the parts that `getitem` takes of several."""
    parts: dict[int, list[str]] = {}
    for user in node.users:
        if user.target is operator.getitem and isinstance(user.args[1], int):
            parts.setdefault(user.args[1], []).append(user.name)
    if not parts:
        return (Produced(0, "result", (node.name,)),)
    return tuple(
        Produced(number, f"result.{number}", (*parts[number], f"{node.name}__{number}"))
        for number in sorted(parts)
    )


def names_of(node: fx.Node) -> tuple[str, ...]:
    """Return the names that an exporter may give to the values of a node."""
    return (node.name, *(name for one in produced_by(node) for name in one.values))


def is_call(node: fx.Node) -> bool:
    """Whether a node computes: parts of results that are taken apart are no calls."""
    return node.op == "call_function" and node.target is not operator.getitem


def computing(program: ExportedProgram) -> set[fx.Node]:
    """The nodes that a program computes its results from: what it writes into its state or inputs is in no file."""
    returned = {
        one.arg.name
        for one in program.graph_signature.output_specs
        if one.kind is OutputKind.USER_OUTPUT and hasattr(one.arg, "name")
    }
    met: set[fx.Node] = set()
    waiting = [node for node in program.graph.nodes if node.name in returned]
    while waiting:
        node = waiting.pop()
        if node not in met:
            met.add(node)
            waiting.extend(node.all_input_nodes)
    return met


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of a node, by the names of its operator's schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    found = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    names = [one.name for one in schema.arguments]
    return found | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def operator_name(node: fx.Node) -> str:
    """Return the operator of a node, as torch's API or its dispatcher spells it."""
    name = str(node.target) if not callable(node.target) or "." in str(node.target) else node.name
    return _SPELLED.get(name, name)


def fused_name(node: fx.Node) -> str:
    """Return the common name of several nodes that end in this one: no operator's name, so its error is unknown."""
    return f"fused.{operator_name(node)}+"


def stack_of(node: fx.Node) -> tuple[Frame, ...]:
    """Where the user's code made a node, innermost frame first."""
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    return tuple(
        Frame(file, int(line), function, "site-packages" in Path(file).parts)
        for file, line, function in reversed(found)
    )


def call_of(
    node: fx.Node,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    results: Mapping[str, Array],
) -> ReadCall:
    """A node as a call of a recording.

    node: Of a program.
    arguments, keywords: What it was given, tensors of torch in the places of nodes; None for what is not known.
    results: What it made, by the name that a recording has for it.
    """
    module, kind = module_of(node)
    keywords = {
        key: value
        for key, value in keywords.items()
        if key not in ("device", "pin_memory", "layout")
    }
    entering = [
        ReadTensor(Role.INPUT, name, array_of(tensor))
        for name, tensor in argument_tensors(arguments, keywords)
    ]
    leaving = [
        ReadTensor(Role.OUTPUT, one.name, results[one.name], index=one.index)
        for one in produced_by(node)
        if one.name in results
    ]
    return ReadCall(
        0, module, operator_name(node), [*entering, *leaving],
        arguments=plain_arguments(arguments, keywords), module_class=kind, stack=stack_of(node),
    )  # fmt: skip


def given_call(inputs: Mapping[str, Array]) -> ReadCall:
    """Return the inputs of a model, as the batch of a step."""
    tensors = [ReadTensor(Role.OUTPUT, name, array) for name, array in inputs.items()]
    return ReadCall(0, "", "batch", tensors, kind=CallKind.DATA, phase=Phase.DATA)


def held_calls(held: Mapping[str, Callable[[], Array]]) -> Iterator[ReadCall]:
    """Return a call for each module, with the arrays that the model holds by full name, made on demand."""
    modules: dict[str, list[str]] = {}
    for name in held:
        modules.setdefault(name.rpartition(".")[0], []).append(name)
    for module, names in modules.items():
        tensors = [ReadTensor(Role.PARAM, name, held[name]()) for name in names]
        yield ReadCall(0, module, "torch.nn.Module", tensors, kind=CallKind.INIT, phase=Phase.INIT)


def fused_call(node: fx.Node, operands: Sequence[Array], results: Mapping[str, Array]) -> ReadCall:
    """Several nodes of a program as one call, at the place of the last of them."""
    module, kind = module_of(node)
    entering = [ReadTensor(Role.INPUT, f"operands.{at}", one) for at, one in enumerate(operands)]
    leaving = [ReadTensor(Role.OUTPUT, name, one) for name, one in results.items()]
    return ReadCall(
        0, module, fused_name(node), [*entering, *leaving], module_class=kind, stack=stack_of(node)
    )


def returned_call(arrays: Sequence[Array]) -> ReadCall:
    """Return the outputs of a model, as a call that gets them and makes nothing."""
    tensors = [ReadTensor(Role.INPUT, f"args.{at}", array) for at, array in enumerate(arrays)]
    return ReadCall(0, "", RETURNED, tensors)


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor's elements as NumPy has them, a copy of their own; bfloat16 as onnx has it in NumPy."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return np.array(plain.contiguous().view(torch.int16).numpy()).view(bfloat16())
    found: Array = np.array(plain.numpy())
    return found


def tensor_of(array: Any) -> torch.Tensor:
    """A tensor of an array's elements, a copy of their own."""
    own = np.array(array)
    if own.dtype.name == "bfloat16":
        return torch.from_numpy(own.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(own)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by name, for `saved_tensors`."""
    torch.save({name: one.detach().clone() for name, one in tensors.items()}, path)


def saved_tensors(file: BinaryIO) -> dict[str, Array]:
    """Arrays of what `torch.save` wrote: tensors by name, or in order as `arr_0`; nothing else is unpickled.

    Raises ValueError if it is none, or holds something else.
    """
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises types of its own, without a common one
        raise ValueError(first_line(error, 120)) from error
    if isinstance(found, (torch.Tensor, list, tuple)):
        several = [found] if isinstance(found, torch.Tensor) else found
        found = {f"arr_{number}": one for number, one in enumerate(several)}
    if not isinstance(found, dict) or not all(
        isinstance(one, torch.Tensor) for one in found.values()
    ):
        raise ValueError("it holds no tensors by name")
    return {str(name): array_of(one) for name, one in found.items()}


def filled(value: Any, of: Callable[[fx.Node], Any]) -> Any:
    """Arguments of a node with what `of` gives in the places of nodes."""
    return fx.node.map_arg(value, of)
