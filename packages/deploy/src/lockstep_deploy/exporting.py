"""A module becomes a program (`torch.export`), and the program an ONNX model; both are kept, to be held together."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from lockstep.errors import UsageError
from lockstep.plugin import own_folders
from lockstep.recordings import Frame
from lockstep_deploy.calls import stack_of
from lockstep_deploy.engines import engine, first_line, quiet
from lockstep_deploy.free_axes import (
    Axes,
    as_suggested,
    as_torch_takes,
    constraint_sentence,
    to_trace_with,
)
from lockstep_deploy.large_models import message_of
from lockstep_deploy.model_file import opset_of, rename_values
from lockstep_deploy.model_source import ModelSource
from lockstep_deploy.recurrent import any_length

OPSET = 20
"""The opset without `--opset`: the one that torch's exporter is written for."""

_NO_FUNCTION = re.compile(
    r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'\)>"
)
_TRANSLATING = re.compile(r"Error when translating node %(\S+) :")


_NEXT_TO_0, _NEXT_TO_1 = 1e-7, 1e-4
"""How near to 0 or 1 the exporter's patterns may take a number for it: ten times their tolerances."""


@dataclass(frozen=True)
class Exported:
    """An exported model.

    program: The program in the operators that the exporter has rules for.
    plain: The ONNX model, each of its nodes as a rule wrote it.
    optimized: The same after the exporter's own optimisation, which folds and fuses; None where it was not asked for.
    """

    program: ExportedProgram
    plain: Any
    optimized: Any


def program_of(
    source: ModelSource,
    inputs: Mapping[str, torch.Tensor],
    dynamic: Axes | None = None,
) -> ExportedProgram:
    """The program of a model, its parameters in it.

    source: Its module, in the mode that it is to be exported in, or its program.
    inputs: What it is called with, by the names of its arguments.
    dynamic: Axes that are free. Those without bounds get what the module's code allows, and `source.said` says it.

    Raises UsageError if torch cannot export it, with the line of the user's code where that is known.
    """
    if source.module is None:
        if source.program is None:
            raise UsageError(f"{source.name}: neither a module nor a program")
        return source.program
    source.axes = axes = dynamic or {}
    try:
        return _program(source.module, inputs, axes)
    except Exception as error:
        said = str(error)
        if "Constraints violated" in said or "Suggested fixes:" in said:
            return _within_bounds(source, inputs, axes, said)
        where = _user_place(_raised_in(error), source.module)
        raise UsageError(
            f"the model cannot be exported{where} ({type(error).__name__}: {first_line(error)}); change that line, or"
            " export a part of the model"
        ) from error


def _within_bounds(
    source: ModelSource, inputs: Mapping[str, torch.Tensor], axes: Axes, said: str
) -> ExportedProgram:
    """The program with the bounds that the module's code has for axes, where torch found them."""
    assert source.module is not None
    bounded = as_suggested(axes, said)
    if bounded is None:
        raise UsageError(constraint_sentence(said, _fixed_at(source.module, inputs, axes)))
    try:
        program = _program(source.module, inputs, bounded)
    except Exception as error:
        places = _fixed_at(source.module, inputs, bounded)
        raise UsageError(constraint_sentence(str(error) or said, places)) from error
    free = {one.name: one for some in bounded.values() for one in some.values()}
    before = {one.name: one for some in axes.values() for one in some.values()}
    changed = [str(one) for name, one in free.items() if one != before[name]]
    source.axes = bounded
    source.said.append(f"free as far as the module's code allows: {', '.join(changed)}")
    return program


def _program(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], axes: Axes
) -> ExportedProgram:
    shapes = as_torch_takes(axes, inputs) if axes else None
    traced = to_trace_with(inputs, axes)
    with quiet(), any_length():
        return torch.export.export(module, (), traced, dynamic_shapes=shapes, strict=False)


def without_writes(program: ExportedProgram) -> ExportedProgram:
    """The same program with no operator that writes into a tensor, so that each of its values is one node's.

    `h.mul_(2)` is `h * 2` there, and what reads `h` afterwards reads that; what is left in buffers and inputs is
    returned beside the results (https://docs.pytorch.org/docs/stable/export/ir_spec.html).
    """
    graphs = [
        one for one in program.graph_module.modules() if isinstance(one, torch.fx.GraphModule)
    ]
    if not any(_writes(node) for graph in graphs for node in graph.graph.nodes):
        return program
    with quiet():
        plain: ExportedProgram = program.run_decompositions({})
    return plain


def _writes(node: torch.fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def to_onnx(
    program: ExportedProgram,
    inputs: Mapping[str, Any],
    *,
    opset: int = OPSET,
    rules: Mapping[Any, Any] | None = None,
    aside: Path | None = None,
) -> Exported:
    """The ONNX model of a program.

    program: As `program_of` gives it.
    inputs: What it was exported with.
    opset: The opset to write; the file is read back, and another one in it is an error.
    rules: Rules of the user's own for operators: a function of onnxscript by torch's operator.
    aside: Where the weights of a model that is not small are left, as long as the model is needed; None keeps them in
        it.

    Raises UsageError if an operator has no rule, the model returns what is no tensor, or the exporter writes another
    opset.
    """
    engine("onnx"), engine("onnxscript")
    _check_returned(program)
    with quiet() as said, any_length():
        try:
            made = torch.onnx.export(
                program, (), kwargs=dict(inputs), dynamo=True, opset_version=opset, optimize=False, verbose=False,
                custom_translation_table=dict(rules) if rules else None,
            )  # fmt: skip
        except Exception as error:
            raise UsageError(_conversion_sentence(error, program)) from error
        if made is None or made.exported_program is None:
            raise UsageError("the exporter returned no model; another version of torch may")
        plain = made.model_proto if aside is None else message_of(made.model, aside)
        with _kept_apart(made.model.graph):
            made.optimize()
        optimized = made.model_proto if aside is None else message_of(made.model, aside)
    _restore_inputs(optimized, plain)
    for one in (plain, optimized):
        _check_opset(one, opset, said.getvalue())
    return Exported(made.exported_program, plain, optimized)


def _restore_inputs(optimized: Any, plain: Any) -> None:
    """Give inputs that a model returns as they are their names back: the exporter's optimisation takes them away."""
    spelled: dict[str, str] = {}
    for found, own in zip(optimized.graph.input, plain.graph.input, strict=False):
        if found.name != own.name:
            spelled |= {own.name: f"{own.name}_returned", found.name: own.name}
    rename_values(optimized.graph, spelled)
    for one in (*optimized.graph.input, *optimized.graph.output, *optimized.graph.value_info):
        one.name = spelled.get(one.name, one.name)


def _check_returned(program: ExportedProgram) -> None:
    """Refuse numbers and words among what a model returns, of which the exporter knows nothing; None is left out."""
    for spec in program.graph_signature.output_specs:
        value = getattr(spec.arg, "value", None)
        if value is not None:
            raise UsageError(
                f"the model returns {value!r} beside its tensors, and an ONNX file returns tensors alone; export a"
                " module that leaves it out, or makes a tensor of it"
            )


def _check_opset(model: Any, asked: int, said: str) -> None:
    """Refuse another opset than the one asked for: the exporter only logs that it could not convert."""
    found = opset_of(model)
    if found != asked:
        why = next((line.strip() for line in said.splitlines() if "Error" in line), "")
        because = f" ({why[:160]})" if why else ""
        raise UsageError(
            f"--opset {asked}: the exporter wrote opset {found} instead, and would have said nothing{because}; give"
            f" --opset {found}, or one from 18 to {OPSET + 3}"
        )


@contextlib.contextmanager
def _kept_apart(graph: Any) -> Iterator[None]:
    """Hide scalars next to 0 and 1 from the exporter's optimisation while it runs.

    Its patterns take 1e-8 for 0 and 1.00001 for 1 (onnxscript 0.7: `abs_tol`, `rel_tol`), so that the small term that
    keeps a division from 0 / 0 would be gone.
    """
    ir = engine("onnx_ir")
    hidden = {}
    for node in list(graph) if graph is not None else ():
        tensor = node.attributes["value"].value if "value" in node.attributes else None
        if node.op_type != "Constant" or tensor is None or not _is_next_to_a_whole(tensor.numpy()):
            continue
        made = node.outputs[0]
        alone = ir.Value(name=made.name, shape=made.shape, type=ir.TensorType(tensor.dtype))
        for use in list(made.uses()):
            use.node.replace_input_with(use.idx, alone)
        graph.remove(node)
        graph.inputs.append(alone)
        hidden[alone] = tensor
    try:
        yield
    finally:
        for alone, tensor in hidden.items():
            graph.inputs.remove(alone)
            if alone.uses():
                alone.const_value = tensor
                graph.register_initializer(alone)


def _is_next_to_a_whole(array: Any) -> bool:
    """Whether a number is next to 0 or 1, and neither."""
    if array.size != 1 or array.dtype.kind != "f":
        return False
    number = float(array.reshape(()))
    return 0 < abs(number) < _NEXT_TO_0 or 0 < abs(number - 1) < _NEXT_TO_1


def _conversion_sentence(error: BaseException, program: ExportedProgram) -> str:
    """Which operator has no rule, and where the user's code calls it."""
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__
    text = "\n".join(texts)
    missing, at = _NO_FUNCTION.search(text), _TRANSLATING.search(text)
    where = _at(_stack_of_node(program, at[1])) if at else ""
    if missing:
        name = f"{missing[1]}.{missing[2]}"
        return f"{name} has no form in ONNX{where}; {equal_form(name)}"
    return f"the program cannot be written as ONNX{where} ({first_line(RuntimeError(texts[-1]))})"


def _stack_of_node(program: ExportedProgram, name: str) -> tuple[Frame, ...]:
    """Where a node of a program was made, or one of its parts: the exporter takes operators apart before."""
    for find in (lambda: program, program.run_decompositions):
        for node in find().graph.nodes:
            if node.name == name:
                return stack_of(node)
    return ()


def equal_form(name: str) -> str:
    """Return the substitute for an operator, in the words of `lockstep ops`.

    name: Of the dispatcher, "aten.foo.default".
    """
    from lockstep.rerun import forms_of, overload_of

    operator = overload_of(name.replace("aten.", "aten::", 1))
    found = [] if operator is None else [one.words for one in forms_of(operator)]
    if found:
        return f"write {found[0]} in its place"
    return "write it with other operators"


def _at(frames: Sequence[Frame]) -> str:
    own = next((one for one in frames if not one.library), None)
    return f", called at {own}" if own is not None else ""


def _fixed_at(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], axes: Axes
) -> dict[str, str]:
    """Where the module's code gives a free axis one extent, by the axis' name.

    torch says the extent alone, so the module is traced once more, and asked for its stack as that happens.
    """
    found: dict[str, str] = {}
    plain = ShapeEnv._set_replacement

    def noted(env: ShapeEnv, symbol: Any, extent: Any, *more: Any) -> None:
        if extent.is_Integer:
            place = _user_place(_called_from(sys._getframe(1)), module)
            for name in _named_by(env.var_to_sources.get(symbol, ()), axes):
                found.setdefault(name, place)
        plain(env, symbol, extent, *more)

    ShapeEnv._set_replacement = noted  # type: ignore[assignment, method-assign]
    try:
        with contextlib.suppress(Exception):  # it ends as it did before
            _program(module, inputs, axes)
    finally:
        ShapeEnv._set_replacement = plain  # type: ignore[method-assign]
    return found


def _named_by(sources: Sequence[Any], axes: Axes) -> Iterator[str]:
    """The free axes that torch knows by such sources: an input's name, and the number of one of its axes."""
    for one in sources:
        at, base = getattr(one, "idx", None), str(getattr(getattr(one, "base", None), "name", ""))
        for name, free in axes.items():
            if at is not None and at in free and f"['{name}']" in base:
                yield free[at].name


_Line = tuple[FrameType, int]


def _raised_in(error: BaseException) -> Iterator[_Line]:
    """The frames of a traceback with their lines, the outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _called_from(frame: FrameType | None) -> Iterator[_Line]:
    """The frames of a running stack with their lines, the outermost first."""
    frames = []
    while frame is not None:
        frames.append((frame, frame.f_lineno))
        frame = frame.f_back
    return reversed(frames)


def _user_place(lines: Iterable[_Line], module: torch.nn.Module) -> str:
    """The innermost module that was being called and the innermost line that is no library's, as a clause.

    Lockstep's own lines are told by where they lie: a project's own folder may have such a name.
    """
    paths = {id(one): path for path, one in module.named_modules()}
    own, path = "", ""
    for frame, line in lines:
        file = frame.f_code.co_filename
        path = paths.get(id(frame.f_locals.get("self")), path)
        is_library = "site-packages" in file or file[:1] == "<"
        if not is_library and not file.startswith(own_folders()):
            own = f"{file}:{line}"
    return (f" in module {path}" if path else "") + (f" at {own}" if own else "")
