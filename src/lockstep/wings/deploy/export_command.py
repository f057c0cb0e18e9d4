"""`lockstep export`: a model in a file that runs elsewhere, held against the original operator by operator."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lockstep.cli import options as shared
from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.screen import print_comparison
from lockstep.report.json_text import enveloped, json_text
from lockstep.report.output import check_output_file
from lockstep.wings.deploy import options
from lockstep.wings.deploy.exporting import OPSET


@click.command()
@click.argument("model")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The file to write: .onnx.",
)
@options.inputs
@click.option(
    "--factory", metavar="PKG.MOD:FUNCTION", help="For a checkpoint: what makes its module."
)
@click.option("--weights", type=click.Choice(["auto", "ema", "plain"]), default="auto", show_default=True,
              help="Which weights of a checkpoint that has two sorts.")  # fmt: skip
@click.option(
    "--opset",
    type=click.IntRange(min=1),
    default=OPSET,
    show_default=True,
    help="The ONNX opset to write.",
)
@click.option(
    "--recordings",
    type=click.Path(path_type=Path),
    help="Keep both recordings in this folder.",
)
@options.seed
@shared.as_json
@shared.force
def export(
    model: str, output: Path, inputs: tuple[str, ...], factory: str | None, weights: str, opset: int,
    recordings: Path | None, seed: int, as_json: bool, force: bool,
) -> int:  # fmt: skip
    """Export MODEL, and hold what was exported against the original: operator by operator, on the same inputs.

    MODEL is a function that returns a module, or a module and its inputs (pkg.mod:function, file.py:function); a
    checkpoint with its --factory; or a .pt2 of torch.export. Exit code 0 if the two agree, 1 if they differ, 2 if that
    cannot be said; the file is written in each case, and its metadata says which it was.

    \b
    lockstep export nets:resnet -o resnet.onnx
    lockstep export best.pth.tar --factory nets.py:resnet --inputs 'x:float32[1,3,32,32]' -o r.onnx
    """
    from lockstep.wings.deploy import exporting, model_file, parity
    from lockstep.wings.deploy.model_source import model_source

    _check_output(output, force=force)
    source = model_source(model, factory=factory, weights=weights)
    tensors = _tensors(source, inputs, seed)
    program = exporting.program_of(source, tensors)
    exported = exporting.to_onnx(program, tensors, opset=opset)
    with _folder(recordings) as folder:
        found = parity.parity_of(exported, tensors, folder, source.module)
        comparison = found.comparison
        file = model_file.write_model(
            exported.plain, output, {**source.facts, **_proof(found, tensors)}
        )
        if as_json:
            told = {
                "file": str(output),
                "opset": file.opset,
                "digest": file.digest,
                "said": source.said,
            }
            counts = {"operators": found.operators, "operators_compared": found.compared}
            click.echo(
                json_text(enveloped({**told, **counts, "parity": comparison_json(comparison)}))
            )
        else:
            for line in source.said:
                click.echo(line)
            size = f"{output}: opset {file.opset}, {len(file.proto.graph.node)} nodes"
            click.echo(f"{size}; {found.compared} of {found.operators} operators compared")
            print_comparison(comparison)
    return comparison.exit_code()


def _check_output(output: Path, *, force: bool) -> None:
    if output.suffix != ".onnx":
        raise UsageError(f"-o {output}: give a name that ends in .onnx")
    check_output_file(output, force=force)


def _tensors(source: Any, given: tuple[str, ...], seed: int) -> dict[str, Any]:
    """What the model is exported with: of the command line, else of its factory."""
    from lockstep.wings.deploy.inputs import read_inputs

    if not given:
        if not source.inputs:
            raise UsageError(
                f"{source.name}: gives no inputs; say them with --inputs, as in x:float32[1,3,32,32]"
            )
        return dict(source.inputs)
    found: dict[str, Any] = source.bound(read_inputs(given, (), seed=seed))
    return found


def _proof(found: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """What is said in the file of how it was proven."""
    comparison = found.comparison
    shapes = {
        name: [str(one.dtype).removeprefix("torch."), list(one.shape)]
        for name, one in tensors.items()
    }
    return {
        "proven": {
            "verdict": comparison.verdict.value, "operators": found.operators, "operators_compared": found.compared,
            "tensors_compared": comparison.compared, "inputs": shapes,
        }
    }  # fmt: skip


@contextlib.contextmanager
def _folder(asked: Path | None) -> Iterator[Path]:
    """Where the recordings lie: where the user wants them, or aside until the verb ends."""
    if asked is None:
        with tempfile.TemporaryDirectory(prefix="lockstep-parity-") as aside:
            yield Path(aside)
        return
    try:
        asked.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExistsError(
            f"{asked}: cannot be made ({error.strerror}); give another folder"
        ) from error
    yield asked
