"""SARIF: what a code host needs, and fixes that give the very file that migrating gives."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from migrations import BROKEN, SCRIPT, file_of, kept, listed, plan, rewritten, script, source_of

from lockstep_migrate.delivery.sarif import relative_uri, sarif_json, write_sarif
from lockstep_migrate.plan import Edit, FilePlan, Mention, Outcome, Span, apply

LINE_END = re.compile("\r\n|\n|\r")


def help_of(rule: str) -> str:
    """What the rules of these tests mean."""
    return {"methods/cuda": "Moves to a device. Use {device}, see [docs](docs.md)."}.get(rule, "")


def run_of(value: dict[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = value["runs"][0]
    return run


def results_of(value: dict[str, Any], level: str) -> list[dict[str, Any]]:
    return [result for result in run_of(value)["results"] if result["level"] == level]


def offset(text: str, line: int, column: int) -> int:
    """A place by SARIF's words, counted anew: lines and columns from 1."""
    starts = [0, *(match.end() for match in LINE_END.finditer(text))]
    return starts[line - 1] + column - 1


def edit_of(text: str, replacement: dict[str, Any]) -> Edit:
    region = replacement["deletedRegion"]
    start = offset(text, region["startLine"], region["startColumn"])
    end = offset(text, region["endLine"], region["endColumn"])
    return Edit(Span(start, end), replacement["insertedContent"]["text"])


def fixed(text: str, value: dict[str, Any]) -> str:
    """A text after every fix."""
    edits = [
        edit_of(text, replacement)
        for result in run_of(value)["results"]
        for fix in result.get("fixes", ())
        for change in fix["artifactChanges"]
        for replacement in change["replacements"]
    ]
    return apply(text, sorted(edits))


def test_levels_say_what_became_of_a_site() -> None:
    value = sarif_json(plan(failures=(BROKEN,)), help_of)
    assert [result["ruleId"] for result in results_of(value, "note")] == [
        "file/head",
        "methods/cuda",
    ]
    assert [result["ruleId"] for result in results_of(value, "warning")] == ["apex/optimizers"]
    failed = results_of(value, "error")[0]
    assert failed["message"]["text"] == "invalid syntax"
    assert failed["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "old.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 3},
    }
    # and what was kept is nothing to look at
    assert "own/attribute" not in json.dumps(value)


def test_advice_is_a_note() -> None:
    advice = listed(SCRIPT, "FusedAdam(model)", rule="advice/optimizer")
    value = sarif_json(plan(file_of(SCRIPT, advice)), help_of)
    assert [result["ruleId"] for result in results_of(value, "note")] == ["advice/optimizer"]


def test_an_execution_without_failures_says_so() -> None:
    for failures, successful in (((), True), ((BROKEN,), False)):
        run = run_of(sarif_json(plan(failures=failures), help_of))
        assert run["invocations"] == [{"executionSuccessful": successful}]


def test_a_failure_without_a_line_has_no_region() -> None:
    failure = type(BROKEN)(PurePosixPath("data.py"), "holds null bytes")
    place = results_of(sarif_json(plan(failures=(failure,)), help_of), "error")[0]["locations"][0]
    assert "region" not in place["physicalLocation"]


def test_regions_are_lines_and_columns_from_one_with_the_end_behind() -> None:
    warning = results_of(sarif_json(plan(), help_of), "warning")[0]
    region = warning["locations"][0]["physicalLocation"]["region"]
    assert region == {
        "startLine": 4,
        "startColumn": 7,
        "endLine": 4,
        "endColumn": 23,
        "snippet": {"text": "FusedAdam(model)"},
    }


def test_columns_are_code_points_as_declared() -> None:
    text = "x = '\U0001f600ü'; net.cuda()\n"
    value = sarif_json(plan(file_of(text, rewritten(text, "net.cuda()", "n"))), help_of)
    assert run_of(value)["columnKind"] == "unicodeCodePoints"
    region = run_of(value)["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region["startColumn"] == text.index("net") + 1


def test_every_rule_of_a_result_is_declared_with_help() -> None:
    run = run_of(sarif_json(plan(failures=(BROKEN,)), help_of))
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert all(rule["help"]["text"] and rule["shortDescription"]["text"] for rule in rules)
    assert len({rule["id"] for rule in rules}) == len(rules) == 4


def test_texts_hold_no_placeholder_and_no_link() -> None:
    found = listed(SCRIPT, "FusedAdam(model)", reason="d[0](x) and f'cuda:{i}'", replacement="")
    value = sarif_json(plan(file_of(SCRIPT, found)), help_of)
    assert run_of(value)["results"][0]["message"]["text"] == "d[0] (x) and f'cuda:{{i}}'"
    noted = sarif_json(plan(), help_of)
    rules = {rule["id"]: rule for rule in run_of(noted)["tool"]["driver"]["rules"]}
    assert rules["methods/cuda"]["help"]["text"] == (
        "Moves to a device. Use {{device}}, see [docs] (docs.md)."
    )
    assert rules["methods/cuda"]["shortDescription"]["text"] == "Moves to a device"


def test_paths_are_relative_and_encoded() -> None:
    assert relative_uri(PurePosixPath("a b/c:d/ü%.py")) == "a%20b/c%3Ad/%C3%BC%25.py"
    assert relative_uri(PurePosixPath("caf\udce9.py")) == "caf%E9.py"
    value = sarif_json(plan(script("models/my net.py")), help_of)
    place = run_of(value)["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "models/my%20net.py", "uriBaseId": "%SRCROOT%"}


def test_fixes_give_the_migrated_file() -> None:
    assert fixed(SCRIPT, sarif_json(plan(), help_of)) == apply(SCRIPT, script().edits)


def test_a_listed_site_has_no_fix() -> None:
    assert "fixes" not in results_of(sarif_json(plan(), help_of), "warning")[0]


@given(
    st.text(alphabet="ab\u00fc\U0001f600\r\n\t ", min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 5), st.text("xy\n", max_size=4))),
)
def test_fixes_hold_for_any_text_and_any_line_ends(
    text: str, wanted: list[tuple[int, int, str]]
) -> None:
    mentions, end = [], -1
    for start, length, new in sorted(wanted):
        span = Span(start, start + length)
        if start <= end or span.end > len(text):
            continue
        # A place between a carriage return and its line feed is none that lines can name.
        if any(text[at - 1 : at + 1] == "\r\n" for at in (span.start, span.end) if at):
            continue
        end = span.end
        mentions.append(Mention("r/r", Outcome.REWRITTEN, span, "why", edits=(Edit(span, new),)))
    file = FilePlan(PurePosixPath("a.py"), source_of(text), tuple(mentions))
    assert fixed(text, sarif_json(plan(file), help_of)) == apply(text, file.edits)


def test_the_file_is_strict_ascii_json_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("one.sarif", "two.sarif"):
        write_sarif(plan(script("ü\udce9.py")), tmp_path / name, help_of)
    first = (tmp_path / "one.sarif").read_bytes()
    assert first.isascii()
    assert first == (tmp_path / "two.sarif").read_bytes()
    value = json.loads(first)
    assert value["version"] == "2.1.0"
    assert value["$schema"].endswith("sarif-2.1.0.json")


def test_a_plan_without_sites_has_no_results() -> None:
    value = sarif_json(plan(file_of(SCRIPT, kept(SCRIPT, "args.cuda"))), help_of)
    assert run_of(value)["results"] == []
    assert run_of(value)["tool"]["driver"]["rules"] == []
