"""`record --no-dropout --no-shuffle --max-steps K`: a training is changed as it was asked to be, in nothing else."""

from __future__ import annotations

import pytest
from workplace import Workplace

import lockstep

DRAWING = """
    import sys
    import torch
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.data import (
        BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler, TensorDataset,
        WeightedRandomSampler,
    )
    from torch.utils.data.distributed import DistributedSampler

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(1, 8), nn.Linear(8, 1)
            self.drops = nn.ModuleList([nn.Dropout(0.5), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)])
            self.recurrent = nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)
            self.attention = nn.MultiheadAttention(8, 2, dropout=0.4, batch_first=True)
            self.scripted = torch.jit.script(nn.Sequential(nn.Dropout(0.0), nn.Dropout2d(0.0)))

        def forward(self, x):
            x = self.first(x)[:, None].repeat(1, 3, 1)
            for drop in self.drops:
                x = drop(x)
            x, _ = self.recurrent(self.scripted(x[..., None])[..., 0])
            x = x + self.attention(x, x, x)[0] + self.attention(x, x, x, need_weights=False)[0]
            x = F.scaled_dot_product_attention(x, x, x, None, 0.5)
            x = F.dropout2d(F.dropout(x, 0.3, self.training, inplace=True)[..., None], 0.2)[..., 0]
            return self.last(torch.dropout(x, p=0.2, train=True))

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.arange(8.0)[:, None])
    distributed = DistributedSampler(data, 2, 1)
    loaders = [
        DataLoader(data, 2, shuffle=True),
        DataLoader(data, 2, sampler=RandomSampler(data, replacement=True, num_samples=9)),
        DataLoader(data, 2, sampler=SubsetRandomSampler([5, 2, 7])),
        DataLoader(data, 2, sampler=distributed),
        DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 3, True)),
    ]
    if "weighted" in sys.argv:
        loaders = [DataLoader(data, 2, sampler=WeightedRandomSampler(torch.ones(8), 6))]
    for loader in loaders:
        for (batch,) in loader:
            before = torch.get_rng_state()
            loss = model(batch).square().mean()
            drew = "drew" if not torch.equal(before, torch.get_rng_state()) else ""
            print(batch.flatten().int().tolist(), drew, flush=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(distributed.shuffle, loss.item().hex(), flush=True)
"""


def test_dropout_and_shuffling_are_off_where_that_was_asked_and_nothing_else_is(
    workplace: Workplace,
) -> None:
    # Given a training with every kind of dropout and of torch's samplers
    workplace.script("drawing.py", DRAWING)
    command = ("python", "drawing.py")

    # When it runs alone, recorded as it is, and recorded with both turned off
    bare, plain, asked = workplace.run_together(
        command,
        ("lockstep", "record", "-o", "plain", "--", *command),
        ("lockstep", "record", "-o", "asked", "--no-dropout", "--no-shuffle", "--", *command),
    )

    # Then samples come in order and nothing is drawn, from the first step to the last, far behind the recorded ones
    assert (asked.code, asked.theirs) == (0, "")
    batches = asked.out.splitlines()[:-1]
    assert [batch.strip() for batch in batches] == [
        *("[0, 1]", "[2, 3]", "[4, 5]", "[6, 7]"),
        *("[0, 1]", "[2, 3]", "[4, 5]", "[6, 7]", "[0]"),
        *("[5, 2]", "[7]", "[1, 3]", "[5, 7]", "[0, 1, 2]", "[3, 4, 5]"),
    ]
    assert asked.out.splitlines()[-1].startswith("True ")
    # And the recording says so, of every call
    manifest = lockstep.open(workplace.path / "asked").ranks["rank0"].manifest
    assert manifest.asked == {
        "dropout": "off (--no-dropout)",
        "shuffling": "off (--no-shuffle)",
    }
    calls = lockstep.open(workplace.path / "asked").ranks["rank0"].calls(0)
    dropped = [call for call in calls if call.site.op == "torch.nn.functional.dropout"]
    assert dropped
    assert {call.arguments["kwargs.p"] for call in dropped} == {0.0}
    # And recorded as it is, it is what it is alone
    assert (plain.code, plain.out, plain.theirs) == (0, bare.out, bare.err)
    assert "drew" in plain.out
    assert lockstep.open(workplace.path / "plain").ranks["rank0"].manifest.asked == {}
    # And whoever compares the two is told first of all
    check, compare, show = workplace.run_together(
        ("lockstep", "check", "plain", "asked"),
        ("lockstep", "compare", "plain", "asked"),
        ("lockstep", "show", "asked"),
    )
    assert "what the recording was asked to change" in check.out.splitlines()[0]
    assert "set-up: dropout - / off (--no-dropout)" in compare.out
    assert "asked: dropout=off (--no-dropout), shuffling=off (--no-shuffle)" in show.out
    assert "shuffling by" not in show.out


def test_samplers_with_an_order_of_their_own_are_left_and_named(workplace: Workplace) -> None:
    # Given a sampler that draws by weights
    workplace.script("drawing.py", DRAWING)

    # When shuffling is turned off, and when it is not
    command = ("--", "python", "drawing.py", "weighted")
    left, plain = workplace.run_together(
        ("lockstep", "record", "-o", "left", "--no-shuffle", *command),
        ("lockstep", "record", "-o", "plain", *command),
    )

    # Then the training is the same, and what was left is named where it was asked for
    assert left.out == plain.out
    gaps = [
        [gap.what for gap in lockstep.open(workplace.path / name).ranks["rank0"].manifest.not_seen]
        for name in ("left", "plain")
    ]
    assert gaps == [["shuffling by WeightedRandomSampler"], []]


ENDING = """
    import sys
    import tiny

    model, optimizer = tiny.build()
    try:
        for number in range(6):
            tiny.train_step(model, optimizer)
            print(number, flush=True)
        print("checkpoint")
    finally:
        print(tiny.fingerprint(model))
"""


def test_a_training_ends_behind_so_many_steps_with_its_end_recorded(workplace: Workplace) -> None:
    # Given a training of six steps
    workplace.script("ending.py", ENDING)
    command = ("--", "python", "ending.py")

    # When it is to end in the midst of the recorded steps, behind them, or later than it does
    early, behind, full, never = workplace.run_together(
        ("lockstep", "record", "-o", "early", "--max-steps", "1", *command),
        ("lockstep", "record", "-o", "behind", "--max-steps", "4", *command),
        ("lockstep", "record", "-o", "full", "--max-steps", "4", "--max-bytes", "1", *command),
        ("lockstep", "record", "-o", "never", "--max-steps", "9", *command),
    )

    # Then it ends there, as a script that is done, whatever becomes of the recording
    assert [run.code for run in (early, behind, full, never)] == [0, 0, 2, 0]
    assert [len(run.out.splitlines()) for run in (early, behind, full, never)] == [1, 4, 4, 8]
    told = "lockstep: rank0: the training was ended after step 3, as --max-steps asks"
    assert told in behind.ours
    assert not any("was ended" in line for line in never.ours)
    # And what it was then is recorded
    rank = lockstep.open(workplace.path / "behind").ranks["rank0"]
    assert (rank.complete_steps, rank.manifest.trained) == ((0, 1), 4)
    assert rank.manifest.ended_by == "--max-steps 4"
    assert lockstep.open(workplace.path / "early").ranks["rank0"].complete_steps == (0,)
    assert lockstep.open(workplace.path / "never").ranks["rank0"].manifest.ended_by == ""
    # And two that ended there agree to their ends
    again = workplace.record("-o", "again", "--max-steps", "4", *command)
    assert again.code == 0
    compared = workplace.run("lockstep", "compare", "behind", "again")
    assert compared.code == 0
    assert compared.out.startswith("AGREE")


def test_a_training_that_would_end_before_its_first_recorded_step_is_refused(
    workplace: Workplace,
) -> None:
    ended = workplace.record("-o", "none", "--steps", "5", "--max-steps", "3", "--", "python", "-V")
    assert ended.code == 2
    assert ended.ours == ["lockstep: --max-steps 3 ends the training before --steps 5"]


TWO_OPTIMIZERS = """
    import torch
    models = [torch.nn.Linear(4, 4) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for number in range(6):
        for model, optimizer in zip(models, optimizers):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            try:
                optimizer.step()
            except SystemExit:
                print("ended at", number)
                raise
"""


@pytest.mark.parametrize("steps", ["0:5", "0"])
def test_several_optimizers_are_one_step(workplace: Workplace, steps: str) -> None:
    # Given two optimizers that step in turn, recorded to the end or not
    workplace.script("two.py", TWO_OPTIMIZERS)
    # When the training is to have three steps
    run = workplace.record(
        "-o", "two", "--steps", steps, "--max-steps", "3", "--", "python", "two.py"
    )
    # Then the third is the last
    assert (run.code, run.out) == (0, "ended at 2\n")


RANKS = """
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        print(number)
    dist.destroy_process_group()
"""


def test_all_ranks_end_together(workplace: Workplace) -> None:
    # Given two ranks, of which one is recorded
    workplace.script("ranks.py", RANKS)
    # When they are to have four steps
    run = workplace.record(
        "-o", "ranks", "--ranks", "0", "--max-steps", "4",
        "--", "torchrun", "--nproc_per_node", "2", "--standalone", "ranks.py",
    )  # fmt: skip
    # Then both end behind the fourth
    assert run.code == 0
    assert sorted(run.out.replace("\n", "")) == ["0", "0", "1", "1", "2", "2"]
    assert "lockstep: rank0: the training was ended after step 3, as --max-steps asks" in run.ours
