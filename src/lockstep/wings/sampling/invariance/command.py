"""`lockstep invariance`: whether a model's rows depend on the rows beside them."""

from __future__ import annotations

import click

from lockstep.cli import options
from lockstep.core.errors import UsageError
from lockstep.core.members import lacking
from lockstep.hookspecs import AskedModel, LoadedModel
from lockstep.plugins import manager
from lockstep.report.json_text import enveloped, json_text
from lockstep.wings.sampling.invariance.judging import judge
from lockstep.wings.sampling.invariance.module_arguments import ModuleCall
from lockstep.wings.sampling.invariance.running import rows_of
from lockstep.wings.sampling.invariance.wording import json_of, text_of

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
    call = ModuleCall.of(loaded.module.train(training), (), loaded.inputs)
    found = judge(call, seed=seed)
    click.echo(json_text(enveloped(json_of(found))) if as_json else text_of(found))
    return found.exit_code
