"""`lockstep experts`: which tokens two runs of a mixture of experts send to other experts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from lockstep import options
from lockstep.errors import UsageError
from lockstep.options import PATH, opened_in
from lockstep.terminal import enveloped, json_text
from lockstep_sampling.experts.routing import Router, Routing, routing_of


@click.command()
@click.argument("reference", type=PATH)
@click.argument("candidate", type=PATH)
@options.forms
@options.limit
@options.as_json
def experts(
    reference: Path, candidate: Path, forms: tuple[str, ...], limit: int, as_json: bool
) -> int:
    """Say how many tokens go to other experts, layer by layer.

    REFERENCE and CANDIDATE are recordings of a mixture of experts with whole scores (--save
    tensors). A router is a call of topk that gives experts. A token may go elsewhere by rounding
    where scores are as close as that moves them; behind such a token nothing is judged. Ranks with
    rows of their own are compared one by one.

    Exit code 0 if tokens go elsewhere by rounding at most, 1 if beyond, 2 if some could not be judged.

    \b
    lockstep experts ref cand
    """
    one, other = opened_in(forms, reference, candidate)
    found = routing_of(one, other)
    if not found.routers and not found.alone:
        raise UsageError(f"{one.path}: no call of topk gives experts; record with --save tensors")
    click.echo(json_text(_json_of(found)) if as_json else "\n".join(_lines(found, limit)))
    return found.exit_code


def _headline(found: Routing) -> str:
    said = _verdict(found)
    if found.alone:
        more = f" and {len(found.alone) - 1} more" if len(found.alone) > 1 else ""
        said += f"; not compared: {found.alone[0]}{more}"
    return said


def _verdict(found: Routing) -> str:
    first = found.first
    if not found.routers:
        return "nothing was compared"
    if first is None:
        tokens = sum(one.tokens for one in found.routers)
        return f"agree: {tokens} choices of {len(found.routers)} routers take the same experts"
    if first.beyond:
        return f"differs: first at {_said(first)}"
    if found.behind:
        said = f"not judged beyond {first.module}: first at {_said(first)}"
        return f"{said}, and what differs behind may follow from that"
    return f"agree but for rounding: first at {_said(first)}"


def _said(one: Router) -> str:
    share = f"{one.other} of {one.tokens} tokens go to other experts"
    beyond = f"{one.beyond} of them beyond rounding" if one.beyond else "as rounding may send them"
    where = f"{one.module} in step {one.step}" + (f" of {one.rank}" if one.rank else "")
    return f"{where}: {share}, {beyond}"


def _lines(found: Routing, limit: int) -> Iterator[str]:
    yield _headline(found)
    different = [one for one in found.routers if one.other]
    yield from (f"  {_said(one)}" for one in different[:limit])
    if len(different) > limit:
        yield f"  and {len(different) - limit} more"


def _json_of(found: Routing) -> dict[str, Any]:
    return enveloped(
        {
            "verdict": found.exit_code.name.lower(),
            "headline": _headline(found),
            "not_compared": list(found.alone),
            "routers": [
                {
                    "step": one.step,
                    "rank": one.rank or None,
                    "module": one.module,
                    "tokens": one.tokens,
                    "other_experts": one.other,
                    "beyond_rounding": one.beyond,
                }
                for one in found.routers
            ],
        }
    )
