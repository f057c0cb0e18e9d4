"""What may go wrong while pages are open: recordings that go, are huge, old or new, and two who ask at once."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from served_pages import Served

from lockstep.testing.fixtures import FaultyPair
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import MadeTraining
from lockstep_ui.notes import NAME


@dataclass
class Going:
    """Two runs that a test takes away, and where their graph is asked for."""

    folder: Path
    graph: str
    keys: tuple[str, str]


@pytest.fixture
def going(served: Served, lockstep_faulty_pair: FaultyPair, tmp_path: Path) -> Iterator[Going]:
    """In a folder of this test's own: what was compared once at a path is known while nothing changes."""
    folder = served.folder / tmp_path.name
    shutil.copytree(lockstep_faulty_pair.reference, folder / "one")
    shutil.copytree(lockstep_faulty_pair.candidate, folder / "other")
    found = served.keys()
    keys = found[f"{folder.name}/one"], found[f"{folder.name}/other"]
    yield Going(folder, f"compare/{keys[0]}/{keys[1]}/graph", keys)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_recording_that_is_deleted_while_its_graph_is_open_is_said_in_one_sentence(
    served: Served, going: Going
) -> None:
    served.answer(going.graph)
    assert served.get(f"{going.graph}/start?rank=rank0&step=0").status == 200

    shutil.rmtree(going.folder / "other")

    for part in ("start?rank=rank0&step=0", "start?rank=rank0&step=1", "state", ""):
        gone = served.get(f"{going.graph}/{part}" if part else going.graph)
        assert gone.status == 404
        assert len(gone.text.strip().splitlines()) == 1
    assert going.keys[0] in served.keys().values()


@pytest.mark.exhaustive
def test_a_file_that_is_deleted_beneath_a_recording_fails_one_question_alone(
    served: Served, going: Going
) -> None:
    # given a comparison that fails, as tables of a run are gone but its manifest stands
    for table in (going.folder / "other" / "rank0").glob("*.parquet"):
        table.unlink()

    failed = json.loads(served.get(f"{going.graph}/state").text)
    for _ in range(600):
        if "progress" not in failed:
            break
        threading.Event().wait(0.1)
        failed = json.loads(served.get(f"{going.graph}/state").text)

    assert "other" in failed["failed"]
    assert served.get(f"{going.graph}/start?rank=rank0&step=0").status in (400, 500)
    assert served.get("runs").status == 200


@pytest.mark.exhaustive
def test_two_who_ask_at_once_share_one_comparison(served: Served, going: Going) -> None:
    with ThreadPoolExecutor(4) as asking:
        answers = list(asking.map(lambda _: served.answer(going.graph), range(4)))
        graphs = list(
            asking.map(lambda _: served.get(f"{going.graph}/start?rank=rank0&step=1"), range(4))
        )

    assert all(one == answers[0] for one in answers)
    assert {one.status for one in graphs} == {200}
    assert len({one.text for one in graphs}) == 1


def test_of_two_who_write_notes_at_once_none_breaks_the_file(served: Served, going: Going) -> None:
    runs, origin = going.keys, f"http://127.0.0.1:{served.port}"
    bodies = [json.dumps({"tags": [f"t{number}"], "note": "x" * number}) for number in range(12)]

    with ThreadPoolExecutor(6) as writing:
        done = list(
            writing.map(
                lambda at: served.post(f"notes/{runs[at % 2]}", bodies[at], Origin=origin),
                range(12),
            )
        )

    assert {one.status for one in done} == {200}
    kept = json.loads((going.folder / NAME).read_text())["runs"]
    assert set(kept) == {"one", "other"}


@pytest.mark.parametrize("schema", [0, 999, "x", None])
def test_a_recording_of_another_schema_is_listed_with_the_reason(
    served: Served, schema: object
) -> None:
    folder = write_recording(served.folder / "schema", MadeTraining())
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "schema": schema}))
    try:
        (row,) = [one for one in served.json("runs")["runs"] if one["name"] == "schema"]
        assert row["problem"]
        assert served.get(f"curves/names?runs={row['key']}").status == 500
    finally:
        shutil.rmtree(folder)


def test_manifests_and_tables_of_five_gigabytes_are_not_read_for_a_list(served: Served) -> None:
    huge = write_recording(served.folder / "huge", MadeTraining(whole=True))
    manifest = served.folder / "huge-manifest"
    manifest.mkdir()
    with (manifest / "manifest.json").open("wb") as file:
        file.truncate(5 << 30)
    with (huge / "rank0" / "more.safetensors").open("wb") as file:
        file.truncate(5 << 30)
    try:
        rows = {one["name"]: one for one in served.json("runs")["runs"]}
        assert rows["huge-manifest"]["problem"]
        assert not rows["huge"]["problem"]
        used = subprocess.run(["du", "-s", str(huge)], capture_output=True, text=True, check=True)
        assert int(used.stdout.split()[0]) < 1 << 20
    finally:
        shutil.rmtree(huge)
        shutil.rmtree(manifest)


def test_a_folder_that_goes_altogether_leaves_the_others(served: Served, tmp_path: Path) -> None:
    link = served.folder / "link"
    link.symlink_to(tmp_path)  # what lies elsewhere is not followed
    write_recording(tmp_path / "outside", MadeTraining())
    try:
        assert not any("outside" in name for name in list(served.keys()))
    finally:
        link.unlink()
