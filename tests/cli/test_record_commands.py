"""`lockstep record` on everything that starts a training, and on what does not."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from workplace import SCRIPTS, TIMEOUT_S, Workplace
from workplace import ended as end_of

import lockstep
from lockstep.core.finding import Verdict
from lockstep.store.reader import Recording

# A process that ends while DistributedDataParallel's cycle keeps the group alive aborts now and then,
# recorded or not ("terminate called without an active exception": torch's own), so the script frees it.
DDP = """
    import gc
    import sys
    import torch
    import torch.distributed as dist
    from tiny import build, fingerprint, train_step

    def main(rank=None, world_size=None, address=None):
        where = {} if rank is None else dict(rank=rank, world_size=world_size, init_method=address)
        dist.init_process_group("gloo", **where)
        model, optimizer = build()
        model = torch.nn.parallel.DistributedDataParallel(model)
        torch.manual_seed(dist.get_rank())
        for _ in range(3):
            train_step(model, optimizer)
        print(f"rank {dist.get_rank()}: {fingerprint(model)}", flush=True)
        dist.destroy_process_group()
        del model, optimizer
        gc.collect()
"""

HIDES = """
    import os, sys
    mark = 'from the user'
    class Hide:
        def find_spec(self, name, path=None, target=None):
            end = sys.path[-1]
            ends = os.environ.get('LOCKSTEP_SOURCE', end).split(os.pathsep)
            if name == 'lockstep' and end != ends[-1]:
                raise ModuleNotFoundError('No module named lockstep', name='lockstep')
    sys.meta_path.insert(0, Hide())
"""


def ranks_of(path: Path) -> list[str]:
    return list(lockstep.open(path).ranks)


def hidden_in(path: Path) -> list[str]:
    return [str(entry) for entry in path.rglob(".*")]


def complete(recording: Recording) -> dict[str, tuple[int, ...]]:
    assert recording.missing == ()
    return {name: rank.complete_steps for name, rank in recording.ranks.items()}


@pytest.mark.cold
def test_a_recorded_script_runs_as_the_bare_one(workplace: Workplace) -> None:
    # Given a training that was never written to be recorded, a place with an unusual name, and a sitecustomize
    # of the user's own on PYTHONPATH, which also hides Lockstep from the command's Python until the place that
    # `lockstep record` names is on the path
    place = workplace.path / "résultats 1"
    place.mkdir()
    script, text = workplace.path / "tiny.py", "standard input\nžluť 入力\n"
    workplace.script("startup/sitecustomize.py", HIDES)
    options = {
        "text": text,
        "cwd": place,
        "environment": {"PYTHONPATH": str(workplace.path / "startup")},
    }

    # When it runs bare, and recorded into a relative path
    python = ("python", "-W", "error", script)
    bare = workplace.run(*python, **options)
    recorded = workplace.record("-o", "ma référence", *python, **options)

    # Then output, random numbers, settings, sys.path and exit code are the same, and the user's code ran
    assert (recorded.code, recorded.out, recorded.theirs) == (bare.code, bare.out, bare.err)
    assert bare.out.endswith(text + "\n")
    assert "from the user" in recorded.out
    # And the recording is there, complete, with nothing beside it
    assert len(recorded.ours) == 1
    assert "recorded rank0 steps 0-1 (" in recorded.ours[0]
    assert "in ma référence" in recorded.ours[0]
    recording = lockstep.open(place / "ma référence")
    assert complete(recording) == {"rank0": (0, 1)}
    assert (recording.manifest.state, recording.manifest.exit_code) == ("complete", 0)
    assert recording.manifest.command == ["python", "-W", "error", str(script)]
    assert sorted(entry.name for entry in recording.path.iterdir()) == ["manifest.json", "rank0"]
    assert hidden_in(recording.path) == []


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "options", [(), ("--level", "aten", "--save", "tensors"), ("--level", "module")]
)
def test_warnings_point_where_they_point_bare_and_come_as_often(
    workplace: Workplace, options: tuple[str, ...]
) -> None:
    # given a training of four steps that warns at several distances, in forwards, hooks and functions, and by torch
    shutil.copy(SCRIPTS / "warns.py", workplace.path)
    # when its first two steps are recorded, then what it prints is that of the bare run, byte for byte
    record = ("lockstep", "record", "-o", "ref", *options, "--", "python", "warns.py")
    bare, recorded = workplace.run_together(("python", "warns.py"), record)
    assert (recorded.code, recorded.theirs) == (0, bare.err)
    assert bare.err.count("Warning: ") > 30


def test_every_training_of_a_shell_script_gets_its_own_directory(workplace: Workplace) -> None:
    # Given a shell script without a first line naming a shell, that starts a Python without torch,
    # two trainings of the same rank at the same time, and a Python that starts a training
    workplace.script(
        "outer.py",
        """
        import subprocess, sys
        sys.exit(subprocess.call([sys.executable, "tiny.py"]) and 1)
        """,
    )
    script = workplace.path / "train.sh"
    script.write_text(
        "python -c 'print(1)'\npython tiny.py & first=$!\npython tiny.py & second=$!\n"
        "wait $first && wait $second && python outer.py\n"
    )
    script.chmod(0o755)

    # When it is recorded
    ended = workplace.record("-o", "ref", "--steps", "1", "--", "./train.sh")

    # Then each of the three trainings has a complete directory, and nothing else has one
    assert (ended.code, ended.theirs) == (0, "to stderr\n" * 3)
    assert "recorded rank0 steps 1; rank0-1 steps 1; rank0-2 steps 1 (" in ended.ours[0]
    recording = lockstep.open(workplace.path / "ref")
    assert complete(recording) == {"rank0": (1,), "rank0-1": (1,), "rank0-2": (1,)}
    assert len({rank.manifest.pid for rank in recording.ranks.values()}) == 3
    assert {name: rank.manifest.rank for name, rank in recording.ranks.items()} == {
        name: name for name in recording.ranks
    }


def test_torchrun_records_both_ranks_and_not_the_launcher(workplace: Workplace) -> None:
    # Given a package that trains on two ranks, on a path that the user has set
    workplace.script("elsewhere/package/__init__.py", "")
    workplace.script("elsewhere/package/__main__.py", DDP + "\n    main()\n")

    # When torchrun starts it as a module
    ended = workplace.record(
        "-o", "ref", "--", "torchrun", "--nproc_per_node", "2", "--standalone", "-m", "package",
        environment={"PYTHONPATH": str(workplace.path / "elsewhere")},
    )  # fmt: skip

    # Then each rank has its directory and knows its rank
    assert ended.code == 0, ended.err
    recording = lockstep.open(workplace.path / "ref")
    assert complete(recording) == {"rank0": (0, 1), "rank1": (0, 1)}
    assert [rank.manifest.distributed["rank"] for rank in recording.ranks.values()] == ["0", "1"]
    assert hidden_in(recording.path) == []


def test_one_rank_of_two_is_recorded_and_both_end_after_it(workplace: Workplace) -> None:
    # Given a training on two ranks that would print at its end
    workplace.script("train.py", DDP + '\n    if __name__ == "__main__":\n        main()\n')
    command = ("torchrun", "--nproc_per_node", "2", "--standalone", "train.py")

    # When one rank is chosen, and the command is to end after the first step
    ended = workplace.record(
        "-o", "ref", "--steps", "0", "--ranks", "0", "--exit-after", "--", *command
    )

    # Then both ranks end well after that step, and only the chosen one was recorded
    assert (ended.code, ended.out) == (0, ""), ended.err
    assert complete(lockstep.open(workplace.path / "ref")) == {"rank0": (0,)}


@pytest.mark.exhaustive
def test_spawned_ranks_are_recorded(workplace: Workplace) -> None:
    # Given a script that spawns two ranks by itself
    workplace.script(
        "train.py",
        DDP
        + """
    if __name__ == "__main__":
        address = f"file://{sys.argv[1]}/meeting-point"
        torch.multiprocessing.spawn(main, args=(2, address), nprocs=2)
    """,
    )

    # When it is recorded
    ended = workplace.record("-o", "ref", "--", "python", "train.py", workplace.path)

    # Then both ranks are there, the parent is not
    assert (ended.code, ended.theirs) == (0, "")
    assert complete(lockstep.open(workplace.path / "ref")) == {"rank0": (0, 1), "rank1": (0, 1)}


def test_children_of_multiprocessing_are_recorded_up_to_their_end(workplace: Workplace) -> None:
    # Given children that end in the middle of a step, forked before and after the parent trains
    workplace.script(
        "train.py",
        """
        import multiprocessing, os
        from tiny import build, loss_of, train

        def child(name):
            train(steps=1)
            model, optimizer = build()
            loss_of(model).backward()
            print(name, flush=True)

        if __name__ == "__main__":
            for method in ("fork", "forkserver"):
                process = multiprocessing.get_context(method).Process(target=child, args=(method,))
                process.start()
                process.join()
                assert process.exitcode == 0
            train(steps=1)
            process = multiprocessing.get_context("fork").Process(target=child, args=("late",))
            process.start()
            process.join()
            assert process.exitcode == 0
        """,
    )

    # When the script is recorded
    ended = workplace.record("-o", "ref", "--", "python", "train.py")

    # Then every child is recorded with its open step marked, and so is the parent
    assert (ended.code, ended.theirs) == (0, "")
    assert [line for line in ended.out.splitlines() if line.isalpha()] == [
        "fork", "forkserver", "late",
    ]  # fmt: skip
    recording = lockstep.open(workplace.path / "ref")
    steps = {name: rank.complete_steps for name, rank in recording.ranks.items()}
    assert steps == {"rank0": (0,), "rank0-1": (0,), "rank0-2": (0,)}
    assert recording.missing == tuple(
        f"{name}: step 1 is incomplete, it holds what was flushed before the end"
        for name in ("rank0", "rank0-1")
    ) + tuple(f"{gap.what}: {gap.reason}" for gap in recording.manifest.not_seen)
    # But not the one forked from the recording parent, whose writer could not follow, and that is said
    assert [gap.what for gap in recording.manifest.not_seen] == ["what a forked process trained"]
    assert "not recorded: what a forked process trained" in ended.ours[0]
    assert all(rank.manifest.state == "complete" for rank in recording.ranks.values())


def test_children_that_come_in_any_order_are_compared_each_with_itself(
    workplace: Workplace,
) -> None:
    # Given a launcher that only looks at a model and evaluates in a pool, which it ends by a signal, and then starts
    # three trainings, which begin in an order that is given
    workplace.script(
        "sweep.py",
        """
        import multiprocessing, sys
        import torch
        from tiny import build, loss_of, train

        def evaluate(seed):
            return loss_of(torch.nn.Linear(4, 2)).item()

        def child(seed, before, after):
            before.wait()
            train(steps=2, seed=seed)
            after.set()

        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            loss_of(torch.nn.Linear(4, 2))
            model, optimizer = build()
            with context.Pool(1) as pool:
                pool.map(evaluate, range(2))
            turns = [context.Event() for _ in range(4)]
            order = [int(number) for number in sys.argv[1]]
            processes = [
                context.Process(target=child, args=(seed, *turns[place : place + 2]))
                for seed, place in enumerate(map(order.index, range(3)))
            ]
            for process in processes:
                process.start()
            turns[0].set()
            for process in processes:
                process.join()
        """,
    )

    # When it is recorded twice
    runs = workplace.run_together(
        *(("lockstep", "record", "-o", order, "--", "python", "sweep.py", order)
          for order in ("012", "201"))
    )  # fmt: skip

    # Then the trainings alone are there, complete,
    assert [(ended.code, ended.theirs) for ended in runs] == [(0, ""), (0, "")]
    recordings = [lockstep.open(workplace.path / order) for order in ("012", "201")]
    for recording in recordings:
        assert list(complete(recording).values()) == [(0, 1)] * 3
        assert hidden_in(recording.path) == []
    lineages = [[rank.manifest.lineage for rank in one.ranks.values()] for one in recordings]
    assert lineages == [["/2", "/3", "/4"], ["/4", "/2", "/3"]]
    # and each is compared with itself
    comparison = lockstep.compare_recordings(*recordings)
    assert comparison.verdict is Verdict.AGREE
    assert any("(sweep.py 012, child 4) with the candidate's" in note for note in comparison.notes)


@pytest.mark.parametrize(
    "methods", ["fork", pytest.param("fork forkserver spawn", marks=pytest.mark.exhaustive)]
)
def test_data_workers_leave_nothing_and_load_the_same(workplace: Workplace, methods: str) -> None:
    # Given a loader with workers of every start method, that draws random numbers in them
    workplace.script(
        "train.py",
        """
        import sys
        import torch
        from torch.utils.data import DataLoader, Dataset
        from tiny import build, fingerprint

        class Numbers(Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, index):
                weight = torch.randn(4, requires_grad=True)
                torch.nn.functional.relu(weight * index).sum().backward()
                return torch.nn.functional.normalize(torch.randn(4), dim=0) + weight.grad

        if __name__ == "__main__":
            model, optimizer = build()
            for method in sys.argv[1:]:
                count = 2 if method == "fork" else 1
                loader = DataLoader(
                    Numbers(), batch_size=4, shuffle=True, num_workers=count,
                    multiprocessing_context=method,
                )
                for batch in loader:
                    loss = model(batch).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    print(method, loss.item().hex(), flush=True)
            print(fingerprint(model))
        """,
    )

    # When it runs bare and recorded, each start method within a chosen step
    bare, recorded = workplace.run_together(
        ("python", "train.py", *methods.split()),
        ("lockstep", "record", "-o", "ref", "--steps", "0:6",
         "--", "python", "train.py", *methods.split()),
    )  # fmt: skip

    # Then the numbers are the same, and only the training process is recorded
    assert (bare.code, recorded.code, recorded.theirs) == (0, 0, bare.err)
    assert recorded.out == bare.out
    assert complete(lockstep.open(workplace.path / "ref")) == {
        "rank0": tuple(range(2 * len(methods.split())))
    }


def test_a_python_that_skips_the_hook_is_explained(workplace: Workplace) -> None:
    ended = workplace.record("-o", "ref", "--", "python", "-S", "-c", "print(1)")

    assert (ended.code, ended.out) == (2, "1\n")
    assert len(ended.ours) == 1
    assert "nothing was recorded: the command started no Python that loads" in ended.ours[0]
    assert "(python -S does not" in ended.ours[0]
    assert lockstep.open(workplace.path / "ref").missing != ()


def test_processes_that_do_not_train_leave_nothing(workplace: Workplace) -> None:
    # Given a Python without torch, one with it but without an optimizer, and one that ends too soon
    commands = {
        "no torch": ("print(1)", "no Python process of the command imported torch"),
        "no optimizer": (
            "import torch; torch.nn.Linear(2, 2)(torch.ones(2)).sum().backward()",
            "torch was imported, but no torch.optim.Optimizer was made",
        ),
        "killed": (
            "import os, subprocess, tiny; tiny.build(); subprocess.run(['kill', '-KILL', str(os.getpid())])",
            "the command ended with exit code 137; torch was imported, and the process ended before it could say",
        ),
        "no call": ("import tiny; tiny.build()", "an optimizer was made, but no model was called"),
        "too soon": (
            "import tiny; tiny.train(steps=2)",
            "the training ended after 2 steps, before a chosen one (5) began",
        ),
    }

    # When they are recorded
    runs = workplace.run_together(
        *(
            ("lockstep", "record", "-o", name, "--steps", "5" if name == "too soon" else "0:2",
             "--", "python", "-c", code)
            for name, (code, _) in commands.items()
        )
    )  # fmt: skip

    # Then the recording is empty, says so when it is opened, and the last line says why
    for (name, (_, reason)), ended in zip(commands.items(), runs, strict=True):
        assert (ended.code, ended.theirs) == (137 if name == "killed" else 2, ""), name
        assert f"nothing was recorded: {reason}" in ended.ours[-1]
        path = workplace.path / name
        if name == "killed":  # an empty recording of a command that failed is removed
            assert not path.exists()
            continue
        assert [entry.name for entry in path.iterdir()] == ["manifest.json"]
        assert len(lockstep.open(path).missing) == 1


def test_a_command_that_failed_first_is_no_obstacle_to_the_next_try(workplace: Workplace) -> None:
    # Given a script that fails before its first step
    workplace.script("train.py", "import tiny\nimport no_such_module\n")
    failed = workplace.record("-o", "ref", "--", "python", "train.py")
    # Then its own exit code and traceback are seen, and the last line says that nothing was recorded
    assert failed.code == 1
    assert "No module named 'no_such_module'" in failed.theirs
    assert "nothing was recorded: the command ended with exit code 1; torch was" in failed.ours[-1]
    # And no empty directory stays behind
    assert failed.ours[-1].endswith("; ref, which is empty, was removed")
    assert not (workplace.path / "ref").exists()
    # And when it is put right, it is recorded into the same place
    workplace.script("train.py", "import tiny\ntiny.train(steps=1)\n")
    again = workplace.record("-o", "ref", "--", "python", "train.py")
    assert (again.code, again.theirs) == (0, "")
    assert ranks_of(workplace.path / "ref") == ["rank0"]
    # Which is then kept
    kept = workplace.record("-o", "ref", "--", "python", "train.py")
    assert (kept.code, len(kept.ours)) == (2, 1)
    assert "exists already" in kept.ours[0]


@pytest.mark.parametrize("inside", ["", "notes.txt"])
def test_a_directory_that_was_there_stays_where_the_command_fails(
    workplace: Workplace, inside: str
) -> None:
    # Given a directory of the user's, or one into which the command itself writes before it fails
    place = workplace.path / "ref"
    if not inside:
        place.mkdir()
    # When the command fails before it trains
    failing = f"open('ref/{inside}', 'w').close()" if inside else "pass"
    failed = workplace.record("-o", "ref", "--", "python", "-c", f"{failing}; raise SystemExit(7)")
    # Then the directory stays, and the exit code is the command's
    assert (failed.code, place.is_dir()) == (7, True)
    assert "removed" not in failed.ours[-1]
    assert not inside or (place / inside).exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are seen by /proc")
def test_a_directory_stays_where_the_failed_command_left_a_process_behind(
    workplace: Workplace,
) -> None:
    # When a command fails whose child waits, and may train later
    waits = "import sys; print('waits', flush=True); sys.stdin.read()"
    child = f"{shlex.join([sys.executable, '-c', waits])} <&3 3<&- >said.txt 2>&1 &"
    until = "until grep -q waits said.txt 2>/dev/null; do sleep 0.05; done; exit 3"
    process = workplace.start(
        "lockstep", "record", "-o", "ref", "--", "sh", "-c", f"exec 3<&0; {child} {until}"
    )
    code = process.wait(TIMEOUT_S)
    place = (workplace.path / "ref").is_dir()
    end = end_of(process)  # which closes the child's standard input
    # Then the directory is there for it
    assert (code, place) == (3, True)
    assert "removed" not in end.ours[-1]


def test_a_node_without_a_chosen_rank_has_not_failed(workplace: Workplace) -> None:
    ended = workplace.record(
        "-o", "ref", "--ranks", "3", "--", "python", "-c", "import tiny; tiny.train(steps=1)"
    )
    assert ended.code == 0
    assert "nothing was recorded: no process had a chosen rank (3)" in ended.ours[-1]


@pytest.mark.cold
def test_where_lockstep_cannot_load_the_command_runs_on(workplace: Workplace) -> None:
    # Given a Python in which a library that Lockstep needs is broken
    broken = workplace.path / "broken"
    broken.mkdir()
    (broken / "xxhash.py").write_text("raise RuntimeError('xxhash is broken here')\n")

    # When a training is recorded in it
    ended = workplace.record(
        "-o", "ref", "--", "sh", "-c", 'PYTHONPATH="$PYTHONPATH:broken" exec python -c "$0"',
        "import tiny; print('end')",
    )  # fmt: skip

    # Then it runs to its end, one line warns, and the last one says that nothing was recorded
    assert (ended.code, ended.theirs) == (2, "")
    assert ended.out.endswith("end\n")
    assert len(ended.ours) == 2
    assert "xxhash is broken here; the command runs on unrecorded" in ended.ours[0]
    assert "nothing was recorded: Lockstep could not be loaded" in ended.ours[1]


def test_a_nested_recording_is_the_inner_one(workplace: Workplace) -> None:
    ended = workplace.record(
        "-o", "outer", "--", "lockstep", "record", "-o", "inner", "--", "python", "-c",
        "import tiny; tiny.train(steps=1)",
    )  # fmt: skip

    assert ended.code == 2  # nothing is in the outer one
    assert ranks_of(workplace.path / "inner") == ["rank0"]
    assert ranks_of(workplace.path / "outer") == []
