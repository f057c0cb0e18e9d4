"""A recording of which a part is elsewhere: whatever is asked, it agrees with nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lockstep.cli.main import main
from lockstep.store.partial import marked_as_part
from lockstep.store.reader import open_recording


@pytest.mark.parametrize("options", [[], ["--allow-crash"], ["--steps", "0"], ["--judge", "fixed"]])
def test_a_recording_that_is_here_in_part_agrees_with_nothing(
    options: list[str], lockstep_recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given two equal recordings, of which one says that the rest of it is elsewhere
    whole, part = shutil.copytree(lockstep_recording, tmp_path / "whole"), tmp_path / "part"
    shutil.copytree(lockstep_recording, part)
    manifest = part / "manifest.json"
    data = manifest.read_bytes()
    manifest.write_bytes(marked_as_part(data, "the rest is on gpu1"))
    # when they are compared, on either side
    for sides in ((whole, part), (part, whole)):
        code = main(["compare", *map(str, sides), *options])
        said = " ".join("".join(capsys.readouterr()).split())
        # then they do not agree, and it is said why
        assert code == 2, said
        assert not said.startswith("AGREE")
        assert "the rest is on gpu1" in said
    assert any(
        "a part of the recording: the rest is on gpu1" in one
        for one in open_recording(part).missing
    )
    # and without the note they do
    manifest.write_bytes(data)
    assert main(["compare", str(whole), str(part), *options]) == 0


def test_the_note_is_put_in_once_and_into_recordings_alone(lockstep_recording: Path) -> None:
    data = (lockstep_recording / "manifest.json").read_bytes()
    once = marked_as_part(data, "first")
    assert b"first" not in marked_as_part(once, "second")
    for other in (b"no JSON", b"[]", b'{"schema": 1}'):
        assert marked_as_part(other, "first") == other
