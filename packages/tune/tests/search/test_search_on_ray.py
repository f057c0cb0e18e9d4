"""`lockstep search --engine ray` on two nodes: no trial runs twice and none is lost, also where a node is.

Ray is no part of `make test`: `make test-cluster` installs it and runs these.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

pytest.importorskip("optuna", reason="needs the extra `search`")

sys.path.insert(0, str(Path(__file__).parents[3] / "serve" / "tests" / "serve_cluster"))

from ray_nodes import Nodes, nodes_of_ray

from lockstep.errors import UsageError
from lockstep_tune.search import ray_trials
from lockstep_tune.search.plan import Resources, read_plan
from lockstep_tune.search.ray_trials import RayTrials
from lockstep_tune.search.searching import Search, attempted

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="make test-cluster has Ray"),
]

WHOLE_NODE = 16
"""Processors of a node: a trial that takes them all has it for itself."""

FILE = f"""
target: {{name: loss}}
seed: 0
resources: {{cpus: {WHOLE_NODE}}}
parameters:
  x: {{bounds: [0, 99], type: int}}
  wrong: {{choice: [0, 5]}}
"""

TRAINING = """echo "$@" >> ran
echo > began
flock --shared hold true
echo "loss: $(( ($2 - 3) * ($2 - 3) + $4 ))"
"""
"""Tells that it has begun, and waits while somebody has the lock of `hold`."""

TRIALS = 24


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with nodes_of_ray(2) as found:
        yield found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "search.yaml").write_text(FILE)
    (tmp_path / "train.sh").write_text(TRAINING)
    for name in ("hold", "ran"):
        (tmp_path / name).touch()
    os.mkfifo(tmp_path / "began")
    with (tmp_path / "began").open("r+b", buffering=0):  # no training waits for a reader
        yield tmp_path


@pytest.fixture
def hold(place: Path) -> Iterator[BinaryIO]:
    """Trainings wait until this is closed."""
    with (place / "hold").open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield opened


@contextmanager
def started(place: Path, nodes: Nodes) -> Iterator[subprocess.Popen[str]]:
    words = [
        sys.executable, "-m", "lockstep", "search", "--config", "search.yaml", "--json", "--trials", str(TRIALS),
        "--processes", "2", "--engine", "ray", "--cluster", nodes.address, "--", "sh", "train.sh",
    ]  # fmt: skip
    with subprocess.Popen(
        words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as search:
        try:
            yield search
        finally:
            search.kill()


def wait_for_trainings(place: Path, search: subprocess.Popen[str], count: int) -> None:
    """Return when so many trainings have begun."""
    ends = os.pidfd_open(search.pid)
    with (place / "began").open("r+b", buffering=0) as began:
        while len((place / "ran").read_text().splitlines()) < count:
            assert search.poll() is None, search.communicate()
            ready, _, _ = select.select([began, ends], [], [])
            if began in ready:
                began.read(1)
    os.close(ends)


def answer(search: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, errors = search.communicate(timeout=200)
    assert search.returncode == 0, errors
    trials: list[dict[str, Any]] = json.loads(out)["trials"]
    return trials


def check_each_ran_once(place: Path, trials: list[dict[str, Any]], lost: int) -> None:
    done = [json.dumps(one["parameters"]) for one in trials if one["outcome"] == "done"]
    given_up = [json.dumps(one["parameters"]) for one in trials if one["outcome"] == "lost"]
    assert len(done) == len(set(done)) == TRIALS
    assert len(given_up) == lost
    assert set(given_up) <= set(done)
    assert len((place / "ran").read_text().splitlines()) == TRIALS + lost


def test_the_trial_of_a_lost_node_is_tried_again(place: Path, nodes: Nodes, hold: BinaryIO) -> None:
    # given two trials, each on a node of its own, of which one is lost
    with started(place, nodes) as search:
        wait_for_trainings(place, search, 2)
        nodes.kill(nodes.ids[1])
        nodes.add()
        wait_for_trainings(place, search, 3)
        hold.close()
        trials = answer(search)
    # then all are done, each once, but for the one that was lost
    check_each_ran_once(place, trials, lost=1)


def test_a_search_that_is_killed_goes_on(place: Path, nodes: Nodes, hold: BinaryIO) -> None:
    # given a search that is killed with two trials at work
    with started(place, nodes) as search:
        wait_for_trainings(place, search, 2)
        search.kill()
    # when the same command is given again
    with started(place, nodes) as search:
        wait_for_trainings(place, search, 4)
        hold.close()
        trials = answer(search)
    # then all are done, those two again
    check_each_ran_once(place, trials, lost=2)


def test_a_node_with_a_different_version_is_refused(place: Path, nodes: Nodes) -> None:
    plan = read_plan(place / "search.yaml")
    ray = RayTrials(nodes.address, plan.resources, 1, attempted)
    try:
        with pytest.raises(UsageError, match=r"node .*and the search 0\.0\.1; install the same"):
            ray.run(Search(plan, ("sh", "train.sh"), place), 0, "0.0.1")
    finally:
        ray.close()


def test_a_cluster_without_room_for_a_trial_is_told(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_trials, "_PATIENCE_S", 1.0)
    with pytest.raises(UsageError, match=r"no node .* has had 17 CPU and 2 GPU for 1 s"):
        RayTrials(nodes.address, Resources(WHOLE_NODE + 1, 2), 1, attempted)


@pytest.mark.parametrize(
    ("address", "words"),
    [("127.0.0.1:1", "nothing answers there"), ("somewhere", "is no HOST:PORT")],
)
def test_an_address_where_no_cluster_is_is_told(address: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"--cluster {address}: {words}"):
        RayTrials(address, Resources(), 1, attempted)
