"""What was found in logs, as text and as values for JSON."""

from __future__ import annotations

from typing import Any

from lockstep.core.text import printable
from lockstep.report.paragraphs import Page, add_line, add_paragraph, counted
from lockstep.report.table import Column, add_more, add_table
from lockstep.wings.check.data_files import filled
from lockstep.wings.check.logs.ascend_operators import AscendOperators
from lockstep.wings.check.logs.known_messages import Severity, known_messages
from lockstep.wings.check.logs.scan import Findings, Found

_LINE_CHARACTERS = 240
_ORDER = list(Severity)
_OPERATORS = (
    Column("operator"),
    Column("logged", right=True),
    Column("forms", right=True),
    Column("the first form"),
)
_FORM_CHARACTERS = 60


def in_order(findings: Findings) -> list[Found]:
    """Errors first, then warnings, each as they came: the first error is mostly the one that the others come from."""
    return sorted(findings.found.values(), key=lambda one: _ORDER.index(one.message.severity))


def headline(findings: Findings) -> str:
    """The answer in one sentence."""
    found = list(findings.found.values())
    counts = {kind: sum(one.message.severity is kind for one in found) for kind in Severity}
    words = [
        counted(counts[Severity.ERROR], "error"),
        counted(counts[Severity.WARNING], "warning"),
        f"{counts[Severity.HARMLESS]} harmless",
    ]
    told = [word for word, count in zip(words, counts.values(), strict=True) if count]
    looked = _size(findings.looked_bytes)
    if told:
        return f"Known messages: {', '.join(told)}, in {looked}"
    return f"None of the {len(known_messages())} known messages is in these {looked}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count} bytes"


def render(findings: Findings, *, limit: int) -> Page:
    """The headline, every message with cause and cure, and the operators of an Ascend log."""
    text = Page()
    add_paragraph(text, headline(findings), indent="  ", first="")
    found = in_order(findings)
    for one in found[:limit]:
        add_line(text, "")
        _add_found(text, one)
    if len(found) > limit:
        add_line(text, "")
    add_more(text, len(found) - limit)
    _add_operators(text, findings.operators, limit=limit)
    if findings.not_read:
        add_line(text, "")
    for name, why in findings.not_read.items():
        add_paragraph(text, f"not looked at: {printable(name)} {why}", first="")
    return text


def _add_found(text: Page, one: Found) -> None:
    message = one.message
    times = "" if one.count == 1 else f", {one.count} times, the last at {one.last}"
    add_line(text, f"{one.first}  {_line(one)}")
    add_paragraph(
        text, f"{message.severity.value}: {message.title}{times}", indent="    ", first="  "
    )
    for label in ("cause", "cure", "source"):
        words = filled(getattr(message, label), one.groups)
        add_paragraph(text, f"{label}: {words}", indent="    ", first="  ")


def _line(one: Found) -> str:
    line = printable(one.text)
    return line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]} ..."


def _add_operators(text: Page, operators: AscendOperators, *, limit: int) -> None:
    if not operators.by_type:
        return
    rows = [
        (
            name,
            one.lines,
            len(one.forms),
            one.examples[0][:_FORM_CHARACTERS] if one.examples else "",
        )
        for name, one in operators.most_logged()
    ]
    add_line(text, "")
    add_line(text, f"Operators that the host log has ({counted(len(rows), 'type')})")
    add_table(text, _OPERATORS, rows, limit=limit, indent="  ")
    words = (
        "An operator of many forms is compiled for each: give its tensors one shape, or pad them."
    )
    if operators.format_casts:
        times = counted(operators.format_casts, "TransData operator")
        words += f" {times} only change a format: give the operators around them one format."
    add_paragraph(text, words)


def as_values(findings: Findings) -> dict[str, Any]:
    """The same for JSON, every message in full."""
    return {
        "looked_bytes": findings.looked_bytes,
        "known": len(known_messages()),
        "findings": [_values(one) for one in in_order(findings)],
        "operators": [
            {"type": name, "logged": one.lines, "forms": len(one.forms), "examples": one.examples}
            for name, one in findings.operators.most_logged()
        ],
        "forms_not_counted": findings.operators.not_counted,
        "not_read": findings.not_read,
    }


def _values(one: Found) -> dict[str, Any]:
    message = one.message
    return {
        "id": message.name,
        "severity": message.severity.value,
        "title": message.title,
        "file": one.first.file,
        "line": one.first.line,
        "text": printable(one.text),
        "count": one.count,
        "last": {"file": one.last.file, "line": one.last.line},
        "cause": filled(message.cause, one.groups),
        "cure": filled(message.cure, one.groups),
        "source": message.source,
    }
