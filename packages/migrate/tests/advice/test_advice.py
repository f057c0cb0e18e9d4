"""What holds for all advice: it says why, it is told apart, and it stands beside what other rules decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep_migrate.advice import PREFIX, may_need_advice
from lockstep_migrate.advice.words import all_words
from lockstep_migrate.catalogue import Catalogue
from lockstep_migrate.files.collection import collect
from lockstep_migrate.names import has_name
from lockstep_migrate.options import MigrationOptions
from lockstep_migrate.project import plan_collection
from lockstep_migrate.targets import migration_targets


@pytest.mark.parametrize("rule", sorted(all_words()))
def test_every_piece_says_why_and_by_which_source(rule: str) -> None:
    words = all_words()[rule]
    assert rule.startswith(PREFIX)
    assert words.summary.endswith(".")
    assert words.why
    assert words.source
    assert words.equality
    assert set(words.targets) <= {*migration_targets(), "*"}
    assert set(words.written) <= {*words.targets, ""}
    assert Catalogue(migration_targets()["npu"]).words(rule) == words.summary


def test_names_of_the_npu_exist() -> None:
    assert has_name("npu", "torch_npu.contrib.module.Focus")


def test_without_torch_there_is_nothing_to_look_for() -> None:
    assert not may_need_advice("for loss in losses:\n    loss.backward()\n")
    assert not may_need_advice("import torch\n\nx = torch.zeros(3)\n")
    assert may_need_advice("import torch\n\nloss.backward()\n")


def test_advice_is_listed_unless_it_is_asked_for(tmp_path: Path) -> None:
    # given a script without any mention of a device
    text = "from torch.utils.data import DataLoader\ntrain_loader = DataLoader(data, 4)\n"
    (tmp_path / "train.py").write_text(text)
    # when it is migrated without and with --advice-apply
    plain = plan_collection(collect([tmp_path]), MigrationOptions(target="npu", advice=True))
    applied = plan_collection(
        collect([tmp_path]), MigrationOptions(target="npu", advice_apply=True)
    )
    # then only the second changes it, and nothing is said where no advice was asked for
    unasked = plan_collection(collect([tmp_path]), MigrationOptions(target="npu"))
    assert list(unasked.rows()) == []
    assert [row.rule for row in plain.rows()] == ["advice/drop-last"]
    assert not plain.files[0].changed
    assert applied.files[0].migrated().decode() == text.replace("4)", "4, drop_last=True)")


def test_a_notebook_is_given_advice(tmp_path: Path) -> None:
    cell = '"for x in xs:\\n", "    loss = f(x)\\n", "    loss.backward()\\n", "    print(loss)\\n"'
    (tmp_path / "a.ipynb").write_text(
        '{"cells": [{"cell_type": "code", "execution_count": null, "metadata": {}, "outputs": [],'
        f' "source": ["import torch\\n", {cell}]}}], "metadata": {{}}, "nbformat": 4,'
        ' "nbformat_minor": 5}\n'
    )
    plan = plan_collection(collect([tmp_path]), MigrationOptions(target="npu", advice=True))
    assert [row.rule for row in plan.rows()] == ["advice/synchronising-read"]
