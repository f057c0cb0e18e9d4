"""`lockstep codegen`: generate C99 from a model, build it here and compare it with the runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import OutputExistsError, UsageError, code_of
from lockstep.terminal import enveloped, json_text
from lockstep_deploy.codegen.checked import (
    allowed_differences,
    built_and_run,
    compiler,
    recorded,
)
from lockstep_deploy.codegen.generate import check_name, fixed, generated
from lockstep_deploy.codegen.program import files_of
from lockstep_deploy.codegen.screen import Answer, as_values, render
from lockstep_deploy.large_models import whole
from lockstep_deploy.model_file import open_model
from lockstep_deploy.quantize.calibration import Samples, drawn_samples, read_samples
from lockstep_deploy.runtime import Array


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@options.option("--output", required=True, words="A folder.")
@options.option(
    "--inputs", multiple=True, words="Samples for the test program.  [default: drawn at random]"
)
@click.option(
    "--samples",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Use this many samples.",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Let the function take this many samples at once.",
)
@click.option(
    "--name", default="model", show_default=True, help="Give the C function and its file this name."
)
@options.force
@options.as_json
def codegen(
    model: Path,
    output: Path,
    inputs: tuple[str, ...],
    samples: int,
    batch: int,
    name: str,
    force: bool,
    as_json: bool,
) -> int:
    """Generate C99 code from an ONNX model, with all memory static, and compare it with the runtime.

    The folder gets the function, its weights, a Makefile, and a test program with samples and the
    results of onnxruntime. Lockstep builds and runs it here: results must be equal bit by bit, or
    off by no more than another order of sums changes. Models of `lockstep quantize` work too.

    Exit code 0 if the program agrees, 1 if it differs, 2 if it could not be generated or compared.

    \b
    lockstep codegen model.onnx -o src/ --inputs test.npz
    lockstep codegen int8.onnx -o src8/ --inputs test.npz --name digits
    """
    check_name(name)
    _check_folder(output, force=force)
    file = open_model(model)
    given = (
        read_samples(inputs, file.inputs, option="--inputs")
        if inputs
        else drawn_samples(file.inputs)
    )
    several = _samples(given, batch, samples)
    program = generated(fixed(whole(file.proto), several[0]), name)
    results = recorded(program.model, several)
    allowed = allowed_differences(program.model, several, results)
    files = files_of(program, several, results, allowed)
    cc = compiler()
    try:
        with tempfile.TemporaryDirectory(
            prefix=".lockstep-codegen-", dir=output.absolute().parent
        ) as aside:
            folder = Path(aside) / "src"
            folder.mkdir()
            for path, content in files.items():
                (folder / path).write_text(content, encoding="utf-8")
            held = built_and_run(folder, name, results, allowed, cc) if cc else []
            if output.exists():
                output.rename(Path(aside) / "before")
            folder.rename(output)
    except OSError as error:
        raise OutputExistsError(
            f"{output}: cannot be written ({error.strerror or error}); give another place with -o"
        ) from error
    answer = Answer(program, output, held, len(several) * batch, cc)
    if as_json:
        click.echo(json_text(enveloped(as_values(answer))))
    else:
        click.echo(render(answer).plain)
    return code_of(differs=bool(held) and not answer.agrees, looked=bool(held))


def _check_folder(output: Path, *, force: bool) -> None:
    if output.exists() and not output.is_dir():
        raise OutputExistsError(f"{output}: is a file; give a folder")
    if output.exists() and any(output.iterdir()) and not force:
        raise OutputExistsError(
            f"{output}: exists already; give another name, or --force to replace it"
        )
    if output.exists() and force and not {one.name for one in output.iterdir()} <= _ours(output):
        raise OutputExistsError(
            f"{output}: holds files that codegen did not write; give another folder"
        )
    if not output.absolute().parent.is_dir():
        raise UsageError(f"{output}: its directory does not exist; make it first")


def _ours(output: Path) -> set[str]:
    """Names of the files that a run of codegen and its Makefile leave."""
    programs = {one.stem for one in output.glob("*.h")} | {"test", "weights"}
    return {"Makefile", "check", *(f"{one}.{end}" for one in programs for end in ("c", "h", "o"))}


def _samples(given: Samples, batch: int, most: int) -> list[dict[str, Array]]:
    """Samples as the function takes them."""
    size = given.batch if given.is_fixed else batch
    count = min(most, given.count // size)
    if not count:
        raise UsageError(
            f"--batch {batch}: there are {given.count} samples only; give more, or a smaller batch"
        )
    return [
        {name: array[at * size : (at + 1) * size] for name, array in given.arrays.items()}
        for at in range(count)
    ]
