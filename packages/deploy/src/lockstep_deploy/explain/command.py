"""`lockstep explain`: which parts of an input a model looks at, and where a second model looks elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep import options
from lockstep.errors import ExitCode, UsageError
from lockstep.files import check_output_file
from lockstep.page import write_page
from lockstep.plugin import AskedModel, LoadedModel, manager
from lockstep.terminal import Column, enveloped, json_text, table_text

if TYPE_CHECKING:
    from lockstep_deploy.explain.attributing import Explained
    from lockstep_deploy.explain.comparing import Apart


@click.command()
@click.argument("model")
@options.option("--inputs", multiple=True)
@options.option("--against", words="A second model, in any form of MODEL.")
@options.option(
    "--factory", "factories", multiple=True, words="Give it twice, for MODEL and --against."
)
@options.option("--weights")
@options.option("--trust")
@click.option(
    "--class", "number", type=click.IntRange(min=0), metavar="N",
    help="Explain the score of this class.  [default: the highest of each sample]",
)  # fmt: skip
@options.option("--output", default=Path("explanation.html"), words="The page.")
@options.option("--seed", default=0, words="For inputs that are drawn at random.")
@options.limit
@options.force
@options.as_json
def explain(
    model: str,
    inputs: tuple[str, ...],
    against: Path | None,
    factories: tuple[str, ...],
    weights: str,
    trust: bool,
    number: int | None,
    output: Path,
    seed: int,
    limit: int,
    force: bool,
    as_json: bool,
) -> int:
    """Show which parts of its inputs the answer of MODEL rests on, as pictures in one page.

    Captum computes saliency, integrated gradients, occlusion, and gradient times output of each
    layer. MODEL is one that `lockstep export` takes: a function that returns a module, a checkpoint
    or a recording with its --factory, a folder of Hugging Face, or a .pt2.

    With --against, both models get the same inputs and the same class. You see the first layer
    whose output differs, and where attributions differ: of a port, or of a model in 8 bits.

    \b
    lockstep explain nets:resnet --inputs images.npz
    lockstep explain nets:resnet --inputs images.npz --against nets:resnet_8_bits -o port.html
    """
    check_output_file(output, force=force)
    if len(factories) > 2:
        raise UsageError("--factory is for MODEL and --against; give it twice at most")
    first, last = (factories[0], factories[-1]) if factories else (None, None)
    asked = AskedModel(model, first, weights, trust, inputs, seed)
    loaded = [_loaded(asked)]
    if against is not None:
        second = _loaded(AskedModel(str(against), last, weights, trust, inputs, seed))
        loaded.append(_with_inputs_of(loaded[0], second))
    from lockstep_deploy.explain.attributing import explained  # torch and Captum are slow to load
    from lockstep_deploy.explain.comparing import apart
    from lockstep_deploy.explain.explain_page import SHOWN, explain_page

    samples = len(next(iter(loaded[0].inputs.values())))
    found = [explained(loaded[0], None if number is None else [number] * samples)]
    found += [explained(one, found[0].classes) for one in loaded[1:]]
    measured, left = apart(*found) if against is not None else ([], [])
    said = list(dict.fromkeys(sentence for one in loaded for sentence in one.said))
    told = [*said, *left, *_readings(found[0], samples, SHOWN)]
    answer = headline(found, measured)
    write_page(explain_page(found, measured, told, loaded[0].class_names, answer), output)
    if as_json:
        click.echo(json_text(_values(found, measured, told, answer)))
    else:
        table = _table(found[0], measured, limit)
        click.echo("\n".join([answer, *said, *left, *(["", table] if table else [])]))
        click.echo(f"\nwrote {output}")
    return ExitCode.AGREES


def _loaded(asked: AskedModel) -> LoadedModel:
    loaded: LoadedModel | None = manager().hook.lockstep_load_model(asked=asked)
    if loaded is None:
        raise UsageError(f"{asked.given}: no plug-in here loads models")
    return loaded


def _with_inputs_of(first: LoadedModel, second: LoadedModel) -> LoadedModel:
    """Return the second model with the first one's inputs, by name or, where names differ, in their order."""
    if len(first.inputs) != len(second.inputs):
        raise UsageError(
            f"{second.name} takes {len(second.inputs)} inputs, and {first.name} {len(first.inputs)}"
        )
    same = set(first.inputs) == set(second.inputs)
    given = {
        name: first.inputs[name] if same else tensor
        for name, tensor in zip(second.inputs, first.inputs.values(), strict=True)
    }
    return LoadedModel(second.name, second.module, given, second.class_names, second.said)


def headline(found: Sequence[Explained], measured: Sequence[Apart]) -> str:
    """Return the answer in one sentence."""
    if not measured:
        return f"{found[0].name}: {len(found[0].classes)} answers explained"
    differ = sum(
        int(one.argmax()) != int(other.argmax())
        for one, other in zip(found[0].scores, found[1].scores, strict=True)
    )
    answers = f"{differ} of {len(found[0].classes)} answers differ"
    from lockstep_deploy.explain.comparing import OUTPUT, first_that_differs

    first = first_that_differs(measured)
    if first is not None:
        answers += f"; the first layer whose output differs is {first.what or 'the model'} (rel L2 {first.rel_l2:.3g})"
    elif any(one.how == OUTPUT for one in measured):
        answers += "; no layer's output differs by more than rounding"
    known = [one for one in measured if one.cosine == one.cosine and one.how != OUTPUT]
    if not known:
        return f"{answers}; all attributions of one model are zero"
    if not any(one.rel_l2 > 0 for one in known):
        return f"{answers}; all attributions are equal"
    least = min(known, key=lambda one: one.cosine)
    return f"{answers}; the attributions part most at {least.what} ({least.how}): cosine {least.cosine:.4g}"


def _readings(first: Explained, samples: int, shown: int) -> list[str]:
    return [
        f"Images of {shown} samples are drawn at most, and there are {samples}.",
        "Saliency is a size. The other numbers are signed: more than 0 speaks for the class.",
        "Occlusion and integrated gradients take 0 as the absence of a part; in an image that is a colour.",
        f"Integrated gradients add up to the score's change from an input of zeros, up to a share of {first.gap:.2g}.",
        "An attribution describes a model's function near an input. It proves no cause in the data.",
    ]


def _table(first: Explained, measured: Sequence[Apart], limit: int) -> str:
    if measured:
        columns = [
            Column("of"),
            Column("by"),
            *(Column(name, right=True) for name in ("cosine", "rel L2", "top 10%")),
        ]
        rows = [
            (one.what, one.how, one.cosine, one.rel_l2, f"{one.shared:.0%}") for one in measured
        ]
        return table_text(columns, rows, limit=limit)
    columns = [Column("layer"), Column("gradient x output", right=True)]
    return table_text(
        columns,
        [(name, float(one.sum()) / len(first.classes)) for name, one in first.layers.items()],
        limit=limit,
    )


def _values(
    found: Sequence[Explained], measured: Sequence[Apart], told: Sequence[str], headline: str
) -> object:
    models = [
        {
            "name": one.name,
            "scores": one.scores.tolist(),
            "classes": list(one.classes),
            "gap": one.gap,
            "inputs": {
                part.name: {how.value: values.tolist() for how, values in part.values.items()}
                for part in one.parts
            },
            "layers": {
                name: {"sum": float(values.sum()), "shape": list(values.shape)}
                for name, values in one.layers.items()
            },
        }
        for one in found
    ]
    return enveloped(
        {
            "headline": headline,
            "models": models,
            "apart": [asdict(one) for one in measured],
            "said": list(told),
        }
    )
