"""`lockstep search`: a planted best is found; what is killed is taken up; what cannot count does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="needs the extra `search`")

from lockstep.plugin import VERSION
from lockstep_tune.search import searching
from lockstep_tune.search.plan import read_plan
from lockstep_tune.search.ray_trials import LostTrialError
from lockstep_tune.search.searching import Search, attempted
from lockstep_tune.search.study import Outcome, next_trial, open_study
from lockstep_tune.search.trial import Attempt, Came

FILE = """
target: {name: loss}
seed: 0
parameters:
  x: {bounds: [0, 9], type: int}
  wrong: {choice: [0, 5]}
"""
BEST = {"x": 3, "wrong": 0}
LOSS = 'echo "loss: $(( ($2 - 3) * ($2 - 3) + $4 ))"'


@dataclass(frozen=True)
class Place:
    """A folder with a search and a training, which is a line of shell."""

    folder: Path
    programs: Path

    def write(self, training: str = LOSS, file: str = FILE) -> None:
        (self.folder / "search.yaml").write_text(file)
        (self.folder / "train.sh").write_text(f'echo "$@" >> ran\n{training}\n')

    def start(self, *options: str, program: Sequence[str] = ("lockstep",)) -> subprocess.Popen[str]:
        words = [*program, "search", "--config", "search.yaml", "--json", *options, "--", "sh", "train.sh"]  # fmt: skip
        return subprocess.Popen(
            words, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"},
        )  # fmt: skip

    def search(self, *options: str, code: int = 0) -> tuple[dict[str, Any], str]:
        with self.start(*options) as process:
            out, errors = process.communicate(timeout=300)
        assert process.returncode == code, errors
        return json.loads(out) if out else {}, errors

    @property
    def ran(self) -> list[str]:
        return (self.folder / "ran").read_text().splitlines()


@pytest.fixture
def place(tmp_path: Path, programs: Path) -> Place:
    made = Place(tmp_path, programs)
    made.write()
    return made


def _outcomes(values: dict[str, Any]) -> list[str]:
    return [one["outcome"] for one in values["trials"]]


KILLS_ITS_WORKER = f"[ -e killed ] || {{ touch killed; kill -9 $PPID; exit; }}\n{LOSS}"


def test_a_killed_worker_is_replaced_and_its_values_are_tried_again(place: Place) -> None:
    """Given a training that kills the process that runs its trial, once
    When three trials are searched, and then one more in the same folder
    Then all are done, the killed trial's values among them, and the second call runs one alone."""
    place.write(KILLS_ITS_WORKER)

    first, errors = place.search("--trials", "3")
    ran = len(place.ran)
    second, _ = place.search("--trials", "4")

    assert sorted(_outcomes(first)) == ["done", "done", "done", "lost"]
    assert "its values are tried again" in errors
    assert ran == 4
    assert place.ran[0] in place.ran[1:]
    assert len(place.ran) == 5
    assert second["trials"][:4] == first["trials"]


def test_a_training_that_ends_with_its_node_has_not_failed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a trial whose training ends as one that is terminated
    place.write("exit 143")
    monkeypatch.chdir(place.folder)
    monkeypatch.setattr(searching, "node_here", lambda: "node")
    plan = read_plan(place.folder / "search.yaml")
    study = open_study(plan, place.folder)
    trial = next_trial(study, plan, place.folder)
    assert trial is not None
    search = Search(plan, ("sh", "train.sh"), place.folder)
    # then it has failed where its node goes on
    assert attempted(search, trial.number, VERSION).outcome is Outcome.FAILED
    # and is lost where the process of the node is gone
    parents = iter([1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 2))
    with pytest.raises(LostTrialError, match="ends, and has ended the training"):
        attempted(search, trial.number, VERSION)


@pytest.mark.exhaustive
def test_thirty_trials_over_two_processes_survive_a_kill_and_find_the_best(place: Place) -> None:
    place.write(KILLS_ITS_WORKER, file=FILE.replace("[0, 9]", "[0, 19]"))

    values, _ = place.search("--trials", "30", "--processes", "2")

    assert _outcomes(values).count("done") == 30
    assert values["best"]["parameters"] == BEST


def _values_of(found: dict[str, Any]) -> list[str]:
    return [json.dumps(one["parameters"], sort_keys=True) for one in found["trials"]]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
@pytest.mark.parametrize("processes", ["1", "3"])
def test_no_values_are_tried_twice(place: Place, sampler: str, processes: str) -> None:
    """Given eight sets of values and a seed
    When twenty trials are asked for
    Then each set is tried once, and the search says that none is left."""
    file = FILE.replace("[0, 9]", "[0, 3]").replace(
        "seed: 0", f"seed: 1\ntuner: {{name: {sampler}}}"
    )
    place.write(file=file)

    found, errors = place.search("--trials", "20", "--processes", processes)

    assert len(set(place.ran)) == len(place.ran) == 8
    assert len(set(_values_of(found))) == len(found["trials"]) == 8
    assert "each once" in errors


def test_processes_with_a_seed_draw_different_numbers(place: Place) -> None:
    place.write(
        'echo "loss: 1"', FILE.replace("{bounds: [0, 9], type: int}", "{bounds: [0.0, 1.0]}")
    )

    found, _ = place.search("--trials", "12", "--processes", "3", "--seed", "1")

    assert len({one["parameters"]["x"] for one in found["trials"]}) == 12


def test_a_seed_and_one_process_give_the_same_trials(place: Place) -> None:
    first, _ = place.search("--trials", "14", "--seed", "4", "-o", "first")
    again, _ = place.search("--trials", "14", "--seed", "4", "-o", "again")
    other, _ = place.search("--trials", "14", "--seed", "5", "-o", "other")

    assert _values_of(first) == _values_of(again)
    assert _values_of(first) != _values_of(other)


@pytest.mark.exhaustive
def test_a_killed_search_goes_on_and_leaves_no_training(place: Place) -> None:
    """Given a search whose training waits
    When the search is killed, and started again with a training that does not wait
    Then the waiting training is ended, and its values are tried again."""
    started, never = place.folder / "started", place.folder / "never"
    os.mkfifo(started)
    os.mkfifo(never)
    place.write("echo $$ > started; read x < never")

    program = [sys.executable, "-m", "lockstep"]  # its own process, which can be killed
    with place.start("--trials", "2", program=program) as process:
        waiting = int(started.read_text())
        process.kill()
    place.write()
    values, errors = place.search("--trials", "2")

    assert sorted(_outcomes(values)) == ["done", "done", "lost"]
    assert "its process was killed" in errors
    with pytest.raises(ProcessLookupError):
        os.kill(waiting, 0)


@pytest.mark.exhaustive
def test_a_different_search_in_the_same_folder_is_refused(place: Place) -> None:
    place.search("--trials", "1")
    place.write(file=FILE.replace("[0, 9]", "[0, 99]"))

    _, errors = place.search("--trials", "2", code=2)

    assert "holds a search of different values" in errors
    assert len(place.ran) == 1


@pytest.mark.exhaustive
def test_a_command_that_always_fails_ends_the_search(place: Place) -> None:
    secret = "sk-" + "a1B2" * 8
    place.write(f"echo no data for --api-key {secret} >&2; exit 7")

    values, errors = place.search("--trials", "20", code=2)

    assert _outcomes(values) == ["failed"] * 3
    assert values["trials"][0]["reason"].startswith("exit code 7: no data for --api-key ")
    for kept in ("search.json", "journal.log"):
        assert secret not in (place.folder / "searched" / kept).read_text()
    assert "the command failed in each of the first trials" in errors


TRAINING = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
if sys.argv[4] == "wrong":
    model[1].register_forward_hook(lambda module, inputs, result: result * 1.01)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
for step in range(9):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 4)).square().mean()
    loss.backward()
    optimizer.step()
print("loss:", loss.item())
"""


@pytest.mark.exhaustive
def test_a_trial_that_leaves_the_reference_by_a_fault_or_overflows_is_infeasible(
    tmp_path: Path, programs: Path
) -> None:
    """Given a reference, and trials with a different learning rate, a wrong operator, and a rate that overflows
    When each is run
    Then the first alone has a value, and the other two name the operator."""
    script, reference = tmp_path / "train.py", tmp_path / "ref"
    script.write_text(TRAINING)
    command = [str(programs / "python"), str(script)]
    subprocess.run(
        [programs / "lockstep", "record", "-o", reference, "--", *command, "--lr", "0.1", "--act", "right"],
        check=True, capture_output=True,
    )  # fmt: skip
    parameters = "parameters: {lr: {choice: [0.2]}, act: {choice: [right]}}"

    def tried(more: str, lr: float, act: str) -> Came:
        file = tmp_path / "search.yaml"
        file.write_text(f"target: {{name: loss}}\n{parameters}\n{more}\n")
        folder = tmp_path / f"{lr}-{act}-{len(more)}"
        folder.mkdir()
        values = {"lr": lr, "act": act}
        return Attempt(
            read_plan(file), command, values, folder, lambda step, loss: step == 1, lambda: True
        ).run()

    sound, faulty = (tried(f"reference: {reference}", 0.2, act) for act in ("right", "wrong"))
    overflows = tried("rules: [not-finite]", 1e30, "right")
    cut = tried("prune: {by: median}", 0.2, "right")

    assert sound.outcome is Outcome.DONE
    assert faulty.outcome is Outcome.INFEASIBLE
    assert "fault at" in faulty.words
    assert "mul" in faulty.words
    assert overflows.outcome is Outcome.INFEASIBLE
    assert "not-finite in step" in overflows.words
    assert cut.outcome is Outcome.PRUNED


Run = Callable[..., Came]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run one trial of a line of shell, in this process."""

    def attempt(training: str, target: str = "{name: loss}", limit_s: float | None = None) -> Came:
        file = tmp_path / "search.yaml"
        file.write_text(f"target: {target}\nparameters: {{x: {{choice: [1]}}}}\n")
        command = ["sh", "-c", training, "sh"]
        plan = read_plan(file)
        return Attempt(
            plan, command, {"x": 1}, tmp_path, lambda step, loss: False, lambda: True, limit_s
        ).run()

    return attempt


@pytest.mark.parametrize(
    ("training", "target", "value"),
    [
        ("echo loss: 3; echo step 2, loss=2.5e-1", "{name: loss}", 0.25),
        ("echo loss: 3; echo loss: 4", "{name: loss, take: best}", 3.0),
        ("echo loss: 3; echo loss: 4", "{name: loss, take: best, goal: maximize}", 4.0),
        ("echo acc@1 77.5%", "{name: top, printed: 'acc@1 ([0-9.]+)'}", 77.5),
        ("echo '{\"a\": 1}' > $0/m; echo '{\"a\": 2, \"b\": 9}' >> $0/m", "{name: a, jsonl: '{folder}/m'}", 2.0),
    ],
)  # fmt: skip
def test_the_objective_is_read_where_the_file_says(
    run: Run, tmp_path: Path, training: str, target: str, value: float
) -> None:
    came = run(training.replace("$0", str(tmp_path)), target)

    assert came == Came(Outcome.DONE, value)


@pytest.mark.parametrize(
    ("training", "target", "outcome", "words"),
    [
        ("echo accuracy: 1", "{name: loss}", Outcome.FAILED, "nothing printed matches"),
        ("echo 1", "{name: loss, jsonl: nowhere}", Outcome.FAILED, "loss is not in nowhere"),
        ("echo 1", "{name: loss, tensorboard: nowhere}", Outcome.FAILED, "loss is not in nowhere"),
        ("echo loss: nan", "{name: loss}", Outcome.INFEASIBLE, "loss is nan"),
        ("echo loss: 1; echo bad data >&2; exit 3", "{name: loss}", Outcome.FAILED, "exit code 3: bad data"),
        ("kill -9 $$", "{name: loss}", Outcome.FAILED, "exit code 137: it printed nothing"),
    ],
)  # fmt: skip
def test_a_trial_without_an_objective_says_why(
    run: Run, training: str, target: str, outcome: Outcome, words: str
) -> None:
    came = run(training, target)

    assert (came.outcome, came.value) == (outcome, None)
    assert words in came.words
