"""`lockstep bisect-fusions`: the optimisation of the runtime that changes what a model computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lockstep import options as shared
from lockstep.compare import command_line
from lockstep.errors import ExitCode
from lockstep.options import typed_again
from lockstep.terminal import enveloped, json_text, listed, times
from lockstep_deploy import options
from lockstep_deploy.free_axes import extents_to_draw
from lockstep_deploy.fusions import Apart, Bisection, Culprit, Trials, search
from lockstep_deploy.inputs import read_inputs
from lockstep_deploy.model_file import MOST_BYTES, ModelFile, open_model
from lockstep_deploy.noted import described
from lockstep_deploy.runtime import Level, Settings, checked_sizes


@click.command("bisect-fusions")
@click.argument("model", type=click.Path(path_type=Path))
@options.inputs
@shared.option(
    "--optimize", "level", old=["--level"],
    choices=[one.value for one in Level if one is not Level.NONE],
)  # fmt: skip
@click.option("--bitwise", is_flag=True, help="Count every difference, also one within rounding.")
@options.threads
@options.entries
@options.seed
@shared.as_json
def bisect_fusions(
    model: Path,
    inputs: tuple[str, ...],
    level: str,
    bitwise: bool,
    threads: int,
    entries: tuple[tuple[str, str], ...],
    seed: int,
    as_json: bool,
) -> int:
    """Find the optimisation of the runtime that changes the results of an ONNX model.

    Lockstep runs the model without any optimizer, then with all. If a value changes by more than
    rounding, it searches the optimizers by halves. It leaves out each one it finds and goes on.

    Exit code 0 if all changes are rounding, 1 if one is more.

    \b
    lockstep bisect-fusions model.onnx
    lockstep bisect-fusions model.onnx --inputs batch.npz --bitwise
    """
    file = open_model(model)
    arrays = read_inputs(inputs, file.inputs, seed=seed, free=extents_to_draw(file.facts))
    checked_sizes(file, arrays, MOST_BYTES)
    found = search(
        Trials(file.proto, arrays, Settings(Level(level), (), threads, entries)), bitwise=bitwise
    )
    if as_json:
        click.echo(json_text(_as_json(file, found)))
    else:
        given = typed_again(click.get_current_context(), without=_NOT_OF_RUN)
        entered = [word for one in entries for word in ("--session", "=".join(one))]
        click.echo("\n".join(_lines(file, found, [*given, *entered])))
    differs = bool(found.culprits) or found.first is not None or _accused(file)
    return ExitCode.DIFFERS if differs else ExitCode.AGREES


_NOT_OF_RUN = ("model", "bitwise", "entries", "as_json")
"""What `run` takes not, or in other words."""


def _lines(file: ModelFile, found: Bisection, given: list[str]) -> list[str]:
    changed = [one.name for one in found.ran if one.changed]
    head = f"{file.path}: {len(found.ran)} optimizers ran, {len(changed)} changed the graph: {listed(changed, 6)}"
    if found.first is None and _accused(file):
        return [
            f"DIVERGED: {head}",
            "these change the numbers by rounding alone",
            "`lockstep export` found that the exporter's own optimisation changed them: export it with --plain",
        ]
    if not found.whole.relative:
        return [f"AGREE: {head}", "no value that is left of the model changed by a bit"]
    if found.first is None:
        return [
            f"AGREE: {head}",
            f"all of it is rounding: at most {_apart(found.whole)}",
            "--bitwise finds who makes it",
        ]
    lines = [
        f"DIVERGED: {head}",
        f"first at {_place(file, found.first.value)}: {_apart(found.first)}",
    ]
    for culprit in found.culprits:
        lines += _culprit_lines(culprit)
    if not found.culprits or found.left.is_beyond:
        lines.append(
            f"without them still {_apart(found.left)}: no optimizer that can be left out is to blame for it"
        )
    lines.append(f"found in {found.trials} trials")
    if found.culprits:
        words = [word for one in found.culprits for word in ("--disable", one.name)]
        lines += [
            "",
            "What next: run it without",
            f"  {command_line('run', file.path, *given, *words)}",
        ]
    return lines


def _accused(file: ModelFile) -> bool:
    """Whether `lockstep export` found this very file to differ from its module, the runtime's optimizers left out."""
    proven = file.facts.get("proven")
    stage = proven.get("as_run") if isinstance(proven, dict) else None
    is_found = isinstance(stage, dict) and stage.get("by_exporter") is True
    return is_found and not file.was_changed


def _culprit_lines(culprit: Culprit) -> list[str]:
    lines = [
        f"{culprit.name}: with it {_apart(culprit.before)}; without it {_apart(culprit.after)}"
    ]
    if culprit.removed or culprit.added:
        lines.append(
            f"  in the graph that runs it makes {_counts(culprit.added)} of {_counts(culprit.removed)}"
        )
    else:
        lines.append(
            "  the graph that runs has the same operators without it: what it changes is inside of them"
        )
    return lines


def _counts(operators: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {op}" for op, count in sorted(operators.items())) or "nothing"


def _apart(apart: Apart) -> str:
    if not apart.relative:
        return "nothing is apart"
    beyond = f"{times(apart.times)} what rounding makes of it"
    return f"{apart.value!r} is off by rel {apart.relative:.2g}, {beyond}"


def _place(file: ModelFile, value: str) -> str:
    """Module and source line of what makes a value, as the exporter noted them in the file."""
    node = next((one for one in file.proto.graph.node if value in one.output), None)
    if node is None:
        return f"value {value!r}"
    return described(node)


def _as_json(file: ModelFile, found: Bisection) -> dict[str, Any]:
    told = dataclasses.asdict(found)
    told["first_at"] = _place(file, found.first.value) if found.first is not None else None
    return enveloped(
        {
            "model": str(file.path),
            "verdict": "diverged" if found.first or _accused(file) else "agree",
            **told,
        }
    )
