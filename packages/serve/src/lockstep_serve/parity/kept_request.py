"""A request that left its reference, kept so that the operator at fault can be named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep.files import replacing
from lockstep.recordings import (
    CallKind,
    CallsOfRank,
    Options,
    Phase,
    RankOnDisk,
    ReadCall,
    ReadTensor,
    Role,
    RunDirectory,
    closed_manifest,
)
from lockstep.terminal import shell_line
from lockstep_serve.parity.quantised import (
    float_values,
    layers_of,
    most_added,
    write_layers,
)
from lockstep_serve.servable import BYTES, Array, Arrays

_OPERATORS = {
    "MatMul": "torch.matmul", "Add": "torch.add", "Sub": "torch.sub", "Mul": "torch.mul", "Div": "torch.div",
    "Relu": "torch.nn.functional.relu", "Gemm": "torch.nn.functional.linear", "Conv": "torch.nn.functional.conv2d",
    "Softmax": "torch.nn.functional.softmax", "Tanh": "torch.tanh", "Sigmoid": "torch.sigmoid", "Erf": "torch.erf",
    "Gelu": "torch.nn.functional.gelu", "LayerNormalization": "torch.nn.functional.layer_norm",
}  # fmt: skip


def keep(
    folder: Path, inputs: Arrays, asked: Arrays, *, reference: Path, served: Path
) -> dict[str, Any]:
    """Write a request's inputs, and where both models are of one kind that has nodes both runs, node by node.

    Parameters
    ----------
    folder
        Made for it.
    inputs, asked
        Of the request, by the names of the served model and by those of its reference.
    reference, served
        The files of the two models.

    Returns
    -------
    dict
        `kept`, the file with the inputs; `compare`, the command that names the operator, or `not_kept`, why there is
        none.

    Raises
    ------
    LockstepError, OSError
        If it cannot be written.
    """
    file = _inputs_in(folder, inputs)
    kinds = {reference.suffix, served.suffix}
    if len(kinds) > 1 or not kinds <= _CALLS.keys():
        return {
            "kept": str(file),
            "not_kept": "operators are named where both models are .onnx, or both .pt2",
        }
    runs = [
        _recorded(folder / name, one, inputs, _CALLS[one.suffix](one, given))
        for name, one, given in (("reference", reference, asked), ("served", served, inputs))
    ]
    return {"kept": str(file), "compare": shell_line(["lockstep", "compare", *map(str, runs)])}


def keep_layers(
    folder: Path, inputs: Arrays, asked: Arrays, *, reference: Path, served: Path
) -> dict[str, Any]:
    """Write a request's inputs, and a quantised model beside its float one at every value that both have as floats.

    Parameters
    ----------
    folder, inputs, asked, reference, served
        As of `keep`; both are files of ONNX.

    Returns
    -------
    dict
        As of `keep`, and: `layers`, a table in a file; `compared_layers` and `layers_of_all`, how many nodes of the
        reference it has and of how many; `most_added_at`, where most of the error enters, with the errors before and
        after it.

    Raises
    ------
    LockstepError, OSError
        If it cannot be written.
    """
    import onnx

    file = _inputs_in(folder, inputs)
    plain, quantised = onnx.load(reference), onnx.load(served)
    nodes = list(plain.graph.node)
    values = _held(plain, asked) | _values(plain, asked)
    floats = float_values(
        list(quantised.graph.node), _held(quantised, inputs) | _values(quantised, inputs)
    )
    layers = layers_of(nodes, values, floats)
    write_layers(folder / "layers.csv", layers)
    kept = {one.value for one in layers} | {*asked}
    own = {theirs: inputs[name] for name, theirs in zip(inputs, asked, strict=True)}
    shown = [one for one in nodes if kept & {*one.output}]
    runs = [
        _recorded(
            folder / name, path, inputs, _layer_calls(shown, {key: held[key] for key in kept})
        )
        for name, path, held in (("reference", reference, values), ("served", served, floats | own))
    ]
    told: dict[str, Any] = {
        "kept": str(file),
        "layers": str(folder / "layers.csv"),
        "compared_layers": len(layers),
        "layers_of_all": len(nodes),
        "compare": shell_line(["lockstep", "compare", *map(str, runs), "--judge", "fixed"]),
    }
    most = most_added(layers)
    if most is not None:
        told["most_added_at"] = {"layer": most.name, "before": most.before, "after": most.error}
    return told


def _layer_calls(nodes: Sequence[Any], values: Mapping[str, Array]) -> Iterator[ReadCall]:
    for number, node in enumerate(nodes):
        yield _node_call(number, node, values)


def _inputs_in(folder: Path, inputs: Arrays) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "inputs.npz"
    with replacing(file) as aside:
        plain = {name: one for name, one in inputs.items() if one.dtype != BYTES}
        with aside.open("wb") as stream:
            np.savez(stream, **plain)  # type: ignore[arg-type]
    return file


def _recorded(folder: Path, file: Path, inputs: Arrays, seen: Iterator[ReadCall]) -> Path:
    command = ["lockstep", "serve", str(file)]
    options = Options(steps="0:1", save="tensors", level="aten")
    directory = RunDirectory.create(folder, command, options, force=True)
    calls, rank = CallsOfRank(0), RankOnDisk(directory.path / "rank0")
    given = [
        ReadTensor(Role.OUTPUT, name, one) for name, one in inputs.items() if one.dtype != BYTES
    ]
    rank.add(calls.made_of(ReadCall(0, "", "batch", given, kind=CallKind.DATA, phase=Phase.DATA)))
    for call in seen:
        rank.add(calls.made_of(call))
    rank.finish(closed_manifest(0, 1, command))
    directory.finish(exit_code=0)
    return directory.path


def _node_calls(file: Path, inputs: Arrays) -> Iterator[ReadCall]:
    """What a model of ONNX holds, and every node of its graph, as it stands in the file."""
    import onnx

    model = onnx.load(file)
    values = {**_held(model, inputs), **_values(model, inputs)}
    held = {one.name: values[one.name] for one in model.graph.initializer}
    params = [ReadTensor(Role.PARAM, name, one) for name, one in held.items()]
    yield ReadCall(0, "", "torch.nn.Module", params, kind=CallKind.INIT, phase=Phase.INIT)
    for number, node in enumerate(model.graph.node):
        yield _node_call(number, node, values)


def _held(model: Any, inputs: Arrays) -> dict[str, Array]:
    import onnx

    held = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    return {**inputs, **held}


def _node_call(number: int, node: Any, values: Mapping[str, Array]) -> ReadCall:
    entering = [
        ReadTensor(Role.INPUT, f"args.{at}", values[name])
        for at, name in enumerate(node.input)
        if _is_numbers(values.get(name))
    ]
    leaving = [
        ReadTensor(Role.OUTPUT, f"result.{at}" if at else "result", values[name])
        for at, name in enumerate(node.output)
        if _is_numbers(values.get(name))
    ]
    name = node.name or f"{node.op_type.lower()}_{number}"
    return ReadCall(
        0, name, _OPERATORS.get(node.op_type, f"onnx.{node.op_type}"), [*entering, *leaving]
    )


def _is_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype != BYTES


def _values(model: Any, inputs: Arrays) -> dict[str, Array]:
    """Every value of a graph; asking for one keeps the runtime from fusing it away."""
    import onnx
    import onnxruntime

    names = [name for node in model.graph.node for name in node.output if name]
    own = {one.name for one in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in own)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as error:
        raise UsageError(f"its nodes cannot be run one by one ({error})") from error


def _program_calls(file: Path, inputs: Arrays) -> Iterator[ReadCall]:
    from lockstep_serve.servables.torch_calls import program_calls

    return program_calls(file, inputs)


_CALLS = {".onnx": _node_calls, ".pt2": _program_calls}
