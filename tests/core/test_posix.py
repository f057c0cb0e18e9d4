"""Work that needs Linux is refused in one sentence elsewhere."""

from __future__ import annotations

import sys

import pytest

from lockstep.cli.main import main
from lockstep.core.errors import UsageError
from lockstep.core.posix import check_linux
from lockstep_check.ranks.hang import watch


def test_linux_is_taken_and_macos_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a machine with Linux
    monkeypatch.setattr(sys, "platform", "linux")
    # then nothing is said
    check_linux("this")
    # and on macOS one sentence says what needs Linux
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="this needs Linux"):
        check_linux("this")


def test_work_that_needs_linux_starts_nothing_on_macos(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given macOS
    monkeypatch.setattr(sys, "platform", "darwin")
    # when the cache is started, then it ends at once with the reason
    assert main(["cache", "start"]) == 2
    assert "lockstep cache start needs Linux" in capsys.readouterr().err
    # and no command is run to look for ranks that wait
    with pytest.raises(UsageError, match="check --hang needs Linux"):
        watch([sys.executable, "-c", "raise SystemExit('was run')"], 1.0)
