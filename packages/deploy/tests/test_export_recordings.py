"""A recording as the model of an export: its module is shown to be the recorded one and gets its weights."""

import pytest
import torch
from torch import nn

from lockstep import record
from lockstep.core.errors import UsageError
from lockstep_deploy.model_source import model_source

STEPS = 2


class Norm(nn.Module):
    """Counts its calls in a buffer that decides what it returns."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.scale.mul_(1.5)
        return x * self.scale


class RecordedNet(nn.Module):
    """A net with running statistics and a buffer of its own."""

    def __init__(self, eps=1e-5, sign=1.0, p=0.0):
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4, eps=eps)
        self.count, self.drop, self.last = Norm(), nn.Dropout(p), nn.Linear(4, 2)
        self._sign = sign

    def forward(self, x):
        return self._sign * self.last(self.drop(self.count(torch.tanh(self.norm(self.first(x))))))


class Other(nn.Module):
    """Was never recorded."""

    def forward(self, x):
        return x


def net():
    return RecordedNet()


def other_eps():
    return RecordedNet(eps=1e-3)


def other_sign():
    return RecordedNet(sign=-1.0)


def dropping():
    return RecordedNet(p=0.5)


def trained(path, save, made=net):
    """A recording of a training; returns the state that its last recorded step left, and that of its end."""
    torch.manual_seed(1)
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(str(path), steps=f"0:{STEPS}", save=save):
        for number in range(STEPS + 1):
            if number == STEPS:
                after = {name: one.clone() for name, one in model.state_dict().items()}
            optimizer.zero_grad()
            model(torch.full((5, 3), 0.1 * number) + torch.randn(5, 3)).square().mean().backward()
            optimizer.step()
    return after, {name: one.clone() for name, one in model.state_dict().items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    return path, *trained(path, "tensors")


def source_of(path, factory):
    return model_source(str(path), factory=f"{__file__}:{factory}")


def test_a_recording_alone_says_what_makes_its_module(whole):
    with pytest.raises(UsageError, match=r"--factory .*RecordedNet$"):
        model_source(str(whole[0]))


def test_the_recorded_module_gets_weights_and_batches_of_the_last_step(whole):
    path, after, _ = whole
    source = source_of(path, "net")
    said = " ".join(source.said)
    assert all(torch.equal(one, after[name]) for name, one in source.module.state_dict().items())
    assert "returns what was recorded" in said
    assert f"it went on to step {STEPS}" in said
    assert "those after its last recorded step" in said
    assert [list(one["x"].shape) for one in (source.inputs, *source.more)] == [[5, 3]] * STEPS


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("other_eps", r"norm has eps=1e-05, the factory's 0\.001"),
        ("other_sign", "returns something else than was recorded"),
        ("Other", "has no module of class Other"),
    ],
)
def test_another_module_than_the_recorded_one_is_refused(factory, words, whole):
    with pytest.raises(UsageError, match=words):
        source_of(whole[0], factory)


END = {}


def with_checkpoint():
    model = RecordedNet()
    model.load_state_dict(END["state"])
    return model


def test_a_checkpoint_that_the_factory_loads_is_compared_with_the_end(whole, monkeypatch):
    path, _, end = whole
    monkeypatch.setitem(END, "state", end)
    source = source_of(path, "with_checkpoint")
    assert any("at the end of the training" in one for one in source.said)
    assert all(torch.equal(one, end[name]) for name, one in source.module.state_dict().items())


def test_random_numbers_in_forward_keep_it_from_being_held_against_its_results(tmp_path):
    trained(tmp_path / "run", "tensors", dropping)
    source = source_of(tmp_path / "run", "dropping")
    assert any("its forward draws random numbers" in one for one in source.said)


def test_a_recording_without_whole_tensors_is_refused_with_what_to_do(tmp_path):
    trained(tmp_path / "run", "sketch")
    with pytest.raises(UsageError, match="record with --save tensors, or let the factory load"):
        source_of(tmp_path / "run", "net")
