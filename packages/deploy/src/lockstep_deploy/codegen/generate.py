"""A model as C99: fixed to the shapes of its samples, constants folded, written by emx-onnx-cgen."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.errors import UsageError
from lockstep.terminal import listed
from lockstep_deploy.codegen.arena import Arena, with_arena
from lockstep_deploy.engines import as_sentence, engine, first_line
from lockstep_deploy.runtime import Array, Level, Settings, optimized_graph

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")

_RESERVED = ("main", "test", "weights")


@dataclass(frozen=True)
class Program:
    """A generated program.

    name: Of the function.
    model: The `onnx.ModelProto` that it computes: of fixed shapes.
    code, weights: C sources.
    prototype: Of the function, without its semicolon.
    arena: Its memory.
    weight_bytes: What its constants take.
    """

    name: str
    model: Any
    code: str
    weights: str
    prototype: str
    arena: Arena
    weight_bytes: int


def check_name(name: str) -> None:
    """Refuse what is no name of a C function. Raises UsageError if it is none."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise UsageError(
            f"--name {name}: is not a name for the C function; give letters, digits and _, as in digits_net"
        )


def fixed(proto: Any, sample: Mapping[str, Array]) -> Any:
    """The same model with the shapes that a sample has, and its constants folded.

    proto: An `onnx.ModelProto`.
    sample: What the program will be given at once.
    """
    found = type(proto)()
    found.CopyFrom(proto)
    del found.graph.value_info[:]
    for value in found.graph.input:
        if value.name in sample:
            dimensions = value.type.tensor_type.shape
            del dimensions.dim[:]
            dimensions.dim.extend(
                type(dimensions).Dimension(dim_value=extent) for extent in sample[value.name].shape
            )
    if _has_constants_to_fold(found):
        found = optimized_graph(found, Settings(Level.BASIC))
    for value in found.graph.output:
        value.type.tensor_type.ClearField("shape")
    with as_sentence("the model's shapes cannot be followed"):
        return engine("onnx").shape_inference.infer_shapes(found, data_prop=True)


def generated(model: Any, name: str) -> Program:
    """Generate C of a model of fixed shapes.

    model: What `fixed` gives.
    name: Of the function.

    Raises UsageError if the engine lacks an operator, or cannot follow a shape.
    """
    cgen = engine("emx_onnx_cgen", "micro")
    compiler = engine("emx_onnx_cgen.compiler", "micro")
    # Thresholds of 0: no temporary on the heap, no weight in a file that a microcontroller would have to load.
    wanted = compiler.CompilerOptions(
        model_name=name, large_temp_threshold_bytes=0, large_weight_threshold=0
    )
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            code, weights = compiler.Compiler(wanted).compile_with_data_file(model)
    except cgen.UnsupportedOpError as error:
        raise UsageError(
            f"the C engine lacks what this model needs ({first_line(error)}): {_used(model)}"
        ) from error
    except Exception as error:
        raise UsageError(f"no C can be generated ({first_line(error)})") from error
    code, arena = with_arena(code, name)
    found = re.search(rf"^(void {name}\([^)]*\)) \{{$", code, re.MULTILINE)
    if found is None or re.search(r"\b(malloc|calloc|realloc)\s*\(", code):
        raise UsageError(
            "the C engine wrote a program that takes memory from the heap; this model is not supported"
        )
    return Program(
        name, model, code, weights, found[1].replace("restrict ", ""), arena, _constant_bytes(model)
    )


def _used(model: Any) -> str:
    operators = sorted({f"{node.domain}.{node.op_type}".lstrip(".") for node in model.graph.node})
    return f"it has {listed(operators, 9)}; export it without that one, or run it by onnxruntime"


def _has_constants_to_fold(model: Any) -> bool:
    """Whether nodes compute on constants alone, as those that put packed weights together do."""
    held = {one.name for one in model.graph.initializer}
    return any(
        node.input and set(node.input) - {""} <= held
        for node in model.graph.node
        if node.op_type != "DequantizeLinear"
    )


def _constant_bytes(model: Any) -> int:
    numpy_helper = engine("onnx.numpy_helper")
    return sum(int(numpy_helper.to_array(one).nbytes) for one in model.graph.initializer)
