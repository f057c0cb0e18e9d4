"""Print the messages found in logs, as text and as values for JSON."""

from __future__ import annotations

from typing import Any

from lockstep.terminal import (
    Column,
    Page,
    add_line,
    add_more,
    add_paragraph,
    add_table,
    counted,
    printable,
)
from lockstep_check.data_files import filled
from lockstep_check.logs.ascend_operators import AscendOperators
from lockstep_check.logs.known_messages import Role, Severity, known_messages
from lockstep_check.logs.ranking import Told, in_order
from lockstep_check.logs.scan import Findings, Found

_LINE_CHARACTERS = 240
_MOST_LED_TO = 4
_OPERATORS = (
    Column("operator"),
    Column("logged", right=True),
    Column("forms", right=True),
    Column("the first form"),
)
_FORM_CHARACTERS = 60


def headline(findings: Findings) -> str:
    """The answer in one sentence."""
    found = list(findings.found.values())
    counts = {kind: sum(one.severity is kind for one in found) for kind in Severity}
    words = [
        counted(counts[Severity.ERROR], "error"),
        counted(counts[Severity.WARNING], "warning"),
        f"{counts[Severity.HARMLESS]} harmless",
    ]
    told = [word for word, count in zip(words, counts.values(), strict=True) if count]
    looked = _size(findings.looked_bytes)
    if told:
        first = in_order(findings)[0].found
        cause = f". The first cause: {_title(first)}" if first.severity is Severity.ERROR else ""
        return f"Known messages: {', '.join(told)}, in {looked}{cause}"
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


def _add_found(text: Page, told: Told) -> None:
    one = told.found
    times = "" if one.count == 1 else f", {one.count} times, the last at {one.last}"
    rank = "" if one.rank is None else f", rank {one.rank}"
    add_line(text, f"{one.first}  {_line(one)}")
    kind = (
        one.severity.value
        if one.role in (Role.CAUSE, Role.EXCEPTION)
        else f"{one.severity.value}, {one.role.value}"
    )
    paragraphs = [f"{kind}: {_title(one)}{rank}{times}"]
    if told.follows_from is not None:
        reason = told.follows_from
        paragraphs.append(f"explained by: {_title(reason)} ({reason.first})")
    if told.leads_to:
        shown = [f"{_title(one)} (line {one.first.line})" for one in told.leads_to[:_MOST_LED_TO]]
        paragraphs.append(f"leads to: {'; '.join(shown)}")
    if one.frame:
        paragraphs.append(f"code: {printable(one.frame)}")
    texts = {
        "cause": filled(one.message.cause, one.groups),
        "cure": one.cure,
        "source": filled(one.message.source, one.groups),
    }
    paragraphs += [f"{label}: {printable(words)}" for label, words in texts.items()]
    for words in paragraphs:
        add_paragraph(text, words, indent="    ", first="  ")


def _title(one: Found) -> str:
    return printable(filled(one.message.title, one.groups)).rstrip(" :")


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


def _values(told: Told) -> dict[str, Any]:
    one, message, reason = told.found, told.found.message, told.follows_from
    return {
        "id": message.name,
        "severity": one.severity.value,
        "role": one.role.value,
        "title": _title(one),
        "file": one.first.file,
        "line": one.first.line,
        "text": printable(one.text),
        "count": one.count,
        "last": {"file": one.last.file, "line": one.last.line},
        "cause": filled(message.cause, one.groups),
        "cure": one.cure,
        "source": filled(message.source, one.groups),
        "code": one.groups.get("code", ""),
        "rank": one.rank,
        "time": None if one.time is None else one.time.isoformat(),
        "frame": one.frame,
        "explained_by": None
        if reason is None
        else {"id": reason.message.name, "file": reason.first.file, "line": reason.first.line},
    }
