"""A user's own rules: the format of the source document, read strictly, carried out with minimal edits."""

from __future__ import annotations

import ast
import json
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import UsageError
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import FilePlan
from lockstep_migrate.targets import migration_targets
from lockstep_migrate.torch.python import migrate_python
from lockstep_migrate.torch.table import Table, table_of
from lockstep_migrate.torch.unit import OwnNames, Settings, Unit
from lockstep_migrate.torch.user_matching import find_user_rules
from lockstep_migrate.torch.user_rules import (
    UserRule,
    parse_user_rules,
    read_user_rules,
)


def ArgumentRule(function: str, index: int, new: str) -> UserRule:  # noqa: N802
    return UserRule("ArgsModifyRule", function, new, index)


def FunctionRule(old: str, new: str) -> UserRule:  # noqa: N802
    return UserRule("FuncNameModifyRule", old, new)


def ModuleRule(old: str, new: str, parent: str) -> UserRule:  # noqa: N802
    return UserRule("ModuleNameModifyRule", f"{parent}.{old}" if parent else old, new)


TARGET = MigrationTarget("none", "", "", has_name=lambda name: True)


def result(text: str, *rules: UserRule) -> FilePlan:
    """What the rules make of a module, without any built-in rule."""
    source = SourceText(text.encode(), text, "utf-8")
    unit = Unit(
        ModuleScopes(source, ast.parse(text)),
        Settings(TARGET, Table(TARGET, ()), user_rules=rules),
        OwnNames(),
    )
    find_user_rules(unit)
    edits = [edit for mention in unit.mentions for edit in mention.edits]
    additions = tuple(unit.header.additions(edits))
    return FilePlan(PurePosixPath("a.py"), source, tuple(unit.mentions), additions)


def changed(text: str, *rules: UserRule) -> str:
    """The module after the rules, which change nothing the second time."""
    new = result(text, *rules).migrated().decode()
    again = result(new, *rules)
    assert again.migrated().decode() == new
    return new


AMP = ModuleRule("amp", "new_amp", "torch.cuda")


# -- reading


def document(**families: Any) -> str:
    return json.dumps({"rules": families})


def test_the_document_of_the_source_is_read() -> None:
    text = """{
        "rules": {
            "ArgsModifyRule": [
                {"func_name": "name1", "arg_idx": 0, "arg_new": "agrs0"},
                {"func_name": "name2", "arg_idx": 0, "arg_new": "agrs0"}
            ],
            "FuncNameModifyRule": [{"old_name": "func", "new_name": "new_func"}],
            "ModuleNameModifyRule": [
                {"old_name": "module", "new_name": "new_module", "parent_module":"parent_module"}
            ]
        }
    }"""
    assert parse_user_rules(text, "rules.json") == (
        ArgumentRule("name1", 0, "agrs0"),
        ArgumentRule("name2", 0, "agrs0"),
        FunctionRule("func", "new_func"),
        ModuleRule("module", "new_module", "parent_module"),
    )


def test_families_may_be_left_out_and_a_rule_twice_counts_once() -> None:
    assert parse_user_rules('{"rules": {}}', "rules.json") == ()
    rule = {"old_name": "a", "new_name": "b"}
    assert parse_user_rules(document(FuncNameModifyRule=[rule, rule]), "r") == (
        FunctionRule("a", "b"),
    )


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text('{"rules": {}}', encoding="utf-8-sig")
    assert read_user_rules(path) == ()


FUNCTION = {"old_name": "a", "new_name": "b"}
ARGUMENT = {"func_name": "f", "arg_idx": 0, "arg_new": "x"}
MODULE = {"old_name": "a", "new_name": "b", "parent_module": "p"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "r.json:1: is not JSON"),
        ("\n\n]", "r.json:3: is not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "is not a file of rules"),
        ('{"rules": []}', "is not a file of rules"),
        ('{"rules": {}, "rules": {}}', "the key 'rules' stands twice"),
        ('{"rules": {}, "more": 1}', "unknown key 'more'"),
        (document(FuncNameModify=[]), "rules: unknown key 'FuncNameModify'"),
        (document(FuncNameModifyRule={}), "FuncNameModifyRule: expected a list"),
        (document(FuncNameModifyRule=[1]), "FuncNameModifyRule, rule 1: expected an object"),
        (
            document(FuncNameModifyRule=[FUNCTION, {"old_name": "c"}]),
            "FuncNameModifyRule, rule 2: lacks new_name",
        ),
        (document(FuncNameModifyRule=[FUNCTION | {"x": 1}]), "rule 1: unknown key 'x'"),
        (document(FuncNameModifyRule=[FUNCTION | {"old_name": 3}]), "old_name is 3"),
        (document(FuncNameModifyRule=[FUNCTION | {"old_name": "a."}]), "old_name is 'a.'"),
        (document(FuncNameModifyRule=[FUNCTION | {"new_name": "class"}]), "new_name is 'class'"),
        (document(FuncNameModifyRule=[FUNCTION | {"new_name": "f()"}]), "new_name is 'f()'"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_idx": "0"}]), "arg_idx is '0'"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_idx": True}]), "arg_idx is True"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_idx": -1}]), "arg_idx is -1"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_new": ""}]), "arg_new is ''"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_new": "a, b"}]), "arg_new is 'a, b'"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_new": "a=b"}]), "arg_new is 'a=b'"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_new": "*a"}]), "arg_new is '*a'"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_new": "a # b"}]), "arg_new is 'a # b'"),
        (document(ArgsModifyRule=[ARGUMENT | {"arg_new": "a), (b"}]), "arg_new is"),
        (document(ModuleNameModifyRule=[MODULE | {"old_name": "a.b"}]), "the last name alone"),
        (document(ModuleNameModifyRule=[FUNCTION]), "rule 1: lacks parent_module"),
    ],
)
def test_what_is_not_of_the_format_is_named_with_its_place(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"^r\.json") as raised:
        parse_user_rules(text, "r.json")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("families", "words"),
    [
        (
            {"FuncNameModifyRule": [FUNCTION, FUNCTION | {"new_name": "c"}]},
            "a becomes both b and c",
        ),
        (
            {"ArgsModifyRule": [ARGUMENT, ARGUMENT | {"arg_new": "y"}]},
            "argument 0 of f becomes both x and y",
        ),
        (
            {"FuncNameModifyRule": [FUNCTION, {"old_name": "b", "new_name": "c"}]},
            "FuncNameModifyRule b would change b again",
        ),
        (
            {"FuncNameModifyRule": [FUNCTION, {"old_name": "m.b", "new_name": "c"}]},
            "FuncNameModifyRule m.b would change b again",
        ),
        (
            {"ModuleNameModifyRule": [MODULE, MODULE | {"old_name": "b", "new_name": "c"}]},
            "ModuleNameModifyRule p.b would change p.b again",
        ),
        (
            {
                "ModuleNameModifyRule": [MODULE],
                "FuncNameModifyRule": [{"old_name": "f", "new_name": "p.a.g"}],
            },
            "ModuleNameModifyRule p.a would change p.a.g again",
        ),
    ],
)
def test_rules_that_contradict_each_other_are_refused(families: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_user_rules(document(**families), "r.json")
    assert words in str(raised.value)


def test_rules_for_one_place_at_two_depths_are_accepted() -> None:
    text = document(
        ModuleNameModifyRule=[MODULE],
        FuncNameModifyRule=[{"old_name": "p.a.f", "new_name": "g"}],
    )
    assert parse_user_rules(text, "r.json")[0].result == "p.a.g"


def test_a_missing_file_and_a_foreign_encoding_are_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_user_rules(tmp_path / "missing.json")
    (tmp_path / "latin.json").write_bytes(b'{"rules": {}, "\xe9": 1}')
    with pytest.raises(UsageError, match="UTF-8"):
        read_user_rules(tmp_path / "latin.json")


# -- function names


def test_a_builtin_may_be_renamed_and_an_own_one_is_left() -> None:
    assert changed("print(1)", FunctionRule("print", "log")) == "log(1)"
    assert changed("print = f\nprint(1)", FunctionRule("print", "log")) == "print = f\nprint(1)"


# -- module names


# -- arguments


def test_nothing_inside_a_replaced_argument_is_touched_by_later_rules() -> None:
    text = "import m\nm.func(x.cuda())"
    source = SourceText(text.encode(), text, "utf-8")
    tree = ast.parse(text)
    rules = (ArgumentRule("m.func", 0, "new"),)
    settings = Settings(TARGET, Table(TARGET, ()), user_rules=rules)
    unit = Unit(ModuleScopes(source, tree), settings, OwnNames())
    find_user_rules(unit)
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)][1]
    assert inner.attr == "cuda"
    assert unit.is_claimed(inner)


# -- everything outside the edits


def test_line_ends_and_comments_stay() -> None:
    text = "import m  # ä\r\n\r\nm.func(\r\n\ta,  # one\r\n\tb)\r\n"
    assert changed(text, FunctionRule("m.func", "g"), ArgumentRule("m.func", 1, "n")) == (
        "import m  # ä\r\n\r\nm.g(\r\n\ta,  # one\r\n\tn)\r\n"
    )


NAMES = st.sampled_from(["a", "b", "c", "d"])
LINES = st.sampled_from(
    [
        "import a\n", "import a.b\n", "import a.b as c\n", "from a import b\n", "from a import b as d\n",
        "from a.b import c, d\n", "from b import *\n", "a.b.c(d, 1)\n", "b.c(a)\n", "c(1, 2)\n", "d = a.b\n",
        "def c(a): return b.a(a)\n", "class d:\n    def b(self): self.b(1); c.b(2)\n", "x = [b for b in a.b()]\n",
    ]
)  # fmt: skip


@given(
    st.lists(LINES, max_size=8).map("".join),
    st.tuples(NAMES, NAMES, NAMES),
    st.integers(0, 1),
)
def test_any_module_still_parses_and_a_second_run_changes_nothing(
    text: str, names: tuple[str, str, str], index: int
) -> None:
    first, second, third = names
    for rules in (
        (FunctionRule(first, "new"),),
        (FunctionRule(f"{first}.{second}", "new"), ArgumentRule(third, index, "(0)")),
        (FunctionRule(f"{first}.{second}", "other.place"),),
        (ModuleRule(first, "new", second), FunctionRule(f"{second}.{first}.{third}", "newer")),
        (ModuleRule(first, "new", ""),),
    ):
        once = result(text, *rules).migrated().decode()
        ast.parse(once)
        assert result(once, *rules).migrated().decode() == once


# -- beside the built-in rules


def migrated(text: str, *rules: UserRule) -> str:
    """The module after all rules, for the neutral target."""
    target = migration_targets()["neutral"]
    settings = Settings(target, table_of(target), user_rules=rules)
    source = SourceText(text.encode(), text, "utf-8")
    found = migrate_python(source, settings, OwnNames())
    file = FilePlan(PurePosixPath("a.py"), source, found.mentions, found.additions)
    return file.migrated().decode()


@pytest.mark.parametrize(
    ("text", "rule", "after"),
    [
        (
            "import torch\ntorch.cuda.is_available()\n",
            FunctionRule("torch.cuda.is_available", "is_bf16_supported"),
            "import torch\ntorch.cuda.is_bf16_supported()\n",
        ),
        (
            "from torch.cuda.amp import autocast\nwith autocast(): pass\n",
            AMP,
            "from torch.cuda.new_amp import autocast\nwith autocast(): pass\n",
        ),
        ("x.cuda()\n", FunctionRule("cuda", "npu"), "x.npu()\n"),
        (
            "import m\nm.place(x.cuda())\n",
            ArgumentRule("m.place", 0, "x"),
            "import m\nm.place(x)\n",
        ),
    ],
    ids=["name", "import", "method", "argument"],
)
def test_a_users_rule_wins_over_a_built_in_one(text: str, rule: UserRule, after: str) -> None:
    without_head = [line for line in migrated(text, rule).splitlines() if line in after]
    assert "\n".join(without_head) == after.strip()
    # and without it the built-in one holds
    assert after.splitlines()[-1] not in migrated(text).splitlines()


def test_a_module_without_a_device_is_changed_by_a_users_rule_only() -> None:
    text = "import m\nm.f()\n"
    assert migrated(text, FunctionRule("m.f", "g")) == "import m\nm.g()\n"
    assert migrated(text) == text


def test_the_head_that_an_earlier_run_wrote_is_left_alone() -> None:
    # given a bare rule for a function that the head calls too
    rule = FunctionRule("device_count", "is_there")
    once = migrated("import torch\nx.cuda()\ntorch.cuda.device_count()\n", rule)
    assert "torch.accelerator.device_count()" in once
    assert "torch.cuda.is_there()" in once
    # then a second run changes nothing
    assert migrated(once, rule) == once
