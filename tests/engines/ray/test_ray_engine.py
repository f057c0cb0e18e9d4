"""`compare --engine ray` on two nodes gives the answer of one process, also where a node is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from ray_nodes import Nodes

from lockstep.cli.compare import compare
from lockstep.comparison import compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.known_results import Values, Work
from lockstep.engines import computed_ahead, ray_tasks
from lockstep.engines.chosen import at_work
from lockstep.engines.engine_pieces import Job, Piece, StateError, state_of
from lockstep.engines.ray_tasks import RayTasks
from lockstep.store.reader import open_recording
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import Alteration, Array, MadeTraining

_AT_ONCE = (
    "from lockstep.engines import computed_ahead; computed_ahead._WORTH_S = -1.0;"
    "import sys; from lockstep.__main__ import program; sys.exit(program())"
)
"""`lockstep`, which starts workers when a rank differs."""

OPTIONS = {"rule": "error-model", "rerun": True}


def off(value: Array) -> Array:
    return value * np.float32(1.001)


def rounded(value: Array) -> Array:
    return np.nextafter(value, np.float32(np.inf))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started when a rank differs, however little is left."""
    monkeypatch.setattr(computed_ahead, "_WORTH_S", -1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of twelve ranks: a reference, one that rounds otherwise with a fault on rank 7, and an equal one.

    A thirteenth rank trained and was not recorded, so that no whole step can be run again and all is cut into pieces.
    """
    folder = tmp_path_factory.mktemp("ranks")
    alterations: list[dict[str, Alteration]] = [{"relu": rounded} for _ in range(12)]
    alterations[7] = {"relu": off}

    def training(seed: int, **alter: Alteration) -> MadeTraining:
        return MadeTraining(steps=2, seed=seed, whole=True, alter=alter)

    ranks = [training(seed) for seed in range(12)]
    noisy = [training(seed, **alter) for seed, alter in enumerate(alterations)]
    for name, each in (("reference", ranks), ("fault", noisy), ("equal", ranks)):
        recording = write_recording(folder / name, *each, training(12))
        shutil.rmtree(recording / "rank12")
    return folder


def text_of(*arguments: object) -> tuple[int, str]:
    """Exit code and all that `compare` prints."""
    done = CliRunner().invoke(compare, [str(one) for one in arguments], standalone_mode=False)
    assert done.exception is None, done.output
    return int(done.return_value), done.output


@pytest.mark.parametrize("candidate", ["fault", "equal"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_two_nodes_give_the_answer_letter_for_letter(
    folder: Path, nodes: Nodes, candidate: str, form: list[str]
) -> None:
    both = folder / "reference", folder / candidate
    # given what is said without an engine
    alone = text_of(*both, *form)
    assert alone[0] == (1 if candidate == "fault" else 0)
    # when a cluster computes ahead, then the same is said
    assert text_of(*both, *form, "--engine", "ray", "--cluster", nodes.address) == alone


class _Then:
    """An engine that calls something after each piece is submitted."""

    def __init__(self, engine: RayTasks, then: Callable[[], None]) -> None:
        self._engine, self._then = engine, then

    @property
    def workers(self) -> int:
        return self._engine.workers

    @property
    def on_one_machine(self) -> int:
        return self._engine.on_one_machine

    def submit(self, job: Job, piece: Piece | Work) -> Future[Values]:
        result = self._engine.submit(job, piece)
        self._then()
        return result

    def close(self) -> None:
        self._engine.close()


def test_a_node_that_is_lost_changes_nothing(folder: Path, nodes: Nodes) -> None:
    both = folder / "reference", folder / "fault"
    sides = open_recording(both[0]), open_recording(both[1])
    submitted: list[int] = []

    def kill_second() -> None:
        submitted.append(1)
        if len(submitted) == 2:
            nodes.kill(nodes.ids[1])

    # given a node that ends with all that runs there, while pieces are computed
    def engine() -> _Then:
        return _Then(RayTasks(nodes.address, 2), kill_second)

    with at_work(engine, sides, both, (), OPTIONS, told=pytest.fail) as wait:
        found = compare_recordings(*sides, wait=wait)
    nodes.add()
    # then the answer is that of one process
    assert repr(found) == repr(compare_recordings(*both))


def test_a_worker_with_another_version_is_refused_by_name(folder: Path, nodes: Nodes) -> None:
    rank = open_recording(folder / "equal").ranks["rank0"]
    path = str(folder / "equal")
    states = {f"{path}/rank0": state_of(rank)}
    # given a comparison of another version
    engine = RayTasks(nodes.address, 1)
    job = Job(str(folder), path, path, OPTIONS, states=states, version="0.0.1")
    result = engine.submit(job, Piece((("rank0", "rank0"),)))
    # then the worker says both
    error = result.exception()
    engine.close()
    assert isinstance(error, StateError)
    assert "worker " in str(error)
    assert "and the comparison 0.0.1" in str(error)


def test_a_cluster_without_processors_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tasks, "_PATIENCE_S", 1.0)
    # given one that has none
    with pytest.raises(UsageError, match="has had no processor for 1 s"):
        RayTasks("", 0)


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.1:1", "nothing answers there"), ("somewhere", "is no HOST:PORT")],
)
def test_an_address_where_no_cluster_is_is_told(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"--cluster {address}: {words}"):
        RayTasks(address, 1)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Recordings of 64 ranks, of which every eighth rounds otherwise in the second one, and rank 37 has a fault."""
    folder = tmp_path_factory.mktemp("many")
    ranks = [MadeTraining(steps=2, seed=seed) for seed in range(64)]
    altered = [
        MadeTraining(steps=2, seed=seed, alter={"relu": off if seed == 37 else rounded})
        if seed == 37 or seed % 8 == 0
        else one
        for seed, one in enumerate(ranks)
    ]
    return write_recording(folder / "reference", *ranks), write_recording(
        folder / "fault", *altered
    )


def test_one_fault_among_64_ranks_is_named_as_one_process_does(
    many: tuple[Path, Path], nodes: Nodes
) -> None:
    # given what is said without an engine
    alone = text_of(*many, "--json")
    assert alone[0] == 1
    assert {one["rank"] for one in json.loads(alone[1])["origins"]} == {37}
    # when a cluster computes the ranks that differ, then the same is said
    assert text_of(*many, "--json", "--engine", "ray", "--cluster", nodes.address) == alone


def test_a_comparison_that_is_killed_goes_on_on_the_cluster(folder: Path, nodes: Nodes) -> None:
    both = folder / "reference", folder / "fault"
    words = [
        sys.executable,
        "-c",
        _AT_ONCE,
        "compare",
        *both,
        "--json",
        "--engine",
        "ray",
        "--cluster",
        nodes.address,
    ]
    pieces = Path(os.environ["XDG_CACHE_HOME"]) / "lockstep" / "pieces"
    # given a comparison that is killed once the first piece has arrived
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not any(one.stat().st_size for one in pieces.glob("*.jsonl")):
            assert process.poll() is None, process.communicate()
        process.kill()
    (journal,) = pieces.glob("*.jsonl")
    known = [line for line in journal.read_bytes().splitlines() if line]
    # when the same command is given again
    again = subprocess.run(words, capture_output=True, text=True, check=False)
    # then it says what one process says, and no piece is left
    assert known
    assert (again.returncode, again.stdout) == text_of(*both, "--json")
    assert not list(pieces.glob("*.jsonl"))
