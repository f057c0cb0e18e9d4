"""The word that ends a training."""

from __future__ import annotations

from pathlib import Path

from lockstep.following.last_step import LastStep, ask_for_last_step, last_step_in


def test_what_was_asked_for_last_is_read(tmp_path: Path) -> None:
    # Given a recording in which nobody has asked for anything
    assert last_step_in(tmp_path) is None
    # When a training is let go on, and then asked to end with some sites whole
    ask_for_last_step(tmp_path, LastStep())
    assert last_step_in(tmp_path) == LastStep()
    ended = LastStep(7, ("encoder.*", "[[]x]"), "/elsewhere/é")
    ask_for_last_step(tmp_path, ended)
    # Then the last word is read, and what is no word is none
    assert last_step_in(tmp_path) == ended
    (tmp_path / ".last-step").write_text("{")
    assert last_step_in(tmp_path) is None
