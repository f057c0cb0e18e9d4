"""A comparison whose pieces other processes compute gives the answer of one that computes all itself."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import lockstep
from lockstep.cli import comparing
from lockstep.cli.compare import compare
from lockstep.comparison import Wait, compare_recordings
from lockstep.core import known_results
from lockstep.core.errors import CorruptError, UsageError
from lockstep.core.known_results import Kind, Values, Work
from lockstep.engines import computed_ahead, ray_tasks
from lockstep.engines.chosen import at_work, engine_named
from lockstep.engines.engine_pieces import Job, Piece, StateError, computed, state_of
from lockstep.engines.journal import Journal
from lockstep.engines.local_pool import LocalPool
from lockstep.store.reader import Recording, open_recording
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import Alteration, Array, MadeTraining

RANKS = 6
OPTIONS = {"rule": "error-model", "rerun": True}


class Here:
    """Computes pieces in this process, at once; an `Engine`."""

    workers = on_one_machine = 1

    def __init__(self) -> None:
        self.pieces: list[Piece | Work] = []
        self.values: list[Values] = []

    def submit(self, job: Job, piece: Piece | Work) -> Future[Values]:
        """The results, already there."""
        self.pieces.append(piece)
        result: Future[Values] = Future()
        try:
            result.set_result(json.loads(json.dumps(computed(job, piece))))
        except StateError as error:
            result.set_exception(error)
        else:
            self.values.append(result.result())
        return result

    def close(self) -> None:
        """Nothing to let go of."""


class Replays(Here):
    """Has the results of an earlier engine; an `Engine`."""

    def __init__(self, earlier: Here) -> None:
        super().__init__()
        self._values = iter(earlier.values)

    def submit(self, job: Job, piece: Piece | Work) -> Future[Values]:
        """What the earlier one computed."""
        result: Future[Values] = Future()
        result.set_result(next(self._values))
        return result


class Ends(Here):
    """Loses the worker of each piece; an `Engine`."""

    def submit(self, job: Job, piece: Piece | Work) -> Future[Values]:
        """An error."""
        result: Future[Values] = Future()
        result.set_exception(RuntimeError("the machine is gone"))
        return result


def off(value: Array) -> Array:
    return value * np.float32(1.001)


def rounded(value: Array) -> Array:
    return np.nextafter(value, np.float32(np.inf))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started when the first two ranks differ, however little is left."""
    monkeypatch.setattr(computed_ahead, "_WORTH_S", -1.0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of six ranks: a reference, one that rounds otherwise with a fault on rank 3, and an equal one.

    A seventh rank trained and was not recorded, so that no whole step can be run again.
    """
    folder = tmp_path_factory.mktemp("ranks")
    alterations: list[dict[str, Alteration]] = [{"relu": rounded} for _ in range(RANKS)]
    alterations[3] = {"relu": off}

    def training(seed: int, **alter: Alteration) -> MadeTraining:
        return MadeTraining(steps=2, seed=seed, whole=True, alter=alter)

    ranks = [training(seed) for seed in range(RANKS)]
    noisy = [training(seed, **alter) for seed, alter in enumerate(alterations)]
    for name, each in (("reference", ranks), ("fault", noisy), ("equal", ranks)):
        recording = write_recording(folder / name, *each, training(RANKS))
        shutil.rmtree(recording / f"rank{RANKS}")
    return folder


class Net(nn.Module):
    """Two products, of which the second may be off by a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.enter, self.leave, self.factor = nn.Linear(6, 12), nn.Linear(12, 4), factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(torch.relu(self.enter(x)) * self.factor)
        return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Recordings of two trainings on one rank, of which the second multiplies by 1.01 what the first leaves."""
    folder = tmp_path_factory.mktemp("trained")
    for name, factor in (("reference", 1.0), ("candidate", 1.01)):
        torch.manual_seed(0)
        net, batches = Net(factor), torch.Generator().manual_seed(1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with lockstep.record(folder / name, model=net, save="tensors", steps="0:4"):
            for _ in range(4):
                optimizer.zero_grad()
                net(torch.randn(4, 6, generator=batches)).square().mean().backward()
                optimizer.step()
    return folder / "reference", folder / "candidate"


def compared_until_it_waits(
    engine: Here, sides: tuple[Recording, Recording], paths: tuple[Path, Path]
) -> None:
    """Begin a comparison whose process ends when it waits for the first piece."""
    with at_work(lambda: engine, sides, paths, (), OPTIONS, told=pytest.fail) as wait:
        assert wait is not None
        wait(0, "rank0")
        raise KeyboardInterrupt


def journals(cache: Path) -> list[Path]:
    """What a comparison leaves of pieces."""
    return list((cache / "lockstep" / "pieces").glob("*"))


def never_started() -> Here:
    """An engine that tells when it is started."""
    raise UsageError("started")


def text_of(*arguments: object) -> tuple[int, str]:
    """Exit code and all that `compare` prints; the line of the command itself is left out."""
    done = CliRunner().invoke(compare, [str(one) for one in arguments], standalone_mode=False)
    assert done.exception is None, done.output
    return int(done.return_value), done.output


def compared_by(engine: Here, reference: Path, candidate: Path, told: list[str]) -> object:
    sides = open_recording(reference), open_recording(candidate)
    with at_work(
        lambda: engine, sides, (reference, candidate), (), OPTIONS, told=told.append
    ) as wait:
        return compare_recordings(*sides, wait=wait)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("candidate", "form"), [("fault", ["--json"]), ("equal", [])])
def test_a_pool_gives_the_answer_letter_for_letter(
    folder: Path, cache: Path, candidate: str, form: list[str]
) -> None:
    both = folder / "reference", folder / candidate
    # given what is said without an engine
    alone = text_of(*both, *form)
    assert alone[0] == (1 if candidate == "fault" else 0)
    # when two processes compute ahead, then the same is said, and no journal is left
    assert text_of(*both, *form, "--engine", "local", "--workers", 2) == alone
    assert journals(cache) == []


def test_questions_of_the_laws_are_spread_where_whole_steps_can_be_run_again(
    trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, none = Here(), Here()
    # given steps that take less time than starting a worker
    alone = compare_recordings(*trained)
    assert alone.laws is not None
    assert alone.laws.breaches
    assert repr(compared_by(none, *trained, [])) == repr(alone)
    assert none.pieces == []
    # when workers are worth it
    monkeypatch.setattr(computed_ahead, "_WORTH_S", -1.0)
    found = compared_by(engine, *trained, [])
    # then each has a whole question, of all steps but the first, and the answer is the same
    assert not any(isinstance(one, Piece) for one in engine.pieces)
    assert [len(one[Kind.RERUN.value]) for one in engine.values] == [1, 1]
    assert repr(found) == repr(alone)


@pytest.mark.usefixtures("at_once")
def test_questions_of_lost_workers_are_answered_here(trained: tuple[Path, Path]) -> None:
    told: list[str] = []
    # given an engine that loses all its workers
    found = compared_by(Ends(), *trained, told)
    # then the answer is there, and the loss is told once
    assert repr(found) == repr(compare_recordings(*trained))
    assert told == ["workers were lost (the machine is gone); the rest is compared here"]


def test_questions_that_together_take_more_memory_than_they_may_stay_here(
    trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Here()
    monkeypatch.setattr(computed_ahead, "_WORTH_S", -1.0)
    # given a machine on which so many workers share the memory that one comparison may take
    monkeypatch.setattr(Here, "on_one_machine", 10**6)
    # then they are asked nothing
    compared_by(engine, *trained, [])
    assert engine.pieces == []


@pytest.mark.usefixtures("at_once")
def test_few_ranks_are_cut_by_steps(tmp_path: Path) -> None:
    # given one rank whose tensors were not saved whole
    alterations: list[dict[str, Alteration]] = [{}, {"relu": rounded}]
    both = [
        write_recording(tmp_path / name, MadeTraining(steps=2, alter=alter))
        for name, alter in zip(("reference", "candidate"), alterations, strict=True)
    ]
    engine = Here()
    # when it is compared, then each step is a piece, and the answer is the same
    assert repr(compared_by(engine, *both, [])) == repr(compare_recordings(*both))
    assert [one.steps for one in engine.pieces if isinstance(one, Piece)] == [(0,), (1,)]


@pytest.mark.usefixtures("at_once")
def test_nothing_is_sent_to_workers_where_nothing_differs(folder: Path) -> None:
    # given equal recordings, then the comparison ends as it does without an engine, which is not even started
    both = folder / "reference", folder / "equal"
    sides = open_recording(both[0]), open_recording(both[1])
    with at_work(never_started, sides, both, (), OPTIONS, told=pytest.fail) as wait:
        compare_recordings(*sides, wait=wait)


def walked(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walk through two steps of all ranks, of each of which one result takes a second, and all else an hour."""
    clock = [0.0]
    monkeypatch.setattr(computed_ahead.time, "monotonic", lambda: clock[0])
    for place in [(step, number) for step in (0, 1) for number in range(RANKS)]:
        wait(place[0], f"rank{place[1]}")
        assert known_results.find(Kind.DISTANCE, str(place)) is None
        clock[0] += 1.0
        known_results.keep(Kind.DISTANCE, str(place), [1.0])
        clock[0] += 3600.0


@pytest.mark.parametrize(("starting_s", "is_started"), [(9.5, True), (10.5, False)])
def test_an_engine_is_started_where_its_results_take_longer_than_starting_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, starting_s: float, is_started: bool
) -> None:
    both = folder / "reference", folder / "fault"
    sides = open_recording(both[0]), open_recording(both[1])
    # given twelve steps of ranks that differ, of which the first does not count, as it loads what the others use
    monkeypatch.setattr(computed_ahead, "_WORTH_S", starting_s)
    with at_work(never_started, sides, both, (), OPTIONS, told=pytest.fail) as wait:
        assert wait is not None
        # when the second one has shown how long ten others take, then workers are started, or not
        with pytest.raises(UsageError, match="started") if is_started else nullcontext():
            walked(wait, monkeypatch)


@pytest.mark.usefixtures("at_once")
def test_workers_send_distances_and_answers_of_reruns(folder: Path) -> None:
    # given ranks that differ everywhere
    differ = Here()
    compared_by(differ, folder / "reference", folder / "fault", [])
    # then distances and answers are sent
    assert all(one[Kind.DISTANCE.value] for one in differ.values)
    assert any(one[Kind.RERUN.value] for one in differ.values)


def test_a_piece_whose_worker_ends_is_computed_again(folder: Path) -> None:
    # given a pool that has computed a piece
    job = job_of(folder)
    piece = Piece((("rank0", "rank0"),))
    pool = LocalPool(1)
    try:
        first = pool.submit(job, piece).result()
        # when its worker is killed while it has another one
        again = [pool.submit(job, Piece(((f"rank{n}", f"rank{n}"),))) for n in (1, 2)]
        for worker in list(pool._pool._processes.values()):
            worker.kill()
        # then both are computed all the same
        assert all(one.result().keys() == first.keys() for one in again)
    finally:
        pool.close()


@pytest.mark.usefixtures("at_once")
def test_a_comparison_goes_on_alone_where_workers_are_lost_for_good(folder: Path) -> None:
    both, told = (folder / "reference", folder / "fault"), []
    # given an engine that loses all
    found = compared_by(Ends(), *both, told)
    # then the answer is there, and the loss is told once
    assert repr(found) == repr(compare_recordings(*both))
    assert told == ["workers were lost (the machine is gone); the rest is compared here"]


@pytest.mark.usefixtures("at_once")
def test_a_comparison_that_was_killed_goes_on(folder: Path, cache: Path) -> None:
    both = folder / "reference", folder / "fault"
    # given a comparison that ended while it waited, after all pieces but one had come
    first, second = Here(), Here()
    sides = open_recording(both[0]), open_recording(both[1])
    with pytest.raises(KeyboardInterrupt):
        compared_until_it_waits(first, sides, both)
    journal = journals(cache)[0]
    lines = journal.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(first.pieces) == 2
    journal.write_bytes(lines[0] + lines[1][:-10])
    # when the same command is given again
    found = compared_by(second, *both, [])
    # then only the piece that was cut off is computed, and the journal goes
    assert [one.name for one in second.pieces] == [first.pieces[1].name]
    assert repr(found) == repr(compare_recordings(*both))
    assert not journal.exists()


def test_a_journal_is_not_used_for_other_recordings(folder: Path) -> None:
    job = job_of(folder)
    # given the journals of two comparisons that differ in one file
    changed = replace(job, states={**job.states, "a/rank0": "another"})
    # then they are two, as they are with other options
    options = replace(job, options={"rule": "fixed"})
    assert len({Journal(one).path for one in (job, changed, options)}) == 3


@pytest.mark.usefixtures("at_once")
def test_a_tensor_that_changes_after_a_worker_has_read_it_is_an_error(
    tmp_path: Path, folder: Path
) -> None:
    reference = folder / "reference"
    ranks = [
        MadeTraining(steps=2, seed=seed, whole=True, alter={"relu": rounded})
        for seed in range(RANKS)
    ]
    candidate = write_recording(tmp_path / "candidate", *ranks, MadeTraining(steps=2, whole=True))
    shutil.rmtree(candidate / f"rank{RANKS}")
    engine = Here()
    # given pieces that are computed
    compared_by(engine, reference, candidate, [])
    # when a file of a rank is written over, with as many bytes
    file = next((candidate / "rank1").glob("tensors-*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    # then the comparison that has their results does not go on
    with pytest.raises(CorruptError, match="was changed after it was written"):
        compared_by(Replays(engine), reference, candidate, [])


def job_of(folder: Path) -> Job:
    """A job of the two recordings that differ."""
    both = folder / "reference", folder / "fault"
    states = {
        f"{path}/{name}": state_of(rank)
        for path in both
        for name, rank in open_recording(path).ranks.items()
    }
    return Job(str(Path.cwd()), str(both[0]), str(both[1]), OPTIONS, states=states)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "0.0.1"}, "has Lockstep .*, and the comparison 0.0.1; install the same"),
        ({"folder": "/nowhere/at/all"}, "has no folder /nowhere/at/all"),
        ({"candidate": "/nowhere/else"}, "/nowhere/else"),
        ({"states": None}, "rank0 is not the recording that the comparison has"),
    ],
)
def test_a_worker_that_cannot_take_part_is_refused(
    folder: Path, change: dict[str, object], words: str
) -> None:
    job = job_of(folder)
    if "states" in change:
        change = {"states": dict.fromkeys(job.states, "another")}
    # given a worker with another version, without the folder, or with other files; then it says so, and who it is
    with pytest.raises(StateError, match=f"worker .*{words}"):
        computed(replace(job, **change), Piece((("rank0", "rank0"),)))  # type: ignore[arg-type]


@pytest.mark.usefixtures("at_once")
def test_a_refusal_ends_the_comparison(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given workers with another version
    monkeypatch.setattr("lockstep.engines.engine_pieces.VERSION", "0.0.1")
    # then the comparison ends with its sentence
    with pytest.raises(StateError, match=r"has Lockstep 0\.0\.1"):
        compared_by(Here(), folder / "reference", folder / "fault", [])


def test_options_that_belong_to_no_engine_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [str(folder / "reference"), str(folder / "equal")]
    manner = dict.fromkeys(("calibration", "mapping", "memory_bytes"))
    for using, words in (
        (comparing.Using(None, 2), "belong to an engine"),
        (comparing.Using("local", None, "127.0.0.1:1"), "give --engine ray too"),
    ):
        with pytest.raises(UsageError, match=words):
            comparing.compared(
                *map(Path, both), rule="error-model", noise=(), steps="", no_rerun=False,
                using=using, **manner,
            )  # fmt: skip
    # and without Ray, its engine says what to install
    monkeypatch.setattr(ray_tasks.importlib, "import_module", _absent)
    with pytest.raises(UsageError, match=r"pip install 'lockstep-numerics\[cluster\]'"):
        engine_named("ray", workers=None, cluster="")


def _absent(name: str) -> None:
    raise ModuleNotFoundError(name)


def test_ranks_that_are_put_together_are_not_cut(tmp_path: Path) -> None:
    ranks = [MadeTraining(steps=1, seed=seed) for seed in (0, 1)]
    many = open_recording(write_recording(tmp_path / "many", *ranks))
    # given a recording that was made of several ranks
    many.put_together_of = many
    # then nothing is computed ahead
    engine = Here()
    with at_work(
        lambda: engine, (many, many), (many.path,) * 2, (), OPTIONS, told=pytest.fail
    ) as wait:
        assert wait is None
    assert engine.pieces == []
