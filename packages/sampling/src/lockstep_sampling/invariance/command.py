"""`lockstep invariance`: whether a model's rows depend on the rows beside them."""

from __future__ import annotations

import click

from lockstep import options
from lockstep.errors import UsageError
from lockstep.plugin import AskedModel, LoadedModel, lacking, manager
from lockstep.terminal import enveloped, json_text
from lockstep_sampling.invariance.asked_command import (
    json_of_answer,
    run_command,
    text_of_answer,
)
from lockstep_sampling.invariance.judging import judge
from lockstep_sampling.invariance.module_arguments import ModuleCall
from lockstep_sampling.invariance.running import rows_of
from lockstep_sampling.invariance.wording import json_of, text_of

_FEWEST_ROWS = 2
_COMMAND = "lockstep.invariance.command"


class _Command(click.Command):
    """Takes what follows `--` as a command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=_Command)
@click.argument("model", required=False, metavar="MODEL | -- CMD")
@options.option("--inputs", multiple=True)
@options.option("--factory")
@options.option("--seed", default=0)
@options.option("--trust")
@click.option("--training", is_flag=True, help="Run the model in training mode.")
@click.option(
    "--rows-axis",
    type=click.IntRange(min=0),
    metavar="N",
    help="Rows are this axis of the inputs, as 1 where time comes first.  [default: 0]",
)
@options.as_json
@click.pass_context
def invariance(
    context: click.Context,
    model: str | None,
    inputs: tuple[str, ...],
    factory: str | None,
    seed: int,
    trust: bool,
    training: bool,
    rows_axis: int | None,
    as_json: bool,
) -> int:
    """Test whether the rows of a batch depend on each other, and name the first operator where they do.

    MODEL is as for `lockstep export`: net.py:function, a checkpoint with --factory, and others. It
    runs on the batch as given, with other neighbours of the same row, permuted, twice in one batch,
    half of it, and on rows alone. Give 2 rows or more, and no two alike.

    Or give a CMD that trains or evaluates. It runs, what it prints goes to standard error, and each
    module that its script calls is tested in its process, on the arguments of the first call with 2
    rows or more, and of the first such call that goes on with a filled cache, as `generate` makes
    them. Of that call it also tells whether the cache is read at the places at which it was filled.
    Lockstep ends CMD after its first step, without the script's own handlers.

    A dependence is either rounding, because kernels choose their order of sums by shapes, or a
    fault, such as batch norm in training mode or a mask that leaks. Double precision tells them
    apart: rounding shrinks there.

    Exit code 0 if rows depend on each other by rounding at most, 1 if beyond, 2 if a variant did
    not run.

    \b
    lockstep invariance net.py:net --inputs 'x:float32[8,3,32,32]'
    lockstep invariance -- python train.py
    """
    command = context.meta.get(_COMMAND)
    if command is not None:
        _check_alone(model, inputs, factory, training=training)
        answer = run_command(_named(command), seed=seed, rows_axis=rows_axis)
        data = json_text(enveloped(json_of_answer(answer)))
        click.echo(data if as_json else text_of_answer(answer))
        return answer.exit_code
    if model is None:
        raise UsageError(
            "no model: give MODEL, as net.py:function, or a command as in -- python train.py"
        )
    asked = AskedModel(model, factory, "auto", trust, inputs, seed)
    loaded: LoadedModel | None = manager().hook.lockstep_load_model(asked=asked)
    if loaded is None:
        raise lacking("a model", "deploy")
    rows = rows_of(loaded.inputs, rows_axis or 0)
    if rows < _FEWEST_ROWS:
        raise UsageError(f"{model}: its inputs have {rows} rows; give 2 or more with --inputs")
    call = ModuleCall.of(loaded.module.train(training), (), loaded.inputs)
    found = judge(call, seed=seed, axis=rows_axis or 0)
    click.echo(json_text(enveloped(json_of(found))) if as_json else text_of(found))
    return found.exit_code


def _check_alone(
    model: str | None, inputs: tuple[str, ...], factory: str | None, *, training: bool
) -> None:
    """Refuse what a command tells itself."""
    given = {"MODEL": model, "--inputs": inputs, "--factory": factory, "--training": training}
    for name, value in given.items():
        if value:
            raise UsageError(
                f"{name} and a command exclude each other: the command tells it; leave one out"
            )


def _named(command: tuple[str, ...]) -> tuple[str, ...]:
    if not command:
        raise UsageError("no command after --; give one, as in -- python train.py")
    return command
