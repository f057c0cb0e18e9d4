"""A module becomes a program (`torch.export`), and the program an ONNX model; both are kept, to be held together."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from lockstep.core.errors import UsageError
from lockstep.core.records import Frame
from lockstep.wings.deploy.calls import stack_of
from lockstep.wings.deploy.engines import engine, first_line
from lockstep.wings.deploy.model_file import opset_of
from lockstep.wings.deploy.model_source import ModelSource

OPSET = 20
"""The opset without `--opset`: the one that torch's exporter is written for."""

_NO_FUNCTION = re.compile(
    r"No ONNX function found for <OpOverload\(op='([^']+)', overload='([^']+)'\)>"
)
_TRANSLATING = re.compile(r"Error when translating node %(\S+) :")


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Parameters
    ----------
    program
        The program in the operators that the exporter has rules for.
    plain
        The ONNX model, each of its nodes as a rule wrote it.
    optimized
        The same after the exporter's own optimisation, which folds and fuses; None where it was not asked for.
    """

    program: ExportedProgram
    plain: Any
    optimized: Any


def program_of(
    source: ModelSource,
    inputs: Mapping[str, torch.Tensor],
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
) -> ExportedProgram:
    """The program of a model, its parameters in it.

    Parameters
    ----------
    source
        Its module, in the mode that it is to be exported in, or its program.
    inputs
        What it is called with, by the names of its arguments.
    dynamic
        Names of axes that are free, by input and axis.

    Raises
    ------
    UsageError
        If torch cannot export it, with the line of the user's code where that is known.
    """
    if source.module is None:
        if source.program is None:
            raise UsageError(f"{source.name}: neither a module nor a program")
        return source.program
    free = {
        name: torch.export.Dim(name) for axes in (dynamic or {}).values() for name in axes.values()
    }
    shapes = None
    if dynamic:
        shapes = {
            name: {axis: free[one] for axis, one in dynamic.get(name, {}).items()}
            for name in inputs
        }
    with _quiet():
        try:
            return torch.export.export(
                source.module,
                (),
                dict(inputs),
                dynamic_shapes=shapes,
                strict=False,
            )
        except Exception as error:
            where = _user_line(error)
            raise UsageError(
                f"the model cannot be exported{where} ({type(error).__name__}: {first_line(error)}); change that line,"
                " or export a part of the model"
            ) from error


def free_axes(text: str, inputs: Mapping[str, torch.Tensor]) -> dict[str, dict[int, str]]:
    """Names of free axes by input and axis, as `--dynamic` says them.

    Parameters
    ----------
    text
        `batch,seq`: the first axes of every input that has them; or `ids:0=batch,ids:1=seq`.
    inputs
        What the model is exported with.

    Raises
    ------
    UsageError
        If it is neither, or names what is not there.
    """
    found: dict[str, dict[int, str]] = {}
    for at, part in enumerate(one.strip() for one in text.split(",") if one.strip()):
        match = re.fullmatch(r"(?:([\w.]+):(\d+)=)?([A-Za-z_]\w*)", part)
        if match is None:
            raise UsageError(f"--dynamic {part}: give names, as in batch,seq, or ids:0=batch")
        axis = at if match[2] is None else int(match[2])
        names = [name for name in inputs if match[1] in (None, name) and inputs[name].dim() > axis]
        if not names:
            raise UsageError(
                f"--dynamic {part}: no input has that axis; there are {_shapes(inputs)}"
            )
        for name in names:
            found.setdefault(name, {})[axis] = match[3]
    return found


def doubled(
    inputs: Mapping[str, torch.Tensor], axes: Mapping[str, Mapping[int, str]]
) -> dict[str, torch.Tensor]:
    """The inputs with every free axis twice as long, the same elements again."""
    return {
        name: one.repeat([2 if axis in axes.get(name, {}) else 1 for axis in range(one.dim())])
        for name, one in inputs.items()
    }


def _shapes(inputs: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {list(one.shape)}" for name, one in inputs.items())


def to_onnx(
    program: ExportedProgram,
    inputs: Mapping[str, Any],
    *,
    opset: int = OPSET,
    rules: Mapping[Any, Any] | None = None,
) -> Exported:
    """The ONNX model of a program.

    Parameters
    ----------
    program
        As `program_of` gives it.
    inputs
        What it was exported with.
    opset
        The opset to write; the file is read back, and another one in it is an error.
    rules
        Rules of the user's own for operators: a function of onnxscript by torch's operator.

    Raises
    ------
    UsageError
        If an operator has no rule, or the exporter writes another opset.
    """
    engine("onnx"), engine("onnxscript")
    with _quiet() as said:
        try:
            made = torch.onnx.export(
                program, (), kwargs=dict(inputs), dynamo=True, opset_version=opset, optimize=False, verbose=False,
                custom_translation_table=dict(rules) if rules else None,
            )  # fmt: skip
        except Exception as error:
            raise UsageError(_conversion_sentence(error, program)) from error
        if made is None or made.exported_program is None:
            raise UsageError("the exporter returned no model; another version of torch may")
        plain = _copied(made.model_proto)
        made.optimize()
        optimized = _copied(made.model_proto)
    for one in (plain, optimized):
        _check_opset(one, opset, said.getvalue())
    return Exported(made.exported_program, plain, optimized)


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


def _copied(proto: Any) -> Any:
    """The model in onnx's own type, apart from what the exporter goes on to change."""
    found = engine("onnx").ModelProto()
    found.ParseFromString(proto.SerializeToString())
    return found


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Keep what exporters log and warn of from the user's screen; what matters becomes a sentence."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    loggers = [
        logging.getLogger(name)
        for name in ("torch.onnx", "torch.export", "torch._export", "onnxscript")
    ]
    kept = [(one, one.propagate, list(one.handlers)) for one in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(said):
        warnings.simplefilter("ignore")
        for one in loggers:
            one.handlers, one.propagate = [handler], False
        try:
            yield said
        finally:
            for one, propagate, handlers in kept:
                one.handlers, one.propagate = handlers, propagate


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
    """What to write in place of an operator, as `lockstep ops` would say it.

    Parameters
    ----------
    name
        Of the dispatcher, "aten.foo.default".
    """
    from lockstep.replay.equal_forms.forms import forms_of, overload_of

    operator = overload_of(name.replace("aten.", "aten::", 1))
    found = [] if operator is None else [one.words for one in forms_of(operator)]
    if found:
        return f"write {found[0]} in its place"
    return "write it with other operators"


def _at(frames: Sequence[Frame]) -> str:
    own = next((one for one in frames if not one.library), None)
    return f", called at {own}" if own is not None else ""


def _user_line(error: BaseException) -> str:
    """The innermost line of the traceback that is no library's."""
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [
        one
        for one in frames
        if "site-packages" not in one[0] and "/lockstep/" not in one[0] and one[0][:1] != "<"
    ]
    return f" at {own[-1][0]}:{own[-1][1]}" if own else ""
