"""`lockstep map`: a proposal of a mapping file between two recordings."""

from __future__ import annotations

import json
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import ExitCode, OutputExistsError, UsageError
from lockstep.files import check_output_file, replacing
from lockstep.options import opened_in
from lockstep_frameworks.mapping.propose import Line, Proposal, propose

_ORDER = ("modules", "parameters", "states", "layouts", "activations")


@click.command("map")
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@options.option("--output", required=True, words="A YAML file.")
@options.forms
@options.force
def map_(
    reference: Path, candidate: Path, output: Path, forms: tuple[str, ...], force: bool
) -> int:
    """Propose which names and layouts of CANDIDATE are which of REFERENCE, for trainings of two frameworks.

    Layers are put together by kind, shapes and order; contents check it. Each line of the file has its confidence.
    Lines that nobody can be sure of stand under `guesses`, and `compare --mapping` does not use them until you move
    them. `lockstep.convert_weights` takes the same file.

    \b
    lockstep map torch-run keras-run -o mapping.yaml
    lockstep compare torch-run keras-run --mapping mapping.yaml
    """
    check_output_file(output, force=force)
    opened = opened_in(forms, reference, candidate)
    ranks = [next(iter(one.ranks.values()), None) for one in opened]
    for path, rank in zip((reference, candidate), ranks, strict=True):
        if rank is None or not rank.steps:
            raise UsageError(f"{path}: holds no step; record one first")
    left, right = ranks
    assert left is not None
    assert right is not None
    proposal = propose(left, right)
    try:
        with replacing(output) as aside:
            aside.write_text(text_of(proposal), encoding="utf-8")
    except OSError as error:
        raise OutputExistsError(
            f"{output}: cannot be written ({error.strerror}); give another name"
        ) from error
    click.echo(_told(proposal, output))
    return ExitCode.AGREES


def text_of(proposal: Proposal) -> str:
    """The mapping file."""
    certain = [line for line in proposal.lines if not line.is_guess]
    guesses = [line for line in proposal.lines if line.is_guess]
    text = ["# reference name: candidate name, proposed by `lockstep map`; edit it as you like."]
    text += _sections(certain, "") if proposal.lines else ["{}"]
    if guesses:
        text += ["# Not used: move what is right to its section above.", "guesses:"]
        text += _sections(guesses, "  ")
    text += [f"# not mapped: {one}" for one in proposal.unmapped]
    return "\n".join([*text, ""])


def _sections(lines: list[Line], indent: str) -> list[str]:
    text = []
    for section in _ORDER:
        inside = [line for line in lines if line.section == section]
        text += [f"{indent}{section}:"] if inside else []
        for line in inside:
            words = json.dumps(line.candidate)
            entry = (
                f"- {words}"
                if section == "activations"
                else f"{json.dumps(line.reference)}: {words}"
            )
            text.append(f"{indent}  {entry}  # {line.confidence:.0%}: {line.reason}")
    return text


def _told(proposal: Proposal, output: Path) -> str:
    if not proposal.lines and not proposal.unmapped:
        return f"wrote {output}: every name is equal, so no mapping is needed"
    guesses = sum(line.is_guess for line in proposal.lines)
    said = [f"wrote {output}: {len(proposal.lines) - guesses} lines"]
    if guesses:
        said.append(f"{guesses} guesses, which are not used until you move them to their section")
    lines = ["; ".join(said), *(f"not mapped: {one}" for one in proposal.unmapped)]
    return "\n".join(lines)
