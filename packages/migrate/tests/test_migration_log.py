"""The log of a migration."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePosixPath

from migrating import plan_of_code
from migrations import BROKEN, SCRIPT, file_of, plan, rewritten, script

from lockstep.core.version import VERSION
from lockstep_migrate.delivery.log import log_lines, write_migration_log
from lockstep_migrate.delivery.reports import write_reports
from lockstep_migrate.plan import Edit, NewFile, Span


def test_the_log_tells_every_site_with_its_place() -> None:
    assert list(log_lines(plan(failures=(BROKEN,)))) == [
        f"lockstep {VERSION} migrate --to neutral",
        "1 file read, 1 changed: 1 site rewritten, 1 listed, 1 kept",
        "",
        "train.py: 1 rewritten, 1 listed, 1 kept",
        "  2 added at the head of the file",
        "    + def accelerator(): ...",
        "  rewritten [methods/cuda] moves to the device that is there",
        "    net.cuda() -> net.to(accelerator()): 3:9",
        "  listed [apex/optimizers] apex.optimizers.FusedAdam has no equal on this target",
        "    instead: torch.optim.Adam(fused=True)",
        "    FusedAdam(model): 4:7",
        "  kept [own/attribute] an option of your own",
        "    args.cuda: 5:1",
        "",
        "failed old.py:3: invalid syntax",
    ]


def test_files_without_sites_and_changes_are_passed_over() -> None:
    lines = list(log_lines(plan(file_of(SCRIPT, path="plain.py"), script())))
    assert not any("plain.py" in line for line in lines)
    assert "2 files read, 1 changed: 1 site rewritten, 1 listed, 1 kept" in lines


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
    assert lines[-1] == "    from a import b -> from c import b: 1:1"


def test_reports_are_no_longer_than_four_times_the_rewritten_text(tmp_path: Path) -> None:
    # given one line of 2000 statements, of which each moves a tensor, and 1000 lines of two sites each
    line = "import torch; x = [" + ", ".join(["torch.zeros(1).cuda()"] * 2000) + "]\n"
    lines = "".join(f"a{n} = b.cuda()\ntorch.cuda.set_device({n})\n" for n in range(1000))
    for code in (line, f"import torch\n{lines}"):
        # when the reports are written
        file = plan_of_code(code)
        paths = write_reports(plan(file), tmp_path / str(len(code)))
        # then all of them together are small beside the result, and the log names every place
        assert sum(path.stat().st_size for path in paths) <= 4 * len(file.migrated())
        assert "37" in paths[-1].read_text()
