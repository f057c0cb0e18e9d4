"""Every identifier of a rule that the sources name is explained, and every explanation is of a rule that exists."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lockstep_migrate
from lockstep_migrate.catalogue import Catalogue
from lockstep_migrate.delivery.rows import RULES as RULES_OF_FILES
from lockstep_migrate.targets import migration_targets
from lockstep_migrate.torch.table import table_of

SOURCES = Path(lockstep_migrate.__file__).parent
CLAIMS = ("claim", "rewrite", "list", "keep", "supersede", "suggest", "offer", "_list", "Mention")


@pytest.mark.parametrize("target", ["neutral", "npu", "xpu", "hpu", "mps"])
def test_every_rule_that_claims_a_place_is_explained(target: str) -> None:
    known = Catalogue(migration_targets()[target])
    named = {rule for file in sorted(SOURCES.rglob("*.py")) for rule in _claimed(file)}
    # then the sources name many rules, and each has words of its own, not only those of its topic
    assert len(named) > 40
    explained = {entry.rule for entry in known} | RULES_OF_FILES.keys()
    assert {rule for rule in named if rule not in explained} == set()


@pytest.mark.parametrize("target", ["neutral", "npu", "xpu", "hpu", "mps"])
def test_every_row_of_the_tables_is_explained(target: str) -> None:
    device = migration_targets()[target]
    known = Catalogue(device)
    for entry in table_of(device).entries:
        assert known.words(entry.rule).startswith(entry.name)


def test_words_are_one_line_and_stand_once() -> None:
    entries = list(Catalogue(migration_targets()["npu"]))
    assert len({entry.rule for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.words.strip() == entry.words
        assert "\n" not in entry.words


def test_nothing_is_said_of_a_rule_that_no_source_names() -> None:
    texts = "".join(
        file.read_text()
        for pattern in ("*.py", "*.csv", "*.json")
        for file in SOURCES.rglob(pattern)
        if file.name != "catalogue.py"
    )
    names = {entry.rule for entry in table_of(migration_targets()["npu"]).entries}
    for entry in Catalogue(migration_targets()["npu"]):
        topic, _, name = entry.rule.partition("/")
        assert entry.rule in names or entry.rule in texts or (topic in texts and name in texts), (
            f"{entry.rule} is explained, but no rule is called so"
        )


def _claimed(file: Path) -> Iterator[str]:
    """Identifiers that a call which claims a place is given, as a literal or by a constant of the module."""
    tree = ast.parse(file.read_text())
    constants = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name not in CLAIMS:
            continue
        for argument in [*node.args, *(item.value for item in node.keywords)]:
            value = constants.get(argument.id) if isinstance(argument, ast.Name) else None
            if isinstance(argument, ast.Constant):
                value = argument.value
            if isinstance(value, str) and _is_rule(value):
                yield value


def _is_rule(text: str) -> bool:
    topic, separator, name = text.partition("/")
    return bool(separator) and topic.isidentifier() and name.replace("-", "").isalnum()
