"""`lockstep export`: write a model to a file, and compare it with the original operator by operator."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep import options as shared
from lockstep.compare import (
    Comparison,
    Verdict,
    WhatNext,
    command_line,
    comparison_json,
    new_place,
    print_comparison,
)
from lockstep.errors import ExitCode, OutputExistsError, UsageError, reason_of
from lockstep.files import check_output_file, replacing
from lockstep.options import typed_again
from lockstep.terminal import enveloped, json_text
from lockstep_deploy import options
from lockstep_deploy.stage import TARGET, Stage

if TYPE_CHECKING:
    from lockstep_deploy.formats import Written
    from lockstep_deploy.model_source import ModelSource


@click.command()
@click.argument("model")
@shared.option(
    "--output", required=True,
    words="A file: .onnx, .pt2, or .mindir where its converter is installed.",
)  # fmt: skip
@options.inputs
@shared.option("--factory")
@shared.option("--weights")
@shared.option("--trust")
@click.option("--dynamic", default="", metavar="NAMES",
              help="Leave these axes free: batch,seq names the first axes of each input; ids:1=seq[2:64] is axis 1 of"
              " ids, with bounds.")  # fmt: skip
@click.option(
    "--opset",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Write this ONNX opset.",
)
@click.option("--half", is_flag=True, help="Export in float16.")
@click.option("--plain", is_flag=True, help="Write the model without folding and fusing.")
@click.option(
    "--train-step",
    "train",
    cls=shared.Option,
    old=["--train"],
    metavar="UPDATE",
    help="Export a training step: sgd:lr=0.1,momentum=0.9, adam:lr=0.001 or adamw.",
)
@click.option("--loss", type=click.Choice(["cross_entropy", "mse"]), default="cross_entropy", show_default=True,
              help="With --train-step: take this loss of the model's first output and the input `target`.")  # fmt: skip
@click.option("--facts", type=click.Path(path_type=Path),
              help="Keep this JSON in the file: class_names, preprocessing or other facts.")  # fmt: skip
@shared.option("--keep", "recordings", old=["--recordings"])
@options.entries
@options.seed
@shared.as_json
@shared.force
def export(
    model: str, output: Path, inputs: tuple[str, ...], factory: str | None, weights: str, trust: bool, dynamic: str,
    opset: int,
    half: bool, plain: bool, train: str | None, loss: str, facts: Path | None, recordings: Path | None,
    entries: tuple[tuple[str, str], ...], seed: int, as_json: bool, force: bool,
) -> int:  # fmt: skip
    """Export MODEL, and compare the file with the original, operator by operator, on the same inputs.

    MODEL is a function that returns a module, or a module and its inputs (pkg.mod:function,
    file.py:function); a checkpoint or a recording with its --factory; a folder of Hugging Face; or
    a .pt2 of torch.export. Lockstep compares twice: with nothing optimised, and as the runtime will
    run it.

    Exit code 0 if both agree with the original, 1 if one differs, 2 if one could not be judged. The
    file is written in each case; its metadata holds the verdicts.

    \b
    lockstep export nets:resnet -o resnet.onnx
    lockstep export best.pth.tar --factory nets.py:resnet --inputs 'x:float32[1,3,32,32]' -o r.onnx
    """
    from lockstep_deploy import formats
    from lockstep_deploy.model_source import model_source
    from lockstep_deploy.runtime import Settings

    check_output_file(output, force=force)
    write = formats.writer_for(output)
    kept = _facts(facts)
    source = model_source(model, factory=factory, weights=weights, trusted=trust)
    source.facts.update(kept)
    tensors = _tensors(source, inputs, seed, beside=() if train is None else (TARGET,))
    more = _more_sets(source, inputs, seed, tensors) if train is None else ()
    if half:
        tensors, *halves = (source.to_half(one) for one in (tensors, *more))
        more = tuple(halves)
    order = formats.Order(output, opset, dynamic, plain, Settings(entries=entries), more)
    with _folder(recordings) as folder:
        if train is not None:
            from lockstep_deploy.training_export import write_training

            written = write_training(source, tensors, order, folder, train, loss)
        else:
            written = write(source, tensors, order, folder)
        differs = any(
            stage.parity.comparison.verdict is Verdict.DIVERGED for stage in written.stages
        )
        if differs and not inputs and output.suffix == ".onnx":
            inputs = (str(_kept_inputs(output, tensors)),)
        given = _given(inputs, entries, seed)
        stages = [
            _with_next(stage, recordings is not None, output, given, entries)
            for stage in written.stages
        ]
        if as_json:
            click.echo(json_text(_as_json(written, source, stages)))
        else:
            # The file of a half model takes other dtypes, and one of a training step is run by --train.
            _print(written, source, stages, None if half or train is not None else given)
    return _exit_code(stages)


def _given(inputs: Sequence[str], entries: Sequence[tuple[str, str]], seed: int) -> list[str]:
    """Options that running the written file takes in the same words."""
    return [
        *(word for one in inputs for word in ("--inputs", one)),
        *(word for key, value in entries for word in ("--session", f"{key}={value}")),
        *(["--seed", str(seed)] if seed else []),
    ]


def _kept_inputs(output: Path, tensors: dict[str, Any]) -> Path:
    """The inputs that a factory gave, in a file beside the model, for what is run next."""
    from lockstep_deploy.calls import save_tensors

    path = output.with_suffix(".inputs.pt")
    with replacing(path) as aside:
        save_tensors(aside, tensors)
    return path


def _again(entries: Sequence[tuple[str, str]], *more: str, without: Sequence[str] = ()) -> str:
    """The command that was typed, with more to it."""
    left = ("entries", "as_json", "force", *without)
    typed = typed_again(click.get_current_context(), without=left)
    return command_line("export", *typed, *_given((), entries, 0), *more, "--force")


def _kept_again(entries: Sequence[tuple[str, str]]) -> str:
    """The same, keeping its recordings in a new place."""
    return _again(entries, "--keep", str(new_place(Path("parity"))), without=("recordings",))


def _print(
    written: Written, source: ModelSource, stages: list[Stage], given: list[str] | None
) -> None:
    for line in (*source.said, *written.said):
        click.echo(line)
    for stage in stages:
        counts = f"{stage.parity.compared} of {stage.parity.operators} operators have a value of their own"
        click.echo(f"\n{stage.words}; {counts}")
        print_comparison(stage.parity.comparison)
    click.echo(f"\nwrote {written.path}")
    if written.path.suffix == ".onnx" and _exit_code(stages) == ExitCode.AGREES:
        line = command_line("run", written.path, *(given or []))
        click.echo(f"\nWhat next: run it\n  {line}")


def _as_json(written: Written, source: ModelSource, stages: list[Stage]) -> dict[str, Any]:
    parities = {
        stage.name: {
            "operators": stage.parity.operators,
            "operators_compared": stage.parity.compared,
        }
        | comparison_json(stage.parity.comparison)
        for stage in stages
    }
    told = {"file": str(written.path), "said": [*source.said, *written.said], **written.facts}
    return enveloped({**told, "parity": parities})


def _exit_code(stages: list[Stage]) -> int:
    """The worst of the stages: a difference before what could not be said."""
    codes = [stage.parity.comparison.exit_code() for stage in stages]
    for code in (ExitCode.DIFFERS, ExitCode.FAILED):
        if code in codes:
            return code
    return ExitCode.AGREES


def _with_next(
    stage: Stage,
    are_kept: bool,
    output: Path,
    given: list[str],
    entries: Sequence[tuple[str, str]],
) -> Stage:
    """What leads on: to the fusion at fault, or to the recordings where they are not kept."""
    comparison = stage.parity.comparison
    following = comparison.what_next if are_kept else None
    if comparison.verdict is Verdict.DIVERGED and stage.by_exporter:
        following = WhatNext(
            "leave out the exporter's own optimisation, which changes the numbers",
            _again(entries, "--plain"),
        )
    elif comparison.verdict is Verdict.DIVERGED and stage.name == "as_run":
        command = command_line("bisect-fusions", output, *given)
        following = WhatNext("find the optimisation that changes the numbers", command)
    elif comparison.verdict is not Verdict.AGREE and not are_kept:
        following = WhatNext("export it again, and keep both recordings", _kept_again(entries))
    elif comparison.verdict is Verdict.AGREE:
        following = None
    changed: Comparison = replace(comparison, what_next=following)
    return replace(stage, parity=replace(stage.parity, comparison=changed))


def _tensors(
    source: ModelSource, given: tuple[str, ...], seed: int, *, beside: tuple[str, ...]
) -> dict[str, Any]:
    """What the model is exported with: of the command line, else of its factory; `beside` are no arguments of it."""
    from lockstep_deploy.inputs import input_sets

    if not given:
        if not source.inputs:
            raise UsageError(
                f"{source.name}: gives no inputs; say them with --inputs, as in x:float32[1,3,32,32]"
            )
        return dict(source.inputs)
    arrays = input_sets(given, seed=seed)[0]
    own = {name: array for name, array in arrays.items() if name not in beside}
    return source.bound(own) | source.tensors(
        {name: arrays[name] for name in beside if name in arrays}
    )


def _more_sets(
    source: ModelSource, given: tuple[str, ...], seed: int, first: dict[str, Any]
) -> tuple[dict[str, Any], ...]:
    """The inputs besides the first that a model is proven on."""
    from lockstep_deploy.inputs import input_sets

    if not given:
        return tuple(source.more)
    sets = input_sets(given, seed=seed)[1:]
    return tuple(source.bound({name: one[name] for name in first if name in one}) for one in sets)


def _facts(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({reason_of(error)})") from error
    if not isinstance(found, dict):
        raise UsageError(
            f"{path}: holds a {type(found).__name__}; give an object, as in {{'class_names': [...]}}"
        )
    return found


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
