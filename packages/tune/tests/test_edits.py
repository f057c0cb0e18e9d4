"""The edit that settings amount to: the diff applies to the script, and a sentence stands for what no call takes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lockstep_tune.edits import edits
from lockstep_tune.settings import OwnKnob, Settings
from lockstep_tune.tuned_run import Use


def _edited(
    folder: Path, source: str, settings: Settings, *uses: tuple[str, str, int, dict]
) -> str:
    """The source with the added lines of the diff in place of the removed ones."""
    file = folder / "train.py"
    file.write_text(source)
    placed = [Use(name, knob, f"{file}:{line}", given) for name, knob, line, given in uses]
    diff, _ = edits(settings, placed)
    lines = [one for one in diff.splitlines()[2:] if one[:1] in "+ "]
    changed = "\n".join(one[1:] for one in lines)
    ast.parse(changed)
    return changed


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = DataLoader(data, 8)", "x = DataLoader(data, 8, num_workers=2)"),
        ("x = DataLoader(data, num_workers = 0)", "x = DataLoader(data, num_workers = 2)"),
        ("x = DataLoader(data,)", "x = DataLoader(data, num_workers=2)"),
        ("ö = list(utils.DataLoader(data))", "ö = list(utils.DataLoader(data, num_workers=2))"),
        ("x = DataLoader(\n    data,\n)", "x = DataLoader(\n    data, num_workers=2\n)"),
    ],
)
def test_an_argument_is_put_into_the_call(tmp_path: Path, source: str, expected: str) -> None:
    use = ("DataLoader", "workers", 1, {"num_workers": 0})
    assert _edited(tmp_path, source, Settings({"workers": 2}), use) == expected


def test_several_calls_and_kinds_are_edited_in_one_diff(tmp_path: Path) -> None:
    source = "a = DataLoader(d)\nb = AdamW(p, foreach=False)\n"
    settings = Settings({"workers": 2, "optimizer": "fused"})
    changed = _edited(
        tmp_path, source, settings, ("DataLoader", "workers", 1, {}),
        ("AdamW", "optimizer", 2, {"foreach": False, "fused": None}),
    )  # fmt: skip
    assert changed == "a = DataLoader(d, num_workers=2)\nb = AdamW(p, foreach=False, fused=True)"


def test_a_call_that_cannot_be_told_from_another_is_left_to_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("a, b = DataLoader(d), DataLoader(e)\n")
    use = Use("DataLoader", "workers", f"{file}:1", {"num_workers": 0})
    diff, sentences = edits(Settings({"workers": 2}), [use])
    assert diff == ""
    assert sentences[0].startswith("workers=2")


def test_what_no_call_takes_is_a_sentence() -> None:
    settings = Settings(
        {"threads": 2, "compile": "default"}, (OwnKnob("mine", {"A": "1"}, edit="set A"),)
    )
    diff, sentences = edits(settings, [])
    assert diff == ""
    assert [one.partition(":")[0] for one in sentences] == ["threads", "compile", "mine"]
    assert "OMP_NUM_THREADS=2" in sentences[0]
