"""`lockstep watch` and `lockstep overflow`: what fires is named as it comes, and the training is what it was."""

from __future__ import annotations

import json
import os
import pty
import resource
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep_watch.event_file import EventFile
from lockstep_watch.watcher import StepWatched

TIMEOUT_S = 240

SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
if "dead" in sys.argv:
    torch.nn.init.constant_(model[0].bias, -100.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(100000 if "long" in sys.argv else 6):
    x = torch.randn(32, 8)
    y = model(x)
    loss = (y - x.sum(1, keepdim=True)).square().mean()
    if "root" in sys.argv and step >= 3:
        loss = loss + (y - y).sqrt().mean()
    if "full" in sys.argv and step == 2:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
"""
RULES = """
def loud(step, *, limit=0.0):
    if step.loss is not None and step.loss > limit:
        yield step.hit("loss", "the loss is there", value=step.loss, limit=limit)

def broken(step):
    raise KeyError("a mistake of the rule")
"""


class Place:
    """A folder with a script and rules."""

    def __init__(self, path: Path, programs: Path) -> None:
        self.path, self._programs = path, programs
        (path / "train.py").write_text(SCRIPT)
        (path / "my_rules.py").write_text(RULES)

    @property
    def environment(self) -> dict[str, str]:
        """That of programs which start at once."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
        path = os.pathsep.join([str(self._programs), os.environ["PATH"]])
        return {**kept, "PATH": path, "OMP_NUM_THREADS": "1"}

    def run(self, *command: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run Lockstep, or with `python` first the script alone."""
        words = command if command[0] == "python" else ("lockstep", *command)
        return subprocess.run(
            words, cwd=self.path, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
            env=self.environment, input=typed,
        )  # fmt: skip

    def events(self, name: str = "events.jsonl") -> list[dict[str, Any]]:
        """The lines of the event file."""
        return [json.loads(line) for line in (self.path / name).read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path, programs: Path) -> Place:
    return Place(tmp_path, programs)


def test_a_sound_training_fires_nothing_and_prints_the_same(place: Place) -> None:
    # Given a sound training
    bare = place.run("python", "train.py").stdout
    # When it is watched
    ended = place.run("watch", "--events", "events.jsonl", "--", "python", "train.py")
    # Then no rule fires, its losses are the same to the last bit, and each step has a line
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == bare + "no rule fired in 6 steps\n"
    steps = [one for one in place.events() if one["event"] == "step"]
    losses = [float.fromhex(line) for line in bare.split()]
    assert [one["loss"] for one in steps] == pytest.approx(losses, rel=1e-6)
    assert all(one["gradient_norm"] > 0 for one in steps)


def test_dead_relus_are_named_with_their_line(place: Place) -> None:
    # Given a training whose ReLUs let nothing through
    # When it is watched
    ended = place.run("watch", "--events", "events.jsonl", "--", "python", "train.py", "dead")
    # Then that is said once as it is seen, with the line, and what follows from it
    assert ended.returncode == 1
    assert "dead-relu" in ended.stdout
    assert ended.stderr.count("dead-relu") == 1
    hits = {one["rule"]: one for one in place.events() if one["event"] == "hit"}
    assert set(hits) == {"dead-relu", "zero-gradient"}
    assert hits["dead-relu"]["source"] == "train.py:10"
    assert [one["zero_count"] for one in hits["dead-relu"]["history"]] == [512] * 3


def test_steps_with_sparse_gradients_are_all_looked_at(place: Place) -> None:
    # Given an embedding whose gradient is sparse, so that it has no storage of its own, and a rate of zero
    script = SCRIPT.replace(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.05)",
        "bag = torch.nn.EmbeddingBag(9, 1, sparse=True)\n"
        "optimizer = torch.optim.SGD([*model.parameters(), *bag.parameters()], lr=0.0)",
    ).replace("y = model(x)", "y = model(x) + bag(torch.randint(0, 9, (32, 4)))")
    (place.path / "train.py").write_text(script)
    # When it is watched
    ended = place.run("watch", "--events", "events.jsonl", "--", "python", "train.py")
    # Then every step has been looked at, and the rate alone is named
    assert sum(one["event"] == "step" for one in place.events()) == 6, ended.stderr
    hits = [one["rule"] for one in place.events() if one["event"] == "hit"]
    assert hits == ["learning-rate-zero"]
    assert ended.returncode == 1


def test_steps_that_cannot_be_written_are_no_silence(place: Place) -> None:
    # Given a training that no file beyond a kilobyte is taken from, behind its second step
    # When it is watched
    ended = place.run("watch", "--events", "events.jsonl", "--", "python", "train.py", "full")
    # Then it is said that not all were looked at, with the cause and what to do, and it is no all-clear
    assert ended.returncode == 2
    missing = ended.stdout.partition("no rule fired in ")[2]
    assert "be written" in missing  # all, or those behind what was on its way already
    assert "File too large" in missing
    assert "TMPDIR" in ended.stdout


def test_a_disk_without_room_is_told_as_the_cause(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a process that may write no file at all behind its import of torch
    script = SCRIPT.replace("import sys, torch", "import sys, torch, resource")
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))\ntorch.manual_seed(0)"
    (tmp_path / "train.py").write_text(script.replace("torch.manual_seed(0)", limit))
    # When it is searched for overflows
    ended = place.run("overflow", "--", "python", "train.py")
    # Then that is not told as a training of nothing
    assert ended.returncode == 2
    assert "nothing was looked at: it could not be written: File too large" in ended.stdout


def test_overflow_names_the_operator(place: Place) -> None:
    # Given a training that takes the root of zero from step 3 on
    # When its first overflow is looked for
    ended = place.run("overflow", "--json", "--", "python", "train.py", "root")
    # Then the root's backward is named, in that step
    values = json.loads(ended.stdout)
    assert ended.returncode == 1
    assert [(one["step"], one["part"], one["source"]) for one in values["found"]] == [
        (3, "backward", "train.py:13")
    ]
    assert "torch.Tensor.sqrt" in values["found"][0]["site"]


def test_own_rules_and_settings(place: Place) -> None:
    # Given a file of rules, one of which raises
    options = ["--rules", "my_rules.py", "--set", "loud.limit=0.001", "--events", "events.jsonl"]
    # When a sound training is watched with them
    ended = place.run("watch", *options, "--json", "--", "python", "train.py")
    # Then the sound one fires, and the other is named once and is off
    values = json.loads(ended.stdout)
    assert set(values["fired"]) == {"loud"}
    assert values["fired"]["loud"]["steps"] == 6
    assert (
        ended.stderr.count("rule broken raised KeyError: 'a mistake of the rule' (my_rules.py:7)")
        == 1
    )


ASKS = """
def recorded(step):
    outputs = [record for _, record in step.outputs()]
    known = all(one.change is not None for one in step.updates)
    sketched = sum(one.content.sketch is not None for one in outputs)
    yield step.hit("recorded", f"{known} {sketched} of {len(outputs)}")
"""


def test_sketches_are_taken_of_parameters_alone(place: Place) -> None:
    # Given a rule that asks how much updates changed, and for sketches of results
    (place.path / "asks.py").write_text(ASKS)
    # When a training is watched with it
    ended = place.run(
        "watch", "--rules", "asks.py", "--only-rule", "recorded", "--events", "events.jsonl", "--",
        "python", "train.py",
    )  # fmt: skip
    # Then the one is known and the others are not taken
    words = {one["words"] for one in place.events() if one["event"] == "hit"}
    assert ended.returncode == 1, ended.stderr
    assert len(words) == 1
    assert words.pop().startswith("True 0 of ")


def test_a_step_is_kept_for_replay_and_the_training_ends(place: Place) -> None:
    # Given a long training that overflows in step 3
    options = ["--stop-on", "not-finite", "--save-on", "not-finite", "-o", "kept", "--every", "3"]
    # When it is watched, to keep that step and to end there
    ended = place.run(
        "watch", *options, "--events", "events.jsonl", "--", "python", "train.py", "root", "long"
    )
    # Then it ends long before its time, and the operator can be run again
    assert ended.returncode == 1
    last = [one for one in place.events() if one["event"] == "ended"][-1]
    assert (last["code"], last["trained"] < 1000) == (0, True)
    site = "(model) / torch.Tensor.sqrt #0, forward"
    (line,) = [one for one in ended.stderr.splitlines() if "kept step 3 of rank0: " in one]
    command = line.partition("kept step 3 of rank0: ")[2]
    assert command == f"lockstep replay kept --only '{site}'"
    again = place.run(*shlex.split(command)[1:])
    assert again.returncode == 0, again.stdout + again.stderr
    assert "sound" in again.stdout
    # And the event tells of its tensor also where that is not finite
    (hit,) = [
        one for one in place.events() if one["event"] == "hit" and one["rule"] == "not-finite"
    ]
    assert hit["history"][-1]["not_finite"]


def test_on_a_terminal_there_is_a_panel_and_the_training_prints_above(place: Place) -> None:
    # Given a terminal
    master, slave = pty.openpty()
    command = ["lockstep", "watch", "--events", "e", "--", "python", "train.py", "dead"]
    # When a training is watched in it
    with subprocess.Popen(
        command, cwd=place.path, stdout=slave, stderr=slave, env={**place.environment, "TERM": "xterm"}
    ) as ran:  # fmt: skip
        os.close(slave)
        shown = _all_of(master)
    # Then the panel has its numbers, its losses stand there and so does what came of it
    assert ran.returncode == 1
    assert "gradient norm" in shown
    assert shown.count("0x1.") >= 6, shown
    assert "2 rules fired in 6 steps" in shown


def test_a_step_can_be_asked_about_while_the_training_waits(place: Place) -> None:
    # Given a training whose ReLUs die only by another limit
    asked = [
        "stats nothing", "stats 0", "hist relu", "slice 0 result 0:1,:2", "set dead-relu.share=0.01",
        "set dead-relu.steps=1", "check", "next 2", "diff 0", "stop",
    ]  # fmt: skip
    # When it is asked at its first step, told to go on for two and to stop there
    ended = place.run(
        "watch", "--interactive", "--tensorboard", "runs", "--events", "events.jsonl", "--",
        "python", "train.py", "long", typed="\n".join(asked),
    )  # fmt: skip
    # Then each is answered, the new limit fires, and the training ends
    said = ended.stdout
    assert ended.returncode == 1, ended.stderr
    assert "nothing of this step is 'nothing'" in said
    assert "param_after" in said
    assert "#####" in said
    assert "torch.nn.Linear #0, forward: output result float32[32, 16]" in said
    assert "step 0, rank0: dead-relu" in said
    assert "->" in said
    assert "asked to end after step 2" in said
    assert list((place.path / "runs" / "rank0").glob("events.out.tfevents.*"))
    steps = [one["step"] for one in place.events() if one["event"] == "step"]
    assert steps[:3] == [0, 1, 2]
    assert len(steps) < 6


def _all_of(master: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the terminal is left
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--only-rule", "dead-rely"), "there is no rule 'dead-rely'; nearest: dead-relu"),
        (
            ("--set", "dead-relu.part=1"),
            "rule dead-relu has no setting 'part'; it has share, steps",
        ),
        (("--set", "dead-relu.share=much"), "'much' is not a number"),
        (("--rules", "bad.py"), "bad.py:2:"),
        (("--rules", "raising.py"), "raising.py:3: ZeroDivisionError: division by zero"),
        (("--rules", "none.py"), "none.py: No such file"),
        (("--events", "train.py"), "train.py exists"),
    ],
)
def test_what_is_wrong_is_said_before_the_training_starts(
    place: Place, options: tuple[str, ...], says: str
) -> None:
    # Given files of rules that cannot be parsed or run
    (place.path / "bad.py").write_text("def rule(step):\n    yield (\n")
    (place.path / "raising.py").write_text("def half(n):\n    return n\n1 / 0\n")
    # When a training is watched with what is wrong
    ended = place.run("watch", *options, "--", "python", "train.py")
    # Then one sentence says it, and nothing is run
    assert ended.returncode == 2
    assert says in ended.stderr
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1


def test_a_closed_terminal_costs_no_event_and_changes_nothing(place: Place) -> None:
    # Given a terminal that is gone: nobody reads what is said
    bare = place.run("python", "train.py", "dead").stdout
    reader, writer = os.pipe()
    os.close(reader)
    # When a training is watched on which rules fire
    words = ["lockstep", "watch", "--events", "events.jsonl", "--", "python", "train.py", "dead"]
    ended = subprocess.run(
        words, cwd=place.path, stdout=subprocess.PIPE, stderr=writer, text=True, check=False,
        env=place.environment, timeout=TIMEOUT_S,
    )  # fmt: skip
    os.close(writer)
    # Then its losses are the same, every step is in the event file, and what fired is told at the end
    assert ended.returncode == 1
    assert ended.stdout.startswith(bare + "2 rules fired in 6 steps")
    events = [one["event"] for one in place.events()]
    assert events.count("step") == 6
    assert events.count("hit") >= 2


def test_events_wait_while_the_disk_is_full(tmp_path: Path) -> None:
    # Given an event file on a disk that takes a few bytes more
    said: list[str] = []
    file = EventFile(tmp_path / "events.jsonl", said.append)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    # When events come, and then there is room again
    try:
        for number in range(5):
            file.add(StepWatched("rank0", number, 0.5, 1.0, None, 0.1, False))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    held = (tmp_path / "events.jsonl").stat().st_size
    file.close()
    # Then that was said once, and no event is lost
    assert held == 100
    assert [one.partition(": ")[2] for one in said] == [
        "File too large; events wait in memory until they can be written"
    ]
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk here")
def test_events_that_could_never_be_written_are_counted() -> None:
    # Given a disk that is full and stays so
    said: list[str] = []
    file = EventFile(Path("/dev/full"), said.append, force=True)
    # When two events come, and no more
    for number in range(2):
        file.add(StepWatched("rank0", number, 0.5, 1.0, None, 0.1, False))
    file.close()
    # Then both are missed, which is said at the end
    assert said[0].startswith("/dev/full: No space left on device; events wait")
    assert said[1:] == ["/dev/full: 2 events could not be written"]


THROWS_AWAY = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaler" in sys.argv)
each = 2 if "sum" in sys.argv else 1
for step in range(8):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / each
    if "scaler" in sys.argv and step in (2, 5):
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    if (step + 1) % each:
        continue
    if "thrown" not in sys.argv or step not in (2, 3, 5):
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("level", "way", "steps", "skipped", "by_hand"),
    [
        ("module", ["thrown"], 5, 0, 3),
        ("api", ["thrown"], 5, 0, 3),
        ("module", ["scaler"], 8, 2, 0),
        ("module", ["sum"], 4, 0, 0),
        ("api", ["sum", "thrown"], 2, 0, 4),
    ],
    ids=["thrown away", "operators seen", "scaler", "summed", "sums thrown away"],
)
def test_steps_that_a_script_leaves_out_are_counted_and_sums_are_not(
    place: Place, level: str, way: list[str], steps: int, skipped: int, by_hand: int
) -> None:
    # Given a training that throws gradients away, whose scaler skips, or that sums gradients up
    (place.path / "throws.py").write_text(THROWS_AWAY)
    command = ["watch", "--level", level, "--json", "--events", "events.jsonl", "--"]
    ended = place.run(*command, "python", "throws.py", *way)
    # Then what was thrown away or skipped is counted, and what was summed up is not
    values = json.loads(ended.stdout)
    assert values["steps"] == {"rank0": steps}, ended.stderr
    assert (values["skipped"], values["left_out_by_script"]) == (skipped, by_hand)
    assert not values["fired"]
