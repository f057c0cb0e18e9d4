"""A migration as SARIF 2.1.0 (OASIS standard), which code hosts show beside the lines it speaks of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from lockstep.files import replacing
from lockstep.plugin import VERSION
from lockstep_migrate.delivery.rows import HEAD, RULES, UNREADABLE, is_advice
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.plan import Edit, Failure, FilePlan, Mention, Outcome, Plan, Span

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT_ID = "%SRCROOT%"
"""What paths are relative to: the folder that was migrated."""

_LEVELS = {Outcome.LISTED: "warning", Outcome.DIFFERS: "warning", Outcome.REWRITTEN: "note"}
_SNIPPET_CHARACTERS = 500

Json = dict[str, Any]


def write_sarif(plan: Plan, path: Path, help_of: Callable[[str], str]) -> None:
    """Write `sarif_json` as strict JSON text, ASCII only; a file that is there is replaced.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with replacing(path) as aside:
        aside.write_text(json.dumps(sarif_json(plan, help_of), allow_nan=False) + "\n")


def sarif_json(plan: Plan, help_of: Callable[[str], str]) -> Json:
    """Sites as notes where rewritten, warnings where listed or of another meaning; failures as errors.

    Positions are those of the files before migrating, columns in Unicode code points. What was kept needs
    nothing and is left out.

    Parameters
    ----------
    plan
        What becomes of the files.
    help_of
        What a rule identifier means, in words; empty where nobody knows.
    """
    results = [result for file in plan.files for result in _of_file(file)]
    results += [_of_failure(failure) for failure in plan.failures]
    rules = sorted({result["ruleId"] for result in results})
    places = {rule: place for place, rule in enumerate(rules)}
    for result in results:
        result["ruleIndex"] = places[result["ruleId"]]
    driver = {
        "name": "Lockstep migrate",
        "version": VERSION,
        "rules": [_rule(rule, RULES.get(rule) or help_of(rule)) for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "newlineSequences": ["\r\n", "\n", "\r"],
        "originalUriBaseIds": {ROOT_ID: {"description": {"text": "The folder that was migrated."}}},
        "invocations": [{"executionSuccessful": not plan.failures}],
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def relative_uri(path: PurePosixPath) -> str:
    """A path as a relative reference (RFC 3986), also where its name is no text."""
    return quote(os.fsencode(str(path)), safe="/")


def _of_file(file: FilePlan) -> Iterator[Json]:
    if file.additions:
        first = min(edit.span for edit in file.additions)
        message = "The other changes of this file need this at its head."
        yield _of_place(HEAD, "note", message, file, first, file.additions)
    for mention in sorted(file.mentions, key=lambda mention: mention.span):
        level = _LEVELS.get(mention.outcome)
        if level is not None:
            level = "note" if is_advice(mention.rule) else level
            yield _of_place(
                mention.rule, level, _message(mention), file, mention.span, mention.edits
            )


def _of_failure(failure: Failure) -> Json:
    place: Json = {"artifactLocation": _location(failure.path)}
    if failure.line:
        place["region"] = {"startLine": failure.line}
    return _result(UNREADABLE, "error", _message_text(failure.reason), place)


def _of_place(
    rule: str, level: str, message: str, file: FilePlan, span: Span, edits: Sequence[Edit]
) -> Json:
    region = _region(file.source, span)
    if span.start < span.end:
        snippet = file.source.text[span.start : span.end]
        region["snippet"] = {"text": snippet[:_SNIPPET_CHARACTERS]}
    place = {"artifactLocation": _location(file.path), "region": region}
    result = _result(rule, level, message, place)
    if edits:
        result["fixes"] = [_fix(file, edits, message)]
    return result


def _result(rule: str, level: str, message: str, place: Json) -> Json:
    return {
        "ruleId": rule,
        "ruleIndex": -1,  # until all rules are known
        "level": level,
        "message": {"text": message},
        "locations": [{"physicalLocation": place}],
    }


def _rule(rule: str, words: str) -> Json:
    text = _message_text(words) or rule
    return {"id": rule, "shortDescription": {"text": _first_sentence(text)}, "help": {"text": text}}


def _message(mention: Mention) -> str:
    instead = f" Instead: {mention.replacement}" if mention.replacement else ""
    return _message_text(f"{mention.reason}{instead}") or mention.rule


def _fix(file: FilePlan, edits: Sequence[Edit], message: str) -> Json:
    replacements = [
        {
            "deletedRegion": _region(file.source, edit.span),
            "insertedContent": {"text": edit.text},
        }
        for edit in sorted(edits)
    ]
    change = {"artifactLocation": _location(file.path), "replacements": replacements}
    return {"description": {"text": message}, "artifactChanges": [change]}


def _location(path: PurePosixPath) -> Json:
    return {"uri": relative_uri(path), "uriBaseId": ROOT_ID}


def _region(source: SourceText, span: Span) -> Json:
    """Lines and columns of a span; the end column is the one behind it, as SARIF has it."""
    line, column = source.position(span.start)
    end_line, end_column = source.position(span.end)
    return {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}


def _first_sentence(words: str) -> str:
    return words.split(". ")[0]


def _message_text(words: str) -> str:
    """Words as a plain text message: no placeholder ({0}), no link ([text](target))."""
    line = " ".join(words.split())
    return line.replace("{", "{{").replace("}", "}}").replace("](", "] (")
