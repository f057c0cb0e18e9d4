"""Recording from inside a script, as whole processes; tests/capture/test_api.py is in one."""

from __future__ import annotations

from workplace import Workplace

import lockstep


def test_the_ranks_of_a_script_share_one_recording(workplace: Workplace) -> None:
    # Given a training on two ranks that records itself twice, into one new and one taken place
    workplace.script(
        "train.py",
        """
        import gc, os
        import torch, torch.distributed as dist
        import lockstep
        from tiny import build, train_step

        dist.init_process_group("gloo")
        model, optimizer = build()
        model = torch.nn.parallel.DistributedDataParallel(model)
        with lockstep.record("ref", model=model, steps="0:2"):
            for _ in range(3):
                train_step(model, optimizer)
        if dist.get_rank() == 1:
            with lockstep.record("alone", steps="0:1"):
                model.module(torch.ones(4)).sum().backward()
        dist.barrier()
        try:
            lockstep.record("ref").start()
        except lockstep.LockstepError as error:
            exists = "ref: exists already" in str(error).replace("/", " ")
            # in one piece: both ranks write into one pipe
            os.write(1, f"{type(error).__name__} {exists}\\n".encode())
        dist.destroy_process_group()
        del model, optimizer
        gc.collect()  # torch's own: a group that the model's cycle keeps may abort at the end
        """,
    )

    # When it runs
    ended = workplace.run("torchrun", "--nproc_per_node", "2", "--standalone", "train.py")

    # Then both ranks are in the new one, one rank may record alone, and neither joins the old one
    assert ended.code == 0, ended.err
    assert ended.out.splitlines() == ["OutputExistsError True"] * 2
    shared = lockstep.open(workplace.path / "ref")
    assert shared.missing == ()
    assert {name: rank.complete_steps for name, rank in shared.ranks.items()} == {
        "rank0": (0, 1), "rank1": (0, 1),
    }  # fmt: skip
    alone = lockstep.open(workplace.path / "alone")
    assert {name: rank.complete_steps for name, rank in alone.ranks.items()} == {"rank1": (0,)}


def test_a_recording_that_was_never_stopped_is_closed_at_the_end(workplace: Workplace) -> None:
    # Given a script that starts to record, forks, and ends in the middle of a step
    workplace.script(
        "train.py",
        """
        import os
        import lockstep
        from tiny import build, loss_of, train_step

        lockstep.record("ref", steps="0:3").start()
        model, optimizer = build()
        train_step(model, optimizer)
        child = os.fork()
        loss_of(model).backward()
        if child:
            os.waitpid(child, 0)
        """,
    )

    # When it runs
    ended = workplace.run("python", "train.py")

    # Then what it recorded is there once, its open step marked
    assert (ended.code, ended.err) == (0, "")
    recording = lockstep.open(workplace.path / "ref")
    assert recording.ranks["rank0"].complete_steps == (0,)
    assert recording.missing == (
        "rank0: step 1 is incomplete, it holds what was flushed before the end",
    )
    assert list(recording.ranks) == ["rank0"]
