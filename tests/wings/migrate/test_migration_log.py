"""The log of a migration."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePosixPath

from migrating import plan_of_code
from migrations import BROKEN, SCRIPT, file_of, listed, plan, rewritten, script

from lockstep.core.version import VERSION
from lockstep.wings.migrate.delivery.log import log_lines, write_migration_log
from lockstep.wings.migrate.plan import Edit, NewFile, Span


def test_the_log_tells_every_site_with_its_lines() -> None:
    assert list(log_lines(plan(failures=(BROKEN,)))) == [
        f"lockstep {VERSION} migrate --to neutral",
        "1 file read, 1 changed: 1 site rewritten, 1 listed, 1 kept",
        "",
        "train.py: 1 rewritten, 1 listed, 1 kept",
        "  2 added at the head of the file",
        "    + def accelerator(): ...",
        "  3:9 rewritten [methods/cuda] moves to the device that is there",
        "    - model = net.cuda()",
        "    + model = net.to(accelerator())",
        "  4:7 listed [apex/optimizers] apex.optimizers.FusedAdam has no equal on this target",
        "      opt = FusedAdam(model)",
        "    instead: torch.optim.Adam(fused=True)",
        "  5:1 kept [own/attribute] an option of your own",
        "      args.cuda = 1",
        "",
        "failed old.py:3: invalid syntax",
    ]


def test_files_without_sites_and_changes_are_passed_over() -> None:
    lines = list(log_lines(plan(file_of(SCRIPT, path="plain.py"), script())))
    assert not any("plain.py" in line for line in lines)
    assert "2 files read, 1 changed: 1 site rewritten, 1 listed, 1 kept" in lines


def test_a_site_over_several_lines_shows_all_of_them_and_other_edits_in_them() -> None:
    text = "a = 1\nx = f(\n    net.cuda(),\n    t.cuda(1),\n)\n"
    lines = list(
        log_lines(
            plan(
                file_of(
                    text,
                    listed(text, "f(\n    net.cuda(),\n    t.cuda(1),\n)"),
                    rewritten(text, "t.cuda(1)", "t.to(d)"),
                )
            )
        )
    )
    assert [line for line in lines if line.startswith("      ")] == [
        "      x = f(",
        "          net.cuda(),",
        "          t.cuda(1),",
        "      )",
    ]
    assert "    + t.to(d)," in lines


def test_new_files_are_named_with_their_reason() -> None:
    new = NewFile(PurePosixPath("run.sh"), b"", "starts one process a device")
    assert "new file run.sh: starts one process a device" in log_lines(plan(new_files=(new,)))


def test_the_same_plan_writes_the_same_file_and_hides_control_characters(tmp_path: Path) -> None:
    text = "x = '\x1b[2J'; net.cuda()\n"
    hostile = plan(file_of(text, rewritten(text, "net.cuda()", "n"), path="a\nb.py"))
    for name in ("one.log", "two.log"):
        write_migration_log(hostile, tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("one.log", "two.log"))
    assert first == second
    assert b"\x1b" not in first
    assert b"a\\nb.py: 1 rewritten" in first


def test_what_the_head_gains_is_not_repeated_beside_a_site_that_it_borders_on() -> None:
    text = "from a import b\nb()\n"
    site = rewritten(text, "from a import b", "from c import b")
    file = dataclasses.replace(file_of(text, site), additions=(Edit(Span(16, 16), "import d\n"),))
    lines = list(log_lines(plan(file)))
    assert [line.strip() for line in lines if "import d" in line] == ["+ import d"]
    assert lines[-2:] == ["    - from a import b", "    + from c import b"]


def test_of_a_very_long_line_only_what_is_around_a_site_is_written() -> None:
    # given one line of 400 statements, of which each moves a tensor
    code = "import torch\n" + "; ".join(["x = y.cuda()"] * 400)

    # when it is written down
    lines = list(log_lines(plan(plan_of_code(code, "npu"))))

    # then each site is told, with what is beside it
    assert sum("rewritten [" in line for line in lines) == 400
    assert max(map(len, lines)) < 80
    assert sum(line.startswith("    + ") and "y.npu(); x" in line for line in lines) > 390
