"""Trainings that are followed now: found while they are, and asked to pause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.following.live_runs import announced, is_paused, live_runs


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "lockstep" / "live"


def test_a_training_is_found_while_it_is_followed_and_pauses_when_asked(tmp_path: Path) -> None:
    with announced(tmp_path, ["python", "a b.py"]):
        (run,) = live_runs()
        assert run.command == ("python", "a b.py")
        assert not run.is_paused
        run.pause()
        assert run.is_paused
        assert is_paused(tmp_path)
        run.go_on()
        run.go_on()
        assert not is_paused(tmp_path)
    assert live_runs() == []


def test_what_a_killed_follower_left_is_taken_away(tmp_path: Path, state: Path) -> None:
    with announced(tmp_path, []):
        (path,) = state.iterdir()
        known = json.loads(path.read_text())
        left = [
            path.with_name(path.name.replace(known["started"][:4], "") + f"-{n}.json")
            for n in range(4)
        ]
        gone = {**known, "recording": str(tmp_path / "gone")}
        texts = (json.dumps({**known, "pid": 2**22 + 1}), json.dumps(gone), "{", "[]")
        for one, text in zip(left, texts, strict=True):
            one.write_text(text)
        assert len(live_runs()) == 1
        assert list(state.iterdir()) == [path]


def test_where_nothing_can_be_kept_it_is_followed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    with announced(tmp_path, ["python"]):
        assert live_runs() == []
