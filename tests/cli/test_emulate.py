"""`lockstep record --emulate` and `--calibrate`, on a real training in real processes."""

from __future__ import annotations

import pytest
from workplace import Workplace

import lockstep
from lockstep.report.recording import render_recording

TRAIN = """
    import hashlib
    import torch
    from tiny import build, train_step

    def digest(tensors):
        return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()

    model, optimizer = build()
    print("start", digest(model.parameters()))
    batch = torch.sin(torch.randn(5, 4) * 3)
    print("batch", digest([batch]))
    for _ in range(4):
        train_step(model, optimizer)
        print("step", digest(model.parameters()))
    print("random", digest([torch.get_rng_state()]))
    print("modes", torch._C._len_torch_dispatch_stack())
"""


def test_a_command_runs_on_an_emulated_device(workplace: Workplace) -> None:
    # Given a training, recorded as it is
    workplace.script("train.py", TRAIN)
    command = ("--", "python", "train.py")

    # When it is recorded on emulated devices, once more with the same one, and for calibration
    plain, coarse, again, calibrated = workplace.run_together(
        ("lockstep", "record", "-o", "ref", *command),
        ("lockstep", "record", "-o", "npu", "--emulate", "npu-fp16", *command),
        ("lockstep", "record", "-o", "again", "--emulate", "npu-fp16", "--level", "aten", *command),
        ("lockstep", "record", "-o", "ref.cal", "--calibrate", *command),
    )

    # Then all start from the same parameters and batch, and draw the same random numbers
    assert [plain.code, coarse.code, again.code, calibrated.code] == [0] * 4
    lines = [ended.out.splitlines() for ended in (plain, coarse, calibrated)]
    for place in (0, 1, 6):
        assert len({line[place] for line in lines}) == 1
    # And each computes its own, in the steps that are not recorded too
    for place in (2, 3, 4, 5):
        assert len({line[place] for line in lines}) == 3
    assert again.out == coarse.out
    assert [line[7] for line in lines] == ["modes 0", "modes 1", "modes 1"]
    # And the recordings say so
    options = {
        name: lockstep.open(workplace.path / name).manifest.options
        for name in ("ref", "npu", "ref.cal")
    }
    assert {name: (each.emulate, each.calibrate) for name, each in options.items()} == {
        "ref": ("", False), "npu": ("npu-fp16", False), "ref.cal": ("", True),
    }  # fmt: skip
    numerics = lockstep.open(workplace.path / "ref.cal").ranks["rank0"].manifest.numerics
    assert numerics["emulated_device"] == "random-rounding"
    shown = {
        name: render_recording(lockstep.open(workplace.path / name)) for name in ("npu", "ref.cal")
    }
    assert "  on an emulated device: npu-fp16\n" in shown["npu"]
    assert "  calibration: every result was rounded at random\n" in shown["ref.cal"]

    # And the one that rounds its products is told from the reference, the calibration is not
    verdicts = [
        lockstep.compare_recordings(workplace.path / "ref", workplace.path / name).verdict
        for name in ("npu", "ref.cal")
    ]
    assert verdicts == ["diverged", "agree"]


def test_ranks_round_at_random_each_for_itself(workplace: Workplace) -> None:
    # Given two ranks that compute the same
    workplace.script(
        "train.py",
        """
        import gc
        import torch, torch.distributed as dist
        from tiny import build, train_step

        dist.init_process_group("gloo")
        model, optimizer = build()
        for _ in range(2):
            loss = train_step(model, optimizer)
        print(loss.hex(), flush=True)
        dist.destroy_process_group()
        del model, optimizer
        gc.collect()  # torch's own: a group that the model's cycle keeps may abort at the end
        """,
    )
    train = ("torchrun", "--nproc_per_node", "2", "--standalone", "train.py")

    # When they are recorded for calibration
    ended = workplace.record("-o", "ref.cal", "--calibrate", "--", *train)

    # Then they differ
    assert ended.code == 0, ended.err
    assert len(ended.out.splitlines()) == len(set(ended.out.splitlines())) == 2


def test_a_wrong_operator_is_named_and_an_unused_one_told(workplace: Workplace) -> None:
    # When an operator is made wrong, and when one is that the training does not have
    command = ("--", "python", "-c", "import tiny; tiny.train(steps=2)")
    plain, wrong, unused = workplace.run_together(
        ("lockstep", "record", "-o", "ref", *command),
        ("lockstep", "record", "-o", "wrong", "--emulate", "wrong:3/addmm:scale:1.1", *command),
        ("lockstep", "record", "-o", "unused", "--emulate", "wrong:addm", *command),
    )

    # Then the first is named by the comparison, and the second costs exit code 2
    assert (plain.code, wrong.code) == (0, 0)
    compared = workplace.run("lockstep", "compare", "ref", "wrong")
    assert compared.code == 1
    assert "DIVERGED at step 0, forward of 3 (torch.nn.functional.linear)" in compared.out
    assert unused.code == 2
    assert "pattern 'addm' matches no module and no operator" in unused.ours[-1]
    assert "nearest: addmm" in unused.ours[-1]


def test_the_devices_are_listed(workplace: Workplace) -> None:
    listed, full = workplace.run_together(
        ("lockstep", "record", "--emulate", "help"), ("lockstep", "record", "--help")
    )
    assert (listed.code, listed.err) == (0, "")
    assert "npu-fp16" in listed.out
    assert "wrong:[MODULE/]OPERATOR" in listed.out
    assert all(line in full.out for line in listed.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--emulate", "npu-pf16"), "did you mean npu-fp16? choose from npu-fp16, npu-bf16"),
        (("--emulate", "wrong:gelu:big"), "'big' is not a kind of fault"),
        (("--emulate", "random-rounding", "--calibrate"), "a part is given twice"),
    ],
)
def test_an_unknown_device_ends_in_one_sentence(
    workplace: Workplace, arguments: tuple[str, ...], sentence: str
) -> None:
    ended = workplace.record("-o", "ref", *arguments, "--", "python", "tiny.py")
    assert (ended.code, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert sentence in ended.err
    assert not (workplace.path / "ref").exists()
