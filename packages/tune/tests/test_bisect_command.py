"""`lockstep bisect` of real trainings: each planted cause is found by itself, in few trials."""

from __future__ import annotations

import json
import math
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep_tune.switches import SWITCHES

_TRAINING = """
import os, sys, torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
torch.manual_seed(0)
scale = float(os.environ.get("SCALE", "1"))
if os.environ.get("MODE") == "new" and os.environ.get("LEVEL", "2") == "2":
    scale *= 3
left = os.path.join(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "."), "left by a run")
if "cached" in sys.argv:
    scale *= 1 if os.path.exists(left) else 2
    os.makedirs(os.path.dirname(left), exist_ok=True)
    open(left, "w").close()
planted = sys.argv[1:]
class Up(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x)
class Down(torch.nn.Linear):
    def forward(self, x):
        wrong = "amp" in planted and torch.is_autocast_enabled("cpu")
        wrong |= "attention" in planted and torch.backends.cuda.flash_sdp_enabled()
        wrong |= "onednn" in planted and torch._C._get_mkldnn_enabled()
        wrong |= "tf32" in planted and torch.get_float32_matmul_precision() == "high"
        wrong |= "nondeterministic" in planted and not torch.are_deterministic_algorithms_enabled()
        wrong |= "compile" in planted and torch.compiler.is_compiling()
        return super().forward(x) * (1.5 if wrong else 1.0)
model = torch.nn.Sequential(Up(8, 16), torch.nn.Tanh(), Up(16, 16), Down(16, 1))
model = torch.compile(model) if "compile" in planted else model
if "tf32" in planted:
    torch.set_float32_matmul_precision("high")
model = model * 2 if "crash" in planted else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
if "optimizer" in planted:
    def heavier(one, *_):
        if one.param_groups[0]["foreach"]:
            for parameter in model.parameters():
                parameter.grad.mul_(1.5)
    register_optimizer_step_pre_hook(heavier)
for _ in range(2):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled="amp" in planted):
        loss = model(torch.randn(4, 8)).float().square().mean() * scale
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Bench:
    """A script and the recording of it as it should be."""

    folder: Path
    programs: Path

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["lockstep", *arguments], cwd=self.folder, capture_output=True, text=True, timeout=300,
            env=os.environ | {"PATH": path} | variables,
        )  # fmt: skip

    def bisect(self, *arguments: str, planted: str = "", **variables: str) -> dict[str, Any]:
        ended = self.run(
            "bisect", "ref", "--json", *arguments, "--", "python", "train.py", *planted.split(), **variables
        )  # fmt: skip
        assert ended.stdout, ended.stderr
        return {**json.loads(ended.stdout), "code": ended.returncode}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Bench:
    folder = tmp_path_factory.mktemp("bisected")
    (folder / "train.py").write_text(_TRAINING)
    made = Bench(folder, programs)
    recorded = made.run(
        "record", "-o", "ref", "--steps", "0", "--exit-after", "--", "python", "train.py"
    )
    assert recorded.returncode == 0, recorded.stderr
    return made


def _bound(count: int) -> float:
    """How many trials a search among so many may take."""
    return 2 * math.log2(count) + 4


@pytest.mark.sampled(5)
@pytest.mark.parametrize("switch", ["attention", "onednn", "optimizer", "tf32", "nondeterministic"])
def test_one_switch_of_all_is_found_in_few_trials(bench: Bench, switch: str) -> None:
    found = bench.bisect(planted=switch)
    assert found["code"] == 1
    assert [one["name"] for one in found["switches"]] == [switch]
    assert len(found["trials"]) <= _bound(len(SWITCHES))
    # and alone it makes the difference
    alone = next(one for one in found["trials"] if one["state"] == f"without {switch}")
    assert alone["outcome"] == "agrees"


@pytest.mark.exhaustive
def test_the_module_that_must_not_be_16_bits_is_found(bench: Bench) -> None:
    found = bench.bisect("--switch", "amp", planted="amp")
    assert found["code"] == 1
    within = found["searched"][-1]
    assert (within["what"], within["adds"]) == ("autocast by module", "16 bits in 3")
    assert len(found["trials"]) <= _bound(4)


@pytest.mark.exhaustive
def test_what_dynamo_captures_otherwise_is_found(bench: Bench) -> None:
    found = bench.bisect("--switch", "compile", planted="compile")
    within = found["searched"][-1]
    assert (within["agrees"], within["differs"]) == ("without compile", "backend eager")
    assert len(found["trials"]) <= _bound(5)


def test_a_command_that_agrees_is_said_to_and_searched_no_further(bench: Bench) -> None:
    found = bench.bisect()
    assert (found["code"], len(found["trials"])) == (0, 1)
    assert found["headline"].startswith("AGREE")


def test_a_cause_that_is_no_switch_is_not_blamed_on_one(bench: Bench) -> None:
    found = bench.bisect("--switch", "onednn", "--switch", "amp", SCALE="3")
    assert (found["code"], found["switches"]) == (2, [])
    assert found["headline"].startswith("NOT FOUND")


def test_what_was_not_searched_and_what_the_trials_named_is_said(bench: Bench) -> None:
    ended = bench.run("bisect", "ref", "--switch", "onednn", "--", "python", "train.py", SCALE="3")
    words = " ".join(ended.stdout.split())
    assert "Not searched: packages and Python (--python)" in words
    assert "without onednn differs: DIVERGED" in words
    assert "is 3" in words or "in the candidate" in words


def test_a_command_that_crashes_could_not_be_told(bench: Bench) -> None:
    found = bench.bisect("--switch", "onednn", planted="crash")
    assert found["code"] == 2
    assert found["headline"].startswith("NOT TOLD: as it is could not be compared")


def test_a_search_that_is_interrupted_logs_no_trial_for_it(bench: Bench, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    ended = bench.run(
        "bisect", "ref", "-o", str(log), "--env", "A=1,2", "--", "sh", "-c", "kill -INT $$"
    )
    assert ended.returncode == 130
    assert len(log.read_text().splitlines()) == 1  # what is searched


def test_the_value_of_a_variable_is_found(bench: Bench) -> None:
    found = bench.bisect("--env", "SCALE=1,1.0,1.00,2,2.0")
    searched = found["searched"][-1]
    assert (found["code"], searched["agrees"], searched["differs"]) == (1, "SCALE=1.00", "SCALE=2")
    assert len(found["trials"]) <= _bound(5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("texts", "culprits", "together"),
    [
        (["SCALE=1,2", "MODE=old,older"], ["SCALE"], []),
        (["MODE=old,older", "SCALE=1,2"], ["SCALE"], []),
        (["SCALE=1,2", "MODE=old,new"], ["SCALE", "MODE"], []),
        (["LEVEL=1,2", "SCALE=1,1.0", "MODE=old,new"], ["MODE"], ["LEVEL"]),
        (["SCALE=2,1.0,1"], ["SCALE"], []),
        (["SCALE=2,1,3"], ["SCALE"], []),
        (["LEVEL=2", "MODE=old,new"], ["MODE"], []),
    ],
)
def test_all_variables_are_searched_in_whatever_order_they_stand(
    bench: Bench, texts: list[str], culprits: list[str], together: list[str]
) -> None:
    found = bench.bisect(*(word for one in texts for word in ("--env", one)))
    assert found["code"] == 1
    assert [one["name"] for one in found["switches"]] in (culprits, [])
    assert all(one in found["headline"] for one in culprits)
    assert found["together_with"] == together
    assert len(found["trials"]) <= _bound(len(texts)) + 2


@pytest.mark.parametrize("texts", [["SCALE=1,1.0", "MODE=old,older"], ["MODE=new,old", "LEVEL=1"]])
def test_variables_that_change_nothing_are_not_blamed(bench: Bench, texts: list[str]) -> None:
    found = bench.bisect(*(word for one in texts for word in ("--env", one)))
    assert (found["code"], found["switches"]) == (0, [])
    assert found["headline"].startswith("AGREE")


def test_no_trial_takes_what_another_run_left_in_the_caches_of_compile(
    bench: Bench, tmp_path: Path
) -> None:
    # given a training that is wrong, but not with what a run before it left in the compiler's cache
    (tmp_path / "left by a run").touch()
    found = bench.bisect("--env", "A=1,2", planted="cached", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    assert [one["outcome"] for one in found["trials"]] == ["differs", "differs"]


def test_the_interpreter_is_found(bench: Bench) -> None:
    # given another interpreter, which sets a variable before it starts
    other = bench.folder / "other-python"
    other.write_text(f'#!/bin/sh\nSCALE=2 exec "{bench.programs}/python" "$@"\n')
    other.chmod(0o755)
    found = bench.bisect("--python", "python", "--python", str(other))
    assert (found["code"], found["searched"][-1]["differs"]) == (1, str(other))


def test_the_commit_is_found_and_the_working_tree_stays(
    bench: Bench, programs: Path, tmp_path: Path
) -> None:
    # given six commits of which the fourth multiplies the loss, and an edit that is not committed
    project = Bench(tmp_path / "project", programs)
    project.folder.mkdir()

    def git(*arguments: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        ended = subprocess.run(
            ["git", *named, *arguments], cwd=project.folder, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    git("init", "-q")
    for number in range(6):
        text = _TRAINING.replace("* scale", "* scale * 1.5") if number >= 3 else _TRAINING
        (project.folder / "train.py").write_text(f"{text}# {number}\n")
        git("add", "train.py")
        git("commit", "-qm", f"change {number}")
    (project.folder / "train.py").write_text("raise SystemExit('edited')\n")
    (project.folder / "ref").symlink_to(bench.folder / "ref")
    before = git("status", "--porcelain")
    # when
    found = project.bisect("--commits", "HEAD~5..HEAD")
    # then
    assert (found["code"], found["searched"][-1]["differs"].split(" ", 1)[1]) == (1, "change 3")
    assert len(found["trials"]) <= _bound(6)
    assert git("status", "--porcelain") == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--env", "SCALE=1"), "write NAME=A,B"),
        (("--env", "SCALE=1,2", "--env", "SCALE=3,4"), "stands twice"),
        (("--python", "python"), "give --python twice"),
        (("--python", "python", "--python", "no-such-python"), "no such program"),
        (("--commits", "HEAD"), "write good..bad"),
        (("--switch", "amp", "--env", "A=1,2"), "one thing at a time"),
    ],
)
def test_what_cannot_be_searched_is_said_in_a_sentence(
    bench: Bench, arguments: tuple[str, ...], words: str
) -> None:
    if "--commits" in arguments:
        subprocess.run(["git", "init", "-q"], cwd=bench.folder, check=True)
    ended = bench.run("bisect", "ref", *arguments, "--", "python", "train.py")
    assert ended.returncode == 2
    assert words in ended.stderr


@pytest.mark.exhaustive
def test_an_operator_that_inductor_lowers_wrong_is_found(bench: Bench) -> None:
    # given a compiled training in which the lowering of tanh is one percent off
    text = _TRAINING.replace(
        "for _ in",
        """
from torch._inductor.lowering import lowerings
tanh, product = lowerings[torch.ops.aten.tanh.default], lowerings[torch.ops.aten.mul.Tensor]
lowerings[torch.ops.aten.tanh.default] = lambda x: product(tanh(x), 1.01)
model = torch.compile(model)
for _ in""",
    )
    (bench.folder / "compiled.py").write_text(text)
    ended = bench.run(
        "bisect", "ref", "--json", "--switch", "compile", "--", "python", "compiled.py"
    )
    found = json.loads(ended.stdout)
    assert found["searched"][-1]["what"] == "lowerings"
    assert "tanh" in found["headline"]
    counted = [len(one["notes"]) for one in found["trials"] if one["state"].startswith("0 ")]
    assert len(found["trials"]) <= _bound(sum(counted))


def test_the_key_of_a_configuration_file_is_found_where_commands_name_two_files(
    bench: Bench,
) -> None:
    # given a training whose recorded command names a file, and which is run with another one
    text = _TRAINING.replace(
        "planted = sys.argv[1:]",
        "import json\nplanted = []\nscale *= json.load(open(sys.argv[2]))['loss']['scale']",
    )
    (bench.folder / "configured.py").write_text(text)
    for name, scale in (("good", 1), ("bad", 2)):
        values = {"name": name, "loss": {"scale": scale, "log": name}}
        (bench.folder / f"{name}.json").write_text(json.dumps(values))
    command = ("python", "configured.py", "--config")
    made = bench.run(
        "record", "-o", "by-file", "--steps", "0", "--exit-after", "--", *command, "good.json"
    )
    assert made.returncode == 0, made.stderr
    # when it is searched without an option
    ended = bench.run("bisect", "by-file", "--json", "--", *command, "bad.json")
    # then the key is the answer
    found = json.loads(ended.stdout)
    assert [one["name"] for one in found["switches"]] == ["loss.scale"]
    assert (ended.returncode, found["searched"][0]["what"]) == (1, "argument --config")
