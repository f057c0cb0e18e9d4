"""The summary of a migration on the terminal."""

from __future__ import annotations

import io
from pathlib import PurePosixPath

import pytest
from migrations import BROKEN, SCRIPT, file_of, kept, listed, plan, rewritten, script
from rich.console import Console

from lockstep.report.paragraphs import WIDTH
from lockstep_migrate.delivery import screen as migration_text
from lockstep_migrate.delivery.screen import Delivery, print_migration, render_migration
from lockstep_migrate.plan import FilePlan, NewFile, Plan

NOWHERE = Delivery(next_command="lockstep migrate train.py -o OUT")


def lines_of(found: Plan, delivery: Delivery = NOWHERE, *, show_all: bool = False) -> list[str]:
    return render_migration(found, delivery, show_all=show_all).plain.splitlines()


def large_file(number: int) -> FilePlan:
    """Fifty sites, ten of them listed for reasons of their own."""
    text = "".join(f"x{line} = thing{line}.cuda()\n" for line in range(50))
    mentions = [
        listed(text, f"thing{line}.cuda()", reason=f"reason {number}/{line}", replacement="")
        if line % 5 == 0
        else rewritten(text, f"thing{line}.cuda()", "y")
        for line in range(50)
    ]
    return file_of(text, *mentions, path=f"models/part_{number:02}.py")


def test_a_preview_says_what_would_change_and_what_to_type_next() -> None:
    assert lines_of(plan()) == [
        "PREVIEW for neutral: 1 of 1 file would change; nothing is written",
        "       1  rewritten",
        "       1  left to a person",
        "       1  kept: names of your own, prose, code that runs on any device",
        "",
        "Needs a person",
        "  1 x FusedAdam(model): apex.optimizers.FusedAdam has no equal on this target ->",
        "  torch.optim.Adam(fused=True) (train.py:4)",
        "",
        "Files",
        "  rewritten  listed    kept",
        "          1       1       1  train.py",
        "",
        "Next",
        "  lockstep migrate train.py -o OUT",
    ]


def test_what_was_written_is_said() -> None:
    lines = lines_of(plan(), Delivery("out", ("out/changes.csv", "out/unsupported.csv")))
    assert lines[0] == "MIGRATED to neutral in out: 1 of 1 file changed"
    assert lines[-3:] == ["Wrote", "  out/changes.csv", "  out/unsupported.csv"]


def test_a_sound_twin_names_nothing_that_needs_a_person() -> None:
    clean = plan(file_of(SCRIPT, rewritten(SCRIPT, "net.cuda()", "net.to(d)")))
    text = render_migration(clean, NOWHERE).plain
    assert "person" not in text
    assert "Could not be read" not in text


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (plan(file_of("import os\n")), "nothing in 1 file is tied to CUDA"),
        (Plan("npu"), "no file was found"),
    ],
    ids=["no site", "no file"],
)
def test_nothing_to_do_is_said(found: Plan, words: str) -> None:
    assert lines_of(found)[0] == f"NOTHING TO MIGRATE: {words}"


def test_failed_and_new_files_are_named() -> None:
    new = NewFile(PurePosixPath("run.sh"), b"", "starts one process a device")
    lines = lines_of(plan(failures=(BROKEN,), new_files=(new,)))
    assert lines[lines.index("Could not be read") + 1] == "  old.py:3: invalid syntax"
    assert lines[lines.index("New") + 1] == "  run.sh: starts one process a device"
    assert "       1  failed: files that could not be read" in lines


def test_two_thousand_sites_are_one_readable_page() -> None:
    # given 400 places for 400 reasons in 40 files
    large = plan(*(large_file(number) for number in range(40)))
    # when reports were written
    lines = lines_of(large, Delivery("out", unsupported="out/unsupported.csv"))
    # then the first of each are shown and the rest is told where to find
    assert len(lines) < 60
    assert f"  and {400 - migration_text.GROUPS} more places in out/unsupported.csv" in lines
    assert f"  and {40 - migration_text.FILES} more with --all" in lines
    # and without reports the option is named that shows them
    assert any("more places with --all" in line for line in lines_of(large))


def test_all_shows_every_place_and_what_was_kept() -> None:
    large = plan(*(large_file(number) for number in range(4)), script())
    text = render_migration(large, NOWHERE, show_all=True).plain
    places = [line for line in text.splitlines() if line.startswith("      models/part_")]
    assert len(places) == 40
    assert "      train.py:5  args.cuda" in text
    assert "more" not in text


def test_reasons_that_many_places_share_come_first() -> None:
    text = "a.cuda()\nb.cuda()\nc.cuda()\n"
    rare = listed(text, "a.cuda()", reason="rare", replacement="")
    often = [listed(text, f"{name}.cuda()", reason="often", replacement="") for name in "bc"]
    lines = lines_of(plan(file_of(text, rare, *often)))
    start = lines.index("Needs a person") + 1
    assert lines[start : start + 2] == [
        "  2 x b.cuda() and the like: often (train.py:2 and 1 more)",
        "  1 x a.cuda(): rare (train.py:1)",
    ]


def test_what_was_not_read_is_counted_and_with_all_named() -> None:
    found = Delivery(
        not_read=(".git: holds no sources of its own", "data: a link out of the folder")
    )
    lines = lines_of(plan(), found)
    assert (
        "  2 paths: caches, environments, links, data or earlier output; --all names each" in lines
    )
    assert "  data: a link out of the folder" in lines_of(plan(), found, show_all=True)
    assert "Not read" not in lines_of(plan())


def test_places_are_found_from_the_current_folder() -> None:
    lines = lines_of(plan(failures=(BROKEN,)), Delivery(prefix="project/"))
    assert "  torch.optim.Adam(fused=True) (project/train.py:4)" in lines
    assert "  project/old.py:3: invalid syntax" in lines
    assert any(line.endswith("  project/train.py") for line in lines)


def test_advice_is_told_apart_from_what_needs_a_person() -> None:
    text = "a.cuda()\nb.view().contiguous()\n"
    advice = listed(
        text, "b.view().contiguous()", rule="advice/view", reason="faster", replacement=""
    )
    found = plan(file_of(text, advice))
    lines = lines_of(found)
    assert "       1  advice: a faster form exists" in lines
    assert lines[lines.index("Advice (--advice-apply writes what is equal)") + 1] == (
        "  1 x b.view().contiguous(): faster (train.py:2)"
    )
    assert "Needs a person" not in lines
    assert not any("left to a person" in line for line in lines)


def test_lines_keep_to_the_width_and_hold_no_control_characters() -> None:
    text = "a.cuda()\n"
    reason = "words " * 60 + "\x1b[31m"
    lines = lines_of(plan(file_of(text, listed(text, "a.cuda()", reason=reason), path="\x1b.py")))
    assert max(map(len, lines)) <= WIDTH
    assert not any("\x1b" in line for line in lines)


def test_piped_output_has_no_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_migration(plan(file_of(SCRIPT, kept(SCRIPT, "args.cuda"))), NOWHERE)
    assert "\x1b" not in capsys.readouterr().out
    # and a terminal gets some
    terminal = io.StringIO()
    monkeypatch.setattr(
        migration_text, "OutputConsole", lambda: Console(file=terminal, force_terminal=True)
    )
    print_migration(plan(), NOWHERE)
    assert "\x1b" in terminal.getvalue()
