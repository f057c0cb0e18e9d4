"""A migrated training does alone what it did, and with torchrun what one process would do, on the CPU."""

import pytest
import torch
from runs import SCRIPTS, alone, migrate, together

# What module_level.py goes on from.
START = {
    "encoder.weight": torch.linspace(-1, 1, 18).reshape(3, 6),
    "encoder.bias": torch.zeros(3),
    "norm.weight": torch.ones(3),
    "norm.bias": torch.zeros(3),
    "norm.running_mean": torch.zeros(3),
    "norm.running_var": torch.ones(3),
    "norm.num_batches_tracked": torch.tensor(0),
    "decoder.weight": torch.linspace(2, -2, 18).reshape(6, 3),
    "decoder.bias": torch.ones(6),
}
SAMPLES = {"functions": (128, 40), "module_level": (64, 32)}


@pytest.fixture(scope="module", params=sorted(SAMPLES))
def runs(request, programs, tmp_path_factory):
    """The original alone, the migrated alone, the migrated by its launch script in two processes."""
    folder = tmp_path_factory.mktemp(request.param)
    script = SCRIPTS / f"{request.param}.py"
    for name in ("before", "after", "together"):
        (folder / name).mkdir()
        torch.save(START, folder / name / "start.pt")
    migrate(script, folder / "out")
    moved = folder / "out" / script.name
    return (
        request.param,
        alone(programs, script, folder / "before"),
        alone(programs, moved, folder / "after"),
        together(programs, folder / "out" / "run_distributed.sh", folder / "together"),
    )


def losses(run):
    return [float.fromhex(loss) for loss in run.notes[0]["losses"]]


def test_alone_it_does_the_very_same(runs):
    _, before, after, _ = runs
    assert after.notes == before.notes
    assert after.printed == before.printed
    assert same(after.parameters[0], before.parameters[0])
    assert same(tensors(after.checkpoint), tensors(before.checkpoint))


def test_together_the_loss_goes_down(runs):
    *_, run = runs
    shown = losses(run)
    epoch = len(shown) // len(run.notes[0]["seen"]["training"])
    assert sum(shown[-epoch:]) < 0.8 * sum(shown[:epoch])


def test_together_all_processes_end_with_equal_parameters(runs):
    *_, run = runs
    assert len(run.parameters) == 2
    assert same(*run.parameters)


def test_together_each_sample_of_an_epoch_is_seen_once(runs):
    name, *_, run = runs
    orders = []
    for epoch in run.notes[0]["seen"]["training"]:
        shares = [notes["seen"]["training"][epoch] for notes in run.notes]
        assert sorted(shares[0] + shares[1]) == list(range(SAMPLES[name][0]))
        orders.append(shares[0])
    assert orders[0] != orders[1], "set_epoch was not called"


def test_together_every_process_evaluates_the_whole_set(runs):
    name, *_, run = runs
    for notes in run.notes:
        assert notes["seen"]["evaluation"]
        for seen in notes["seen"]["evaluation"].values():
            assert sorted(seen) == list(range(SAMPLES[name][1]))


def test_together_one_checkpoint_has_the_names_it_had(runs):
    _, before, _, run = runs
    assert names(run.checkpoint) == names(before.checkpoint)
    assert sorted(path.name for path in run.folder.glob("net*")) == ["net.pt"]


def test_together_one_process_tells(runs):
    _, before, _, run = runs
    first = next(line for line in before.printed.splitlines() if line).split()[0]
    assert 0 < run.printed.count(first) <= before.printed.count(first)


def tensors(value):
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors(item)]
    return [torch.as_tensor(value)]


def names(value, prefix=""):
    if isinstance(value, dict):
        return [name for key, item in value.items() for name in names(item, f"{prefix}/{key}")]
    return [prefix]


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))
