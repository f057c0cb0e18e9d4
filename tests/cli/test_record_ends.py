"""How a recorded command may end: by itself, by a signal, on a full disk; the recording opens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from workplace import BIN, TIMEOUT_S, Workplace, ended

import lockstep

# Stays in the middle of step 1 until a line comes in, and says so once calls of it were flushed.
STAYS_IN_STEP = """
    import glob, os, select, sys
    from tiny import build, loss_of, train_step

    model, optimizer = build()
    train_step(model, optimizer)
    for _ in range(100_000):
        loss_of(model).backward()
        if len(glob.glob("ref/rank0/records-*.parquet")) >= 2:
            break
    try:
        print("ready", os.getpid(), flush=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            pass
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        raise
    print("going on", flush=True)
    for _ in range(3):
        train_step(model, optimizer)
    print("done", flush=True)
"""
INCOMPLETE = "rank0: step 1 is incomplete, it holds what was flushed before the end"
CUT_OFF = "rank0: the run was cut off before the recording was closed"


@contextmanager
def recording_in_step_1(
    workplace: Workplace,
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A recorded training in the middle of a step: a `lockstep record` of its own, and the training's number."""
    workplace.script("train.py", STAYS_IN_STEP)
    process = workplace.start(
        BIN / "lockstep", "record", "-o", "ref", "--", "python", "train.py", start_new_session=True
    )
    try:
        assert process.stdout is not None
        ready, _, number = process.stdout.readline().partition(" ")
        assert ready == "ready"
        yield process, int(number)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_exit_codes_and_tracebacks_are_those_of_the_bare_run(workplace: Workplace) -> None:
    # Given trainings that end in the middle of step 1: by sys.exit, by an exception that passes
    # through recorded modules and operators, and in ways past all that Python does at its end
    layer = "torch.nn.Sequential(model, torch.nn.LayerNorm(3))(torch.ones(1, 4))"
    ends = {
        "exit": ("sys.exit(3)", 3, ""),
        "exception": (layer, 1, " by the exception RuntimeError"),
        "at-once": ("os._exit(4)", 4, " by os._exit(4)"),
        "other-program": ("os.execvp('false', ['false'])", 1, " by os.execv"),
        "killed": ("os.kill(os.getpid(), 9)", 137, " by SIGKILL, which it sent itself"),
    }
    for name, (statement, *_) in ends.items():
        workplace.script(
            f"{name}.py",
            f"""
            import os, sys, torch
            from tiny import build, loss_of, train_step

            model, optimizer = build()
            train_step(model, optimizer)
            loss_of(model)
            {statement}
            """,
        )

    # When they run recorded, and bare where Python has something to say at its end
    bare = workplace.run_together(*(("python", f"{name}.py") for name in ("exit", "exception")))
    recorded = workplace.run_together(
        *(("lockstep", "record", "-o", name, "--", "python", f"{name}.py") for name in ends)
    )

    # Then the exit code and standard error are the bare ones, line by line
    errors = [before.err for before in bare] + ["", "", ""]
    assert [before.code for before in bare] == [3, 1]
    for name, error, after in zip(ends, errors, recorded, strict=True):
        _, code, by = ends[name]
        assert after.code == code
        assert after.theirs == error
        assert ("in layer_norm" in after.err) is (name == "exception")
        # And the first step is whole, the second is marked, with what cut it off
        recording = lockstep.open(workplace.path / name)
        assert recording.ranks["rank0"].complete_steps == (0,)
        assert recording.missing == (INCOMPLETE + by,)
        assert recording.manifest.exit_code == after.code
        assert "recorded rank0 steps 0, 1 (incomplete) (" in after.ours[-1]


def test_signals_reach_the_training(tmp_path: Path, programs: Path) -> None:
    # Given trainings in the middle of a step
    sent = {
        "alone": (signal.SIGINT, os.kill),
        "group": (signal.SIGINT, os.killpg),
        "ended": (signal.SIGTERM, os.kill),
    }
    with ExitStack() as stack:
        started = [
            stack.enter_context(recording_in_step_1(Workplace(tmp_path / name, programs)))[0]
            for name in sent
        ]
        # When a signal comes, to the whole process group or to `lockstep record` alone
        for process, (number, send) in zip(started, sent.values(), strict=True):
            send(process.pid, number)
        for process in started:
            process.wait(TIMEOUT_S)  # its standard input stays open until then
        ends = [ended(process) for process in started]

    for (name, (number, _)), end in zip(sent.items(), ends, strict=True):
        # Then the training got it once, and the exit code says so
        assert end.code == 128 + number
        assert end.out == ("interrupted\n" if number == signal.SIGINT else "")
        # And the recording opens; a Python that could say goodbye has closed it
        recording = lockstep.open(tmp_path / name / "ref")
        assert recording.ranks["rank0"].steps == (0, 1)
        assert recording.missing == (
            (f"{INCOMPLETE} by the exception KeyboardInterrupt",)
            if number == signal.SIGINT
            else (CUT_OFF, INCOMPLETE)
        )
        assert (recording.manifest.state, recording.manifest.exit_code) == ("complete", end.code)


@pytest.mark.cold
def test_control_c_in_a_terminal_interrupts_the_training_once(workplace: Workplace) -> None:
    # Given a recorded training in a terminal of its own
    workplace.script("train.py", STAYS_IN_STEP)
    in_terminal = (
        "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    )
    process = workplace.start(
        sys.executable, "-c", in_terminal,
        "lockstep", "record", "-o", "ref", "--", "python", "train.py",
    )  # fmt: skip
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")

        # When Ctrl-C is typed
        process.stdin.write("\x03")
        process.stdin.flush()
        out, _ = process.communicate(timeout=TIMEOUT_S)

    # Then the training is interrupted once and its recording is closed
    assert process.returncode == 130
    assert out.count("KeyboardInterrupt") == 1
    assert "recorded rank0 steps 0, 1 (incomplete)" in out
    assert lockstep.open(workplace.path / "ref").missing == (
        f"{INCOMPLETE} by the exception KeyboardInterrupt",
    )


def test_a_killed_training_leaves_what_was_flushed(workplace: Workplace) -> None:
    # Given a training in the middle of a step
    with recording_in_step_1(workplace) as (process, training):
        # When it is killed
        os.kill(training, signal.SIGKILL)
        end = ended(process)

    # Then the exit code says so, and the recording opens up to the last flush
    assert end.code == 128 + signal.SIGKILL
    assert "recorded rank0 steps 0, 1 (incomplete)" in end.ours[-1]
    recording = lockstep.open(workplace.path / "ref")
    assert recording.missing == (CUT_OFF, INCOMPLETE)
    rank = recording.ranks["rank0"]
    assert {call.site.op for call in rank.calls(0)} <= {call.site.op for call in rank.calls(1)} | {
        "torch.optim.SGD", "torch.nn.Parameter",
    } | {call.site.op for call in rank.calls(0) if call.kind.value == "init"}  # fmt: skip
    assert len(rank.calls(1)) > 5


def test_a_training_outlives_a_killed_recorder_process(workplace: Workplace) -> None:
    # Given a training in the middle of a step
    with recording_in_step_1(workplace) as (process, _):
        # When `lockstep record` itself is killed, and the training then gets its line of input
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
        end = ended(process, "go on\n")

    # Then the training goes on to its end, and its recording is whole
    assert end.out == "going on\ndone\n"
    recording = lockstep.open(workplace.path / "ref")
    assert recording.ranks["rank0"].complete_steps == (0, 1)
    assert recording.manifest.exit_code is None


FILLS_UP = """
    import os, resource, sys
    from tiny import build, fingerprint, train_step

    model, optimizer = build()
    for step in range(4):
        print(train_step(model, optimizer).hex())
        if step == 0 and "--no-room" in sys.argv:
            while '"complete": true' not in open("ref/rank0/manifest.json").read():
                pass
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
    print(fingerprint(model))
"""


def test_where_no_file_can_grow_the_training_goes_on(workplace: Workplace) -> None:
    # Given a training after whose first step every write to a file fails
    workplace.script("train.py", FILLS_UP)

    # When it is recorded
    bare, recorded = workplace.run_together(
        ("python", "train.py"),
        ("lockstep", "record", "-o", "ref", "--steps", "0:4", "--",
         "python", "train.py", "--no-room"),
    )  # fmt: skip

    # Then it ends as ever, one line warns, and the first step can be read
    assert (recorded.code, recorded.out, recorded.theirs) == (0, bare.out, "")
    assert [line for line in recorded.ours if "recording stopped: File too large (" in line] == (
        recorded.ours[:1]
    )
    assert len(recorded.ours) == 2
    recording = lockstep.open(workplace.path / "ref")
    assert recording.ranks["rank0"].complete_steps == (0,)
    assert recording.missing == (CUT_OFF,)


@pytest.fixture
def small_disk(workplace: Workplace) -> Iterator[Path]:
    """A disk of 96 kB."""
    place = workplace.path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk takes more rights than this process has")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_recording_only(workplace: Workplace, small_disk: Path) -> None:
    # Given a disk that holds the first steps at best
    workplace.script("train.py", FILLS_UP)

    # When a training is recorded there
    bare, recorded = workplace.run_together(
        ("python", "train.py"),
        ("lockstep", "record", "-o", small_disk / "ref", "--steps", "0:4", "--",
         "python", "train.py"),
    )  # fmt: skip

    # Then it ends as ever, one line warns, and what was flushed can be read with the reason
    assert (recorded.code, recorded.out, recorded.theirs) == (0, bare.out, "")
    assert (
        sum("recording stopped: No space left on device (" in line for line in recorded.ours) == 1
    )
    assert len(recorded.ours) == 2
    recording = lockstep.open(small_disk / "ref")
    assert 0 < len(recording.ranks["rank0"].complete_steps) < 4
    assert "No space left on device" in recording.missing[0]
    for step in recording.ranks["rank0"].steps:
        assert recording.ranks["rank0"].calls(step)


def test_beyond_its_cap_the_recording_stops(workplace: Workplace) -> None:
    # Given a cap that the second step goes beyond
    workplace.script("train.py", FILLS_UP)
    bare, recorded = workplace.run_together(
        ("python", "train.py"),
        ("lockstep", "record", "-o", "ref", "--steps", "0:4", "--max-bytes", "40000", "--",
         "python", "train.py"),
    )  # fmt: skip

    # Then the training ends as ever, one line warns, and the cap holds
    assert (recorded.code, recorded.out, recorded.theirs) == (0, bare.out, "")
    assert recorded.ours[0] == (
        "lockstep: recording stopped: --max-bytes 40000 reached; the training goes on"
    )
    assert "rank0 steps 0, stopped early (" in recorded.ours[1]
    path = workplace.path / "ref"
    assert sum(file.stat().st_size for file in path.glob("rank0/*.parquet")) <= 40000
    recording = lockstep.open(path)
    assert recording.ranks["rank0"].complete_steps == (0,)
    assert "--max-bytes 40000 reached" in recording.missing[0]


@pytest.mark.skipif(torch.version.cuda is not None, reason="a build for GPUs takes more by itself")
@pytest.mark.cold
def test_where_the_address_space_is_too_small_the_training_goes_on_unrecorded(
    workplace: Workplace,
) -> None:
    # Given a training that is content with little, and a limit in which recording would end it
    workplace.script(
        "train.py",
        """
        from tiny import build, train_step

        model, optimizer = build()
        train_step(model, optimizer)
        print("trained")
        """,
    )
    limited = "ulimit -v 1400000; exec python train.py"

    # When it is recorded
    after = workplace.run("lockstep", "record", "-o", "ref", "--", "bash", "-c", limited)

    # Then it trains, and what is missing is said
    assert (after.code, after.out) == (2, "trained\n")
    assert "the address space of the process is limited (ulimit -v)" in after.ours[0]
    assert after.ours[-1].startswith("lockstep: nothing was recorded: Lockstep could not be loaded")
