"""What `lockstep invariance` says of a model, as text and as data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lockstep.errors import ExitCode
from lockstep_sampling.invariance.cached_places import Displaced
from lockstep_sampling.invariance.judging import Dependence, Invariance
from lockstep_sampling.invariance.running import Operator


def headline(
    found: Invariance, *, is_command: bool = False, is_other_axis_clean: bool = False
) -> str:
    """The verdict, with what was not compared."""
    said = _verdict(found)
    if is_other_axis_clean:
        return (
            f"not judged: along the first axis of the inputs, {said}; along the second, nothing depends"
            " beyond rounding; give --rows-axis 0 or 1"
        )
    padding = found.padding
    if padding.fault is not None:
        depends = f"rows depend on their padding (told by {padding.told_by}): first at"
        size = f"by {padding.fault.relative:.2g} of its size"
        said = f"{depends} {_at(padding.fault.operator)}, {size}; of their neighbours: {said}"
    if found.not_run:
        (name, why), *others = found.not_run.items()
        more = f" and {len(others)} more" if others else ""
        said += f"; not run: {name} ({why}){more}"
    if is_command and found.gives_one_number and found.compared:
        said += "; the result is one number for all rows, compared up to where rows are summed"
    elif not found.is_result_compared:
        said += "; the model's result was not compared: it has no axis of rows"
    if found.parted:
        also = " and in the result" if found.is_result_compared else ""
        said += f"; compared only up to where operators part{also}: {', '.join(found.parted)}"
    return said


def _verdict(found: Invariance) -> str:
    if found.fault is not None and found.is_by_hidden_draws:
        return (
            f"not judged: rows depend on their batch first at {_at(found.fault.operator)}; they drew"
            f" other random numbers, inside of {found.hidden_draws[0]}"
        )
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


def text_of(
    found: Invariance, *, is_command: bool = False, is_other_axis_clean: bool = False
) -> str:
    """The answer: a headline, then the operators."""
    lines = [headline(found, is_command=is_command, is_other_axis_clean=is_other_axis_clean)]
    for one in (found.fault, found.rounding):
        if one is not None:
            what = "beyond rounding" if one is found.fault else "bits"
            lines.append(f"  {what}: {_at(one.operator)}, in the variant: {one.variant}")
            if one.mixer is not None and one is found.fault:
                lines.append(f"  after one result for all rows: {_at(one.mixer)}")
    compared = f"{found.compared} of {found.operators} operators"
    border = f"a dependence below {found.border:.2g} counts as rounding"
    lines.append(f"  tested: {found.rows} rows, {compared}; {border}")
    lines.append(f"  padding: {_of_padding(found)}")
    return "\n".join(lines)


def _of_padding(found: Invariance) -> str:
    padding = found.padding
    if padding.not_tried:
        return f"not tried: {padding.not_tried}"
    if padding.fault is not None:
        return f"takes part at {_at(padding.fault.operator)} (told by {padding.told_by})"
    return f"takes no part (told by {padding.told_by})"


def _at(one: Operator) -> str:
    if not one.file:
        return one.name
    where = f" in {one.module}" if one.module else ""
    file = os.path.relpath(one.file) if Path(one.file).is_relative_to(Path.cwd()) else one.file
    return f"{one.name}{where} ({file}:{one.line})"


def json_of(
    found: Invariance, *, is_command: bool = False, is_other_axis_clean: bool = False
) -> dict[str, Any]:
    """The answer as data."""
    code = found.exit_code_of_a_script() if is_command else found.exit_code
    code = ExitCode.FAILED if is_other_axis_clean else code
    said = headline(found, is_command=is_command, is_other_axis_clean=is_other_axis_clean)
    return {
        "verdict": code.name.lower(),
        "headline": said,
        "rows": found.rows,
        "operators": found.operators,
        "compared_operators": found.compared,
        "beyond_rounding": _dependence(found.fault),
        "first_other_bits": _dependence(found.rounding),
        "counts_as_rounding_below": found.border,
        "variants": list(found.ran),
        "not_run": dict(found.not_run),
        "compared_in_part": list(found.parted),
        "padding": {
            "told_by": found.padding.told_by or None,
            "not_tried": found.padding.not_tried or None,
            "fault": None
            if found.padding.fault is None
            else {
                "operator": found.padding.fault.operator.name,
                "module": found.padding.fault.operator.module,
                "file": found.padding.fault.operator.file,
                "line": found.padding.fault.operator.line,
                "relative": found.padding.fault.relative,
            },
        },
        "hidden_draws": list(found.hidden_draws),
    }


def json_of_places(found: Displaced) -> dict[str, Any]:
    """What was found of a cache, as data."""
    said = f"the cache is read at other places than it was filled: {found.said}; first at"
    said = f"{said} {_at(found.operator)}"
    more = f"the result is {found.relative:.2g} of its size from that of one call with all tokens"
    return {
        "verdict": ExitCode.DIFFERS.name.lower(),
        "headline": said,
        "text": f"{said}\n  {more}",
        "relative": found.relative,
        "places": list(found.places),
        "operator": found.operator.name,
        "module": found.operator.module,
        "operator_file": found.operator.file,
        "operator_line": found.operator.line,
    }


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


__all__ = ["headline", "json_of", "json_of_places", "text_of"]
