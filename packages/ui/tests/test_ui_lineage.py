"""Runs as rows: settings and results, tags and notes, and that the list tells of itself what has changed."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_pages import Served

from lockstep.store.reader import open_recording
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import MadeTraining
from lockstep_ui.notes import NAME, Notes, NotesError
from lockstep_ui.run_settings import options_of, settings_of


@pytest.fixture
def noted(served: Served) -> Iterator[tuple[str, str]]:
    """A run of the list and the origin of its pages; its notes go again."""
    yield served.keys()["reference"], f"http://127.0.0.1:{served.port}"
    (served.folder / NAME).unlink(missing_ok=True)


def test_settings_are_options_of_the_command_then_what_was_recorded(
    lockstep_trained_recording: Path,
) -> None:
    found = settings_of(open_recording(lockstep_trained_recording))

    assert found["optimizer"] == "AdamW"
    assert isinstance(found["optimizer.lr"], float)
    assert "lr" not in found
    assert found["ranks"] == 1
    assert options_of(["t.py", "-x", "--lr=-1e-3", "--shift", "-2", "a=b c", "--flag"]) == {
        "x": True, "lr": -1e-3, "shift": -2, "a": "b c", "flag": True,
    }  # fmt: skip


@pytest.mark.parametrize("typed", ["same", "0.5"])
def test_the_command_s_learning_rate_and_the_optimizer_s_are_two_settings(
    lockstep_trained_recording: Path, typed: str
) -> None:
    # Given two runs, of which one was told a learning rate on its command line
    plain, told = (open_recording(lockstep_trained_recording) for _ in range(2))
    first = settings_of(plain)["optimizer.lr"]
    option = str(first) if typed == "same" else typed
    told.manifest.command = ["python", "train.py", "--lr", option]
    # Then what the optimizer held is the same setting in both, and the option is one of its own
    assert settings_of(told)["optimizer.lr"] == first
    assert settings_of(told)["lr"] == float(option)


def test_an_option_has_one_name_whether_it_was_typed_or_left_at_its_default(
    lockstep_trained_recording: Path,
) -> None:
    # Given two runs of a script that parses --fault, of which one was told it
    plain, told = (open_recording(lockstep_trained_recording) for _ in range(2))
    for run, fault in ((plain, "none"), (told, "backward")):
        next(iter(run.ranks.values())).manifest.configuration = {"arguments": {"fault": fault}}
    told.manifest.command = ["python", "train.py", "--fault", "backward"]
    # Then it is one setting of both
    assert settings_of(plain)["fault"] == "none"
    assert settings_of(told)["fault"] == "backward"
    assert "arguments.fault" not in {**settings_of(plain), **settings_of(told)}
    # And where the script made something else of the option, that is told too
    next(iter(told.ranks.values())).manifest.configuration = {"arguments": {"fault": "forward"}}
    assert settings_of(told)["arguments.fault"] == "forward"


def test_tags_and_a_note_are_kept_beside_the_runs_and_stand_in_the_list(
    served: Served, noted: tuple[str, str]
) -> None:
    key, origin = noted
    asked = {"tags": [" good ", "good", "", "<i>x"], "note": "a \u202e note\ud800"}

    kept = served.post(f"notes/{key}", json.dumps(asked), Origin=origin)

    assert kept.status == 200
    (row,) = [one for one in served.json("runs")["runs"] if one["key"] == key]
    assert row["tags"] == ["good", "<i>x"]
    assert row["note"] == "a \\u202e note\\ud800"  # made visible when it is shown
    assert (
        json.loads((served.folder / NAME).read_text())["runs"]["reference"]["note"] == asked["note"]
    )
    again = served.post(f"notes/{key}", '{"tags": [], "note": ""}', Origin=origin)
    assert again.status == 200
    assert json.loads((served.folder / NAME).read_text())["runs"] == {}


def test_only_pages_of_this_server_may_write_and_only_notes(
    served: Served, noted: tuple[str, str]
) -> None:
    key, origin = noted
    body = '{"tags": ["x"], "note": ""}'

    assert served.post(f"notes/{key}", body).status == 403
    assert served.post(f"notes/{key}", body, Origin="http://evil.example").status == 403
    assert served.post(f"notes/{key}", body, Origin="null").status == 403
    assert served.post(f"notes/{key}", body, Origin=origin, Host="evil.example").status == 421
    assert served.post("runs", body, Origin=origin).status == 405
    assert served.post("notes/../../etc", body, Origin=origin).status == 404
    assert served.post("notes/none", body, Origin=origin).status == 404
    for wrong in (
        "",
        "[]",
        "{",
        '{"tags": [1], "note": ""}',
        '{"tags": ["' + "x" * 70_000 + '"], "note": ""}',
    ):
        assert served.post(f"notes/{key}", wrong, Origin=origin).status == 400
    assert served.get(f"notes/{key}").status in (404, 405)
    assert not (served.folder / NAME).exists()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 2, "runs": {}}',
        '{"schema": 1, "runs": {"a": 3}}',
        "\xff",
    ],
)
def test_a_damaged_or_newer_file_of_notes_is_said_and_not_replaced(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / NAME).write_bytes(text.encode("latin-1"))

    assert NAME in Notes().of(tmp_path / "run")["problem"]
    with pytest.raises(NotesError, match=NAME):
        Notes().keep(tmp_path / "run", {"tags": ["x"], "note": ""})
    assert (tmp_path / NAME).read_bytes() == text.encode("latin-1")


def test_what_comes_and_goes_is_told_without_asking_again(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)
    connection.request("GET", f"/{served.token}/runs/events")
    answer = connection.getresponse()

    def heard() -> set[str]:
        while not (line := answer.readline()).startswith(b"data: "):
            pass
        return {one["name"] for one in json.loads(line[6:])["runs"]}

    try:
        assert answer.getheader("content-type", "").startswith("text/event-stream")
        assert "new one" not in heard()
        write_recording(served.folder / "new one", MadeTraining())
        assert "new one" in heard()
        shutil.rmtree(served.folder / "new one")
        assert "new one" not in heard()
    finally:
        connection.close()
