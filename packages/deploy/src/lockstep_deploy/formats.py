"""The files that a model is exported to, by their suffix; each is proven before it is said to be written."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lockstep.compare import Verdict
from lockstep.errors import OutputExistsError, UsageError
from lockstep.files import replacing
from lockstep_deploy import exporting
from lockstep_deploy.engines import engine, first_line
from lockstep_deploy.free_axes import Axes, bounds_of, free_axes, name_axes, other_extents
from lockstep_deploy.model_file import write_model
from lockstep_deploy.model_source import ModelSource
from lockstep_deploy.module_run import as_it_was
from lockstep_deploy.parity import Parity, ParityRuns, with_gaps
from lockstep_deploy.program_run import note_branches
from lockstep_deploy.runtime import Level, Settings
from lockstep_deploy.stage import Stage

_CONVERTER = "converter_lite"
_EMULATED = (
    "onnxruntime has no kernels for bfloat16 on CPUs: each operator was run in float32 and its result rounded, and the"
    " file itself was not run; run it on its device, and compare there"
)


@dataclass(frozen=True, slots=True)
class Order:
    """The request to write a file: path, opset, free axes, plain or not, runtime settings.

    `more` holds inputs that it is proven on besides those it is exported with.
    """

    path: Path
    opset: int
    dynamic: str
    plain: bool
    settings: Settings
    more: tuple[Mapping[str, torch.Tensor], ...] = ()


@dataclass(frozen=True)
class Written:
    """A written file, with notes and its comparison with the original."""

    path: Path
    said: tuple[str, ...]
    stages: tuple[Stage, ...]
    facts: Mapping[str, Any]


Writer = Callable[[ModelSource, Mapping[str, torch.Tensor], Order, Path], Written]


def writer_for(path: Path) -> Writer:
    """Return the writer of files with this suffix.

    Raises UsageError if none does, or what converts to it is not installed.
    """
    if path.suffix not in _WRITERS:
        raise UsageError(f"-o {path}: give a name that ends in {', '.join(_WRITERS)}")
    if path.suffix == ".mindir" and shutil.which(_CONVERTER) is None:
        raise UsageError(
            f"-o {path}: {_CONVERTER} is not on the PATH; it comes with MindSpore Lite, and not from PyPI. Export an"
            " .onnx here, and convert it where it is installed"
        )
    return _WRITERS[path.suffix]


def _write_onnx(
    source: ModelSource, inputs: Mapping[str, torch.Tensor], order: Order, folder: Path
) -> Written:
    with tempfile.TemporaryDirectory(prefix="lockstep-weights-") as aside:
        return _written_onnx(source, inputs, order, folder, Path(aside))


def _written_onnx(
    source: ModelSource,
    inputs: Mapping[str, torch.Tensor],
    order: Order,
    folder: Path,
    aside: Path,
) -> Written:
    program = exporting.program_of(source, inputs, free_axes(order.dynamic, inputs))
    axes = source.axes
    exported = exporting.to_onnx(program, inputs, opset=order.opset, aside=aside)
    for one in (exported.plain, exported.optimized):
        name_axes(one, axes, exported.program)
    note_branches(exported.program, (inputs, *order.more))
    runs = ParityRuns(exported.program, inputs, folder, source.module)
    model = exported.plain if order.plain else exported.optimized
    version = engine("onnxruntime").__version__
    stages = [
        Stage("plain", "As its rules wrote it, nothing optimised", runs.plain(exported.plain))
    ]
    longer = _of_other_extents(source, exported, inputs, axes, folder) if axes else []
    as_run = Stage(
        "as_run",
        f"As onnxruntime {version} runs it, all optimised",
        runs.as_run(model, order.settings),
    )
    if as_run.parity.comparison.verdict is Verdict.DIVERGED and not order.plain:
        (folder / "unoptimized").mkdir()
        alone = ParityRuns(exported.program, inputs, folder / "unoptimized")
        unoptimized = alone.as_run(model, replace(order.settings, level=Level.NONE))
        by_exporter = unoptimized.comparison.verdict is Verdict.DIVERGED
        as_run = replace(as_run, by_exporter=by_exporter)
    stages += [_with_gap(as_run, _EMULATED) if runs.is_emulated else as_run, *longer]
    stages += _of_more_sets(source, exported, model, order, folder)
    file = write_model(
        model,
        order.path,
        {
            **source.facts,
            **bounds_of(axes),
            "proven": proof_of(stages, inputs),
            "torch": torch.__version__,
        },
    )
    size = f"{order.path}: opset {file.opset}, {len(model.graph.node)} nodes, {file.weight_bytes:,} bytes of weights"
    told = {"opset": file.opset, "digest": file.digest, "nodes": len(model.graph.node)}
    return Written(order.path, (size,), tuple(stages), told)


def _of_other_extents(
    source: ModelSource,
    exported: exporting.Exported,
    inputs: Mapping[str, torch.Tensor],
    axes: Axes,
    folder: Path,
) -> list[Stage]:
    """Prove a model as its rules wrote it on inputs whose free axes are longer."""
    other = other_extents(inputs, axes, exported.program)
    _check_called(source, other)
    (folder / "longer").mkdir()
    again = ParityRuns(exported.program, other, folder / "longer", source.module)
    words = f"With free axes of other extents ({extents_of(other)})"
    return [Stage("longer", words, again.plain(exported.plain))]


def _of_more_sets(
    source: ModelSource, exported: exporting.Exported, model: Any, order: Order, folder: Path
) -> Iterator[Stage]:
    """Prove a model on the inputs that were given besides those it was exported with, as it runs."""
    for number, inputs in enumerate(order.more, start=2):
        place = folder / f"set-{number}"
        place.mkdir()
        runs = ParityRuns(exported.program, inputs, place, source.module)
        words = f"On inputs {number} ({extents_of(inputs)}), as it runs"
        try:
            parity = runs.as_run(model, order.settings)
        except UsageError as error:
            raise UsageError(
                f"--inputs: set {number} ({extents_of(inputs)}): {error}; an axis that is not always as long must be"
                " free (--dynamic)"
            ) from error
        yield Stage(f"set_{number}", words, parity)


def _check_called(source: ModelSource, inputs: Mapping[str, torch.Tensor]) -> None:
    """Refuse a free axis with whose other extents the module itself fails. Raises UsageError with what it says."""
    if source.module is None:
        return
    try:
        with torch.no_grad(), as_it_was(source.module):
            source.module(**{name: one.clone() for name, one in inputs.items()})
    except Exception as error:
        raise UsageError(
            f"--dynamic: the module itself fails with {extents_of(inputs)}"
            f" ({type(error).__name__}: {first_line(error, 160)}); give the bounds of that axis, as in seq[2:64]"
        ) from error


def extents_of(inputs: Mapping[str, torch.Tensor]) -> str:
    """Names and shapes of inputs."""
    return ", ".join(f"{name} {list(one.shape)}" for name, one in inputs.items())


def _write_program(
    source: ModelSource, inputs: Mapping[str, torch.Tensor], order: Order, folder: Path
) -> Written:
    program = exporting.program_of(source, inputs, free_axes(order.dynamic, inputs))
    try:
        with replacing(order.path) as aside:
            renamed = aside.with_suffix(".pt2")  # torch.export asks for the suffix
            torch.export.save(program, renamed)
            renamed.replace(aside)
    except OSError as error:
        raise OutputExistsError(
            f"{order.path}: cannot be written ({error.strerror or error})"
        ) from error
    plain = exporting.without_writes(program)
    note_branches(plain, (inputs, *order.more))
    runs = ParityRuns(plain, inputs, folder, source.module)
    found = runs.loaded(exporting.without_writes(torch.export.load(order.path)))
    stage = Stage("plain", "The program as it is read back", found)
    return Written(order.path, (), (stage,), {"nodes": len(program.graph.nodes)})


def _write_mindir(
    source: ModelSource, inputs: Mapping[str, torch.Tensor], order: Order, folder: Path
) -> Written:
    onnx = folder / "model.onnx"
    first = _write_onnx(source, inputs, replace(order, path=onnx), folder)
    made = folder / "converted"
    done = subprocess.run(
        [_CONVERTER, "--fmk=ONNX", f"--modelFile={onnx}", f"--outputFile={made}", "--saveType=MINDIR"],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    result = made.with_suffix(".mindir")
    if done.returncode or not result.is_file():
        said = next(
            (line for line in reversed((done.stderr + done.stdout).splitlines()) if line.strip()),
            "nothing",
        )
        raise UsageError(
            f"{_CONVERTER} ended with {done.returncode} and wrote no model; it said: {said[:200]}"
        )
    with replacing(order.path) as aside:
        shutil.copyfile(result, aside)
    gap = f"what {_CONVERTER} made of the ONNX model was not compared: run it on its device, and compare there"
    stages = tuple(_with_gap(stage, gap) for stage in first.stages)
    return Written(order.path, (f"{order.path}: converted by {_CONVERTER}",), stages, first.facts)


def _with_gap(stage: Stage, gap: str) -> Stage:
    found = stage.parity
    comparison = with_gaps(found.comparison, [gap], [])
    return replace(stage, parity=Parity(comparison, found.operators, found.compared))


def proof_of(stages: Sequence[Stage], inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the file's note on how it was proven."""
    shapes = {
        name: [str(one.dtype).removeprefix("torch."), list(one.shape)]
        for name, one in inputs.items()
    }
    return {"inputs": shapes} | {
        stage.name: {
            "verdict": stage.parity.comparison.verdict.value, "operators": stage.parity.operators,
            "operators_compared": stage.parity.compared, "tensors_compared": stage.parity.comparison.compared,
        } | ({"by_exporter": True} if stage.by_exporter else {})
        for stage in stages
    }  # fmt: skip


_WRITERS: dict[str, Writer] = {
    ".onnx": _write_onnx,
    ".pt2": _write_program,
    ".mindir": _write_mindir,
}
