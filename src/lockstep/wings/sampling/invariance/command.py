"""`lockstep invariance`: whether a model's rows depend on the rows beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from lockstep.cli import options
from lockstep.core.errors import UsageError
from lockstep.core.members import lacking
from lockstep.hookspecs import AskedModel, LoadedModel
from lockstep.plugins import manager
from lockstep.report.json_text import enveloped, json_text
from lockstep.wings.sampling.invariance.judging import Dependence, Invariance, judge
from lockstep.wings.sampling.invariance.running import Operator, rows_of

_FEWEST_ROWS = 2


@click.command()
@click.argument("model")
@options.option("--inputs", multiple=True)
@options.option("--factory")
@options.option("--seed", default=0)
@options.option("--trust")
@click.option("--training", is_flag=True, help="Run the model in training mode.")
@options.as_json
def invariance(
    model: str,
    inputs: tuple[str, ...],
    factory: str | None,
    seed: int,
    trust: bool,
    training: bool,
    as_json: bool,
) -> int:
    """Test whether the rows of a batch depend on each other, and name the first operator where they do.

    MODEL is as for `lockstep export`: net.py:function, a checkpoint with --factory, and others. It
    runs on the batch as given, with other neighbours of the same row, permuted, twice in one batch,
    half of it, and on rows alone. Give 2 rows or more, and no two alike.

    A dependence is either rounding, because kernels choose their order of sums by shapes, or a
    fault, such as batch norm in training mode or a mask that leaks. Double precision tells them
    apart: rounding shrinks there.

    Exit code 0 if rows depend on each other by rounding at most, 1 if beyond, 2 if a variant did
    not run.

    \b
    lockstep invariance net.py:net --inputs 'x:float32[8,3,32,32]'
    """
    asked = AskedModel(model, factory, "auto", trust, inputs, seed)
    loaded: LoadedModel | None = manager().hook.lockstep_load_model(asked=asked)
    if loaded is None:
        raise lacking("a model", "deploy")
    rows = rows_of(loaded.inputs)
    if rows < _FEWEST_ROWS:
        raise UsageError(f"{model}: its inputs have {rows} rows; give 2 or more with --inputs")
    found = judge(loaded.module.train(training), loaded.inputs, seed=seed)
    click.echo(json_text(_json_of(found)) if as_json else _text_of(found))
    return found.exit_code


def _headline(found: Invariance) -> str:
    said = _verdict(found)
    if found.not_run:
        (name, why), *others = found.not_run.items()
        more = f" and {len(others)} more" if others else ""
        said += f"; not run: {name} ({why}){more}"
    if not found.is_result_compared:
        said += "; the model's result was not compared: it has no axis of rows"
    if found.parted:
        said += f"; compared only up to where operators part: {', '.join(found.parted)}"
    return said


def _verdict(found: Invariance) -> str:
    if found.fault is not None:
        one = found.fault
        said = f"rows depend on their neighbours, beyond rounding: first at {_at(one.operator)}"
        return f"{said}, by {one.relative:.2g} of its size"
    if found.rounding is not None:
        one = found.rounding
        if not found.border:
            said = f"rows depend on their batch, by rounding or more: first at {_at(one.operator)}"
            return f"not judged: {said}, by {one.relative:.2g} of its size"
        said = f"rows depend on their batch by rounding alone: first at {_at(one.operator)}"
        return f"{said}, by {one.relative:.2g} of its size"
    variants = f"{len(found.ran)} variants"
    return f"invariant: {found.compared} operators give each row the same bits in {variants}"


def _text_of(found: Invariance) -> str:
    lines = [_headline(found)]
    for one in (found.fault, found.rounding):
        if one is not None:
            what = "beyond rounding" if one is found.fault else "bits"
            lines.append(f"  {what}: {_at(one.operator)}, in the variant: {one.variant}")
            if one.mixer is not None and one is found.fault:
                lines.append(f"  after one result for all rows: {_at(one.mixer)}")
    compared = f"{found.compared} of {found.operators} operators"
    border = f"a dependence below {found.border:.2g} counts as rounding"
    lines.append(f"  tested: {found.rows} rows, {compared}; {border}")
    return "\n".join(lines)


def _at(one: Operator) -> str:
    where = f" in {one.module}" if one.module else ""
    file = os.path.relpath(one.file) if Path(one.file).is_relative_to(Path.cwd()) else one.file
    return f"{one.name}{where} ({file}:{one.line})"


def _json_of(found: Invariance) -> dict[str, Any]:
    return enveloped(
        {
            "verdict": found.exit_code.name.lower(),
            "headline": _headline(found),
            "rows": found.rows,
            "operators": found.operators,
            "compared_operators": found.compared,
            "beyond_rounding": _dependence(found.fault),
            "first_other_bits": _dependence(found.rounding),
            "counts_as_rounding_below": found.border,
            "variants": list(found.ran),
            "not_run": dict(found.not_run),
            "compared_in_part": list(found.parted),
        }
    )


def _dependence(one: Dependence | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "operator": one.operator.name,
        "module": one.operator.module,
        "file": one.operator.file,
        "line": one.operator.line,
        "variant": one.variant,
        "relative": one.relative,
        "one_result_for_all_rows": None if one.mixer is None else one.mixer.name,
    }
