"""The operators of a training as text, as values of its JSON, and as rows of a CSV file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from lockstep.plugin import SupportedOperators, SupportStanding
from lockstep.recordings import Phase
from lockstep.rerun import Substitute
from lockstep.terminal import (
    Cell,
    Column,
    Page,
    add_line,
    add_paragraph,
    add_table,
    counted,
    printable,
    terminal_width,
)
from lockstep_operators.alternative import Alternative
from lockstep_operators.answers import Answered
from lockstep_operators.ran import Form, Ran, TensorForm
from lockstep_operators.support.known_lists import KNOWN

_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_COLUMNS = (
    Column("operator"),
    Column("answer"),
    Column("time", right=True),
    *(Column(phase.value, right=True) for phase in _PHASES),
    Column("dtypes"),
    Column("shapes"),
    Column("why"),
)
_SHAPES = [column.title for column in _COLUMNS].index("shapes")
_MOST_TENSORS = 3
_MOST_NOT_SEEN = 5

TITLES = (
    "operator", "answer", "why", "instead", "seconds", "forward", "backward", "optimizer", "calls", "dtypes",
    "forms", "shapes",
)  # fmt: skip
"""Columns of the CSV file."""


def headline(ran: Ran, found: Sequence[Answered], support: SupportedOperators | None) -> str:
    """The answer in one sentence."""
    if support is None:
        known = ", ".join(KNOWN)
        return f"{counted(len(found), 'operator')} ran; --target compares them with a list: {known}, or a file"
    standings = Counter(one.standing for one in found)
    of = f"{counted(len(found), 'operator')} that ran"
    lacking = {
        SupportStanding.MISSING: "not in the list",
        SupportStanding.OTHER_DTYPES: "there for other dtypes only",
        SupportStanding.UNKNOWN: "unknown to it",
    }
    said = [f"{standings[one]} {words}" for one, words in lacking.items() if standings[one]]
    name = printable(support.name)
    verdict = f"{_verdict(ran, standings).upper()} by {name}"
    if said:
        return f"{verdict}: of {of}, {', '.join(said)}"
    return f"{verdict}: all of {of}" + (
        "" if ran.is_whole else " in sight, but not all is in sight"
    )


def _verdict(ran: Ran, standings: Counter[SupportStanding | None]) -> str:
    if standings[SupportStanding.MISSING] or standings[SupportStanding.OTHER_DTYPES]:
        return "not all supported"
    is_known = ran.is_whole and not standings[SupportStanding.UNKNOWN]
    return "supported" if is_known else "not all known to be supported"


def render(
    ran: Ran, found: Sequence[Answered], support: SupportedOperators | None, *, limit: int
) -> Page:
    """The headline, where both sides are from, and the operators."""
    text = Page()
    add_paragraph(text, headline(ran, found, support), indent="  ", first="")
    if support is not None:
        add_paragraph(text, f"list: {_source(support)}")
    add_paragraph(text, f"ran: {_where(ran)}")
    total = _seconds(ran)
    for sentence in (*_warnings(ran), _of_times(ran, total)):
        add_paragraph(text, sentence)
    add_line(text, "")
    rows = [_row(one, total) for one in found]
    if support is None:
        chosen = [at for at, column in enumerate(_COLUMNS) if column.title not in ("answer", "why")]
    else:
        chosen = list(range(len(_COLUMNS)))
    add_table(
        text,
        [_COLUMNS[at] for at in chosen],
        [[row[at] for at in chosen] for row in rows],
        limit=limit,
        width=terminal_width(),
    )
    _add_alternatives(text, found, limit)
    if any("*" in row[_SHAPES] for row in rows[:limit]):
        add_line(text, "* does not lie row after row")
    if not ran.of_dispatcher:
        add_line(text, "")
        add_line(text, "Record all that runs with")
        add_line(text, f"  {ran.again}")
    text.rstrip()
    return text


def _add_alternatives(text: Page, found: Sequence[Answered], limit: int) -> None:
    for one in found[:limit]:
        if one.alternative is not None:
            add_line(text, "")
            add_line(text, f"instead of {one.operator.name}")
            for sentence in _instead(one.alternative, len(one.operator.forms)):
                add_paragraph(text, printable(sentence))


def _instead(alternative: Alternative, forms: int) -> Iterable[str]:
    """What takes an operator's place, in sentences."""
    substitute, cpu = alternative.substitute, alternative.cpu
    if substitute.form:
        yield f"{proof_words(substitute, forms)}: {substitute.form}"
        if substitute.parts:
            yield f"made of {', '.join(substitute.parts)}"
    else:
        yield f"no equal form: {substitute.why or 'none is known'}"
    if cpu is not None:
        yield f"on the CPU: {cpu.copies:.4g} copies, {cpu.copied_bytes / 1e6:.4g} MB a step; {cpu.how}"
    elif not substitute.form:
        yield "none: the CPU has no kernel of it either"


def proof_words(substitute: Substitute, forms: int) -> str:
    """How far a form is known to be equal."""
    if not substitute.is_proven:
        return f"a form that is not proven equal ({substitute.why or 'it was not run'})"
    ways = "forward and backward" if substitute.gradients else "forward"
    where = (
        f"on {substitute.proven} of {counted(forms, 'form')} of inputs"
        if forms > 1
        else "as it ran"
    )
    return (
        f"an equal form, proven {ways} {where} (off by {substitute.worst:.2g} of what is allowed)"
    )


def _source(support: SupportedOperators) -> str:
    version = support.version or "a version that it does not say"
    whole = "" if support.is_whole else "; it does not claim to be whole"
    return printable(f"{version}; {support.source}{whole}")


def _where(ran: Ran) -> str:
    what = "operators of the dispatcher" if ran.of_dispatcher else "functions of torch's API"
    ranks = f" of {ran.ranks} ranks" if ran.ranks > 1 else ""
    devices = f", on {', '.join(ran.devices)}" if ran.devices else ""
    version = f", torch {ran.torch}" if ran.torch else ""
    return f"{what} in {counted(ran.steps, 'step')}{ranks}{version}{devices}"


def _warnings(ran: Ran) -> Iterable[str]:
    if not ran.of_dispatcher:
        yield (
            "recorded were functions of the API: what they call inside and in backward, and what the optimizer calls,"
            " is not known; names are looked up as they are. What records all of it stands at the end"
        )
    if ran.collectives:
        named = ", ".join(f"{one.name} ({one.calls.total()} calls)" for one in ran.collectives)
        yield printable(
            f"not held against the list: {named}, which the process group's backend runs"
        )
    for sentence in ran.not_seen[:_MOST_NOT_SEEN]:
        yield printable(f"not seen: {sentence}")


def _seconds(ran: Ran) -> float:
    return sum(one.seconds for one in ran.operators if one.seconds == one.seconds)


def _of_times(ran: Ran, total_s: float) -> str:
    """What the times are, and are not."""
    missing = sum(one.seconds != one.seconds for one in ran.operators)
    if total_s == 0.0:
        return "time: not known, since no operator was run alone"
    lacking = f"; {counted(missing, 'operator')} could not be" if missing else ""
    return (
        f"time: processor time of each operator run alone here, on one thread and drawn numbers, as a share of their"
        f" sum, {total_s:.3g} s a step{lacking}"
    )


def _row(one: Answered, total_s: float) -> list[str]:
    calls = one.operator.calls
    return [
        one.operator.name,
        _said(one),
        _share(one.operator.seconds, total_s),
        *(str(calls[phase] or "") for phase in _PHASES),
        " ".join(sorted(one.operator.dtypes)),
        _shapes(one.operator.commonest, len(one.operator.forms)),
        _why(one),
    ]


def _share(seconds: float, total_s: float) -> str:
    return f"{seconds / total_s:.1%}" if seconds == seconds and total_s > 0.0 else "-"


def _said(one: Answered) -> str:
    return "" if one.standing is None else one.standing.value


def _why(one: Answered) -> str:
    return "" if one.answer is None else printable(one.answer.why)


def _shapes(form: Form, forms: int) -> str:
    shown = " ".join(str(tensor) for tensor in form[:_MOST_TENSORS])
    cut = " ..." if len(form) > _MOST_TENSORS else ""
    more = f" and {counted(forms - 1, 'form')} more" if forms > 1 else ""
    return f"{shown}{cut}{more}"


def as_values(
    ran: Ran, found: Sequence[Answered], support: SupportedOperators | None
) -> dict[str, Any]:
    """Everything, as values of JSON."""
    standings = Counter(one.standing for one in found)
    return {
        "verdict": "not held against a list" if support is None else _verdict(ran, standings),
        "counts": {one.value: standings[one] for one in SupportStanding},
        "list": None
        if support is None
        else {
            "name": printable(support.name),
            "version": printable(support.version),
            "source": printable(support.source),
            "is_whole": support.is_whole,
        },
        "ran": {
            "level": "aten" if ran.of_dispatcher else "api",
            "steps": ran.steps,
            "ranks": ran.ranks,
            "torch": ran.torch,
            "devices": list(ran.devices),
            "not_seen": list(ran.not_seen),
            "collectives": {one.name: one.calls.total() for one in ran.collectives},
        },
        "operators": [_operator(one) for one in found],
    }


def _operator(one: Answered) -> dict[str, Any]:
    operator = one.operator
    return {
        "operator": operator.name,
        "answer": _said(one) or None,
        "why": _why(one),
        "calls": {phase.value: operator.calls[phase] for phase in _PHASES},
        "seconds": operator.seconds,
        "instead": None if one.alternative is None else _alternative(one.alternative),
        "dtypes": sorted(operator.dtypes),
        "forms": [
            {"count": count, "inputs": [_tensor(tensor) for tensor in form]}
            for form, (count, _) in operator.forms.items()
        ],
    }


def _alternative(alternative: Alternative) -> dict[str, Any]:
    substitute = alternative.substitute
    return {
        **asdict(substitute),
        "form": substitute.form or None,
        "proven": substitute.is_proven,
        "cpu": None if alternative.cpu is None else asdict(alternative.cpu),
    }


def _tensor(tensor: TensorForm) -> dict[str, Any]:
    return {**asdict(tensor), "contiguous": tensor.strides is None}


def csv_rows(found: Sequence[Answered]) -> Iterable[list[Cell]]:
    """A row an operator, as `TITLES` has them."""
    for one in found:
        operator = one.operator
        yield [
            operator.name,
            _said(one),
            _why(one),
            ""
            if one.alternative is None
            else "; ".join(_instead(one.alternative, len(operator.forms))),
            None if operator.seconds != operator.seconds else operator.seconds,
            *(operator.calls[phase] for phase in _PHASES),
            operator.calls.total(),
            " ".join(sorted(operator.dtypes)),
            len(operator.forms),
            "; ".join(" ".join(str(tensor) for tensor in form) for form in operator.forms),
        ]
