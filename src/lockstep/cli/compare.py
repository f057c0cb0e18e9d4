"""Compare two recordings and name the operator at fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from lockstep.cli import comparing, options
from lockstep.cli.progress_bar import progress_bar
from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.finding import Comparison
from lockstep.hookspecs import AskedModel
from lockstep.plugins import manager, report_writers
from lockstep.report.comparison.screen import print_comparison
from lockstep.report.output import check_output_file


@click.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@options.option("--output", words="A folder: every report format goes there.")
@options.as_json
@comparing.options
@click.option("--csv", type=options.PATH_HERE, help="Write every pair to this CSV file.")
@click.option("--xlsx", type=options.PATH_HERE, help="Write every pair to this XLSX file.")
@options.option("--all", "show_all", words="The table of all pairs.")
@click.option(
    "--cosine", type=click.FloatRange(-1, 1), help="List the pairs below this cosine, lowest first."
)
@options.option("--limit", words="With --cosine: pairs.")
@click.option(
    "--strict",
    is_flag=True,
    help="Also exit with 1 if another precision throughout is the only difference.",
)
@click.option(
    "--where-it-lies", is_flag=True,
    help="Compare on the machine of the larger recording; recordings are NAME:PATH then, see `lockstep remote`.",
)  # fmt: skip
@options.option("--inputs", multiple=True, words="For models.")
@options.option("--keep", words="For models: both recordings.")
@options.option("--engine", choices=["local", "ray"], words="The answer is the same.")
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N",
    help="With --engine: as many processes.  [default: one for each processor]",
)  # fmt: skip
@options.option("--cluster", old=["--address"])
@options.force
def compare(
    reference: Path,
    candidate: Path,
    output: Path | None,
    as_json: bool,
    csv: Path | None,
    xlsx: Path | None,
    show_all: bool,
    cosine: float | None,
    limit: int,
    strict: bool,
    where_it_lies: bool,
    inputs: tuple[str, ...],
    keep: Path | None,
    engine: str | None,
    workers: int | None,
    cluster: str | None,
    force: bool,
    **manner: Any,
) -> int:
    """Compare two recordings and name the first operator where CANDIDATE leaves REFERENCE.

    Two models are run on the same inputs, and compared node by node: an .onnx file, a .pt2, or a
    function that returns a module (net.py:net).

    Settings that differ (`set-up: threads 2 / 1`) and calls that only one of the two makes are
    printed too.

    Exit code 0 if they agree, 1 if they differ, 2 if they cannot be compared or one crashed. If the
    only difference is another precision throughout, with no operator at fault, it is 0, or 1 with
    --strict.

    \b
    lockstep compare ref cand
    lockstep compare ref cand --csv pairs.csv --xlsx pairs.xlsx
    lockstep compare ref cand --cosine 0.98 --limit 10
    lockstep compare ref cand --calibration ref.cal --mapping names.yaml
    lockstep compare net.py:net net.onnx --inputs batch.npz
    lockstep compare --where-it-lies gpu1:runs/ref gpu2:runs/cand
    """
    if where_it_lies:
        from lockstep.cli.elsewhere import run_where_it_lies

        return run_where_it_lies("--where-it-lies", writes=("--output", "--csv", "--xlsx"))
    comparing.check_two(reference, candidate)
    plans = _plan_reports(output, {"csv": csv, "xlsx": xlsx}, force=force)
    found = _of_models(reference, candidate, inputs, keep)
    if found is None:
        using = comparing.Using(engine, workers, cluster or "")
        found = comparing.compared(reference, candidate, using=using, **manner).comparison
    comparison = replace(found, is_strict=strict)
    if as_json:
        from lockstep.report.comparison.json import render_json

        click.echo(render_json(comparison))
    else:
        most = None if show_all else limit
        print_comparison(comparison, show_all=show_all, cosine=cosine, limit=most)
    for path, write in plans:
        with progress_bar(f"writing {path}"):
            _write_report(comparison, path, write)
        click.echo(f"wrote {path}", err=as_json)
    return comparison.exit_code()


def _of_models(
    reference: Path, candidate: Path, inputs: tuple[str, ...], keep: Path | None
) -> Comparison | None:
    """Return the comparison of two models; None for two recordings."""
    are_models = [_is_model(one) for one in (reference, candidate)]
    if not any(are_models):
        if inputs or keep is not None:
            given = f"--inputs {inputs[0]}" if inputs else f"--keep {keep}"
            raise UsageError(f"{given} is for two models, as in net.py:net net.onnx")
        return None
    if not all(are_models):
        recording = (reference, candidate)[are_models.index(False)]
        raise UsageError(
            f"{recording}: a model is compared with a model; give an .onnx, a .pt2 or net.py:net"
        )
    if unused := _given_for_recordings():
        raise UsageError(f"{unused} is for recordings; two models are compared without it")
    sides = (AskedModel(str(one), inputs=inputs) for one in (reference, candidate))
    found: Comparison | None = manager().hook.lockstep_compare_models(
        **dict(zip(("reference", "candidate"), sides, strict=True)), keep=keep
    )
    if found is None:
        raise UsageError("models are compared by a member: pip install 'lockstep-numerics[deploy]'")
    return found


_FOR_MODELS = frozenset(
    {"output", "as_json", "csv", "xlsx", "show_all", "cosine", "limit", "strict", "inputs", "keep", "force"}
)  # fmt: skip


def _given_for_recordings() -> str:
    """Return the first option that was typed and says nothing of models; "" for none."""
    context = click.get_current_context()
    typed = (
        one.opts[0]
        for one in context.command.params
        if isinstance(one, click.Option)
        and one.name not in _FOR_MODELS
        and context.get_parameter_source(one.name) is ParameterSource.COMMANDLINE
    )
    return next(typed, "")


def _is_model(path: Path) -> bool:
    """Return whether a path is a file of a model, or names a function; a recording may be called anything."""
    if path.suffix in _MODEL_FILES:
        return not path.is_dir()
    return _FUNCTION.fullmatch(str(path)) is not None and not path.exists()


_MODEL_FILES = (".onnx", ".pt2")
_FUNCTION = re.compile(r"[\w./\\-]+:[A-Za-z_]\w*")

Writer = Callable[[Comparison, Path], None]


def _plan_reports(
    output: Path | None, files: dict[str, Path | None], *, force: bool
) -> list[tuple[Path, Writer]]:
    """Decide where reports go, and check it before any work is done."""
    if output is None and not any(files.values()):
        return []
    writers = report_writers()
    plans = [(path, writers[name].write) for name, path in files.items() if path is not None]
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputExistsError(
                f"{output}: cannot be made ({error.strerror}); give another directory with -o"
            ) from error
        plans += [
            (output / f"comparison{writer.suffix}", writer.write) for writer in writers.values()
        ]
    for path, _ in plans:
        check_output_file(path, force=force)
    return plans


def _write_report(comparison: Comparison, path: Path, write: Writer) -> None:
    try:
        write(comparison, path)
    except OSError as error:
        raise OutputExistsError(
            f"{path}: cannot be written ({error.strerror or error}); give another name"
        ) from error
