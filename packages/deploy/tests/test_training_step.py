"""A training step is exported, agrees with torch for twenty steps, and trains in the runtime."""

import json
from pathlib import Path

import numpy as np
import pytest
import small_nets
import torch
from click.testing import CliRunner

from lockstep.core.errors import LockstepError, UsageError
from lockstep_deploy.export_command import export
from lockstep_deploy.run_command import run
from lockstep_deploy.training_step import TrainingStep, Update

NETS = Path(small_nets.__file__)


def called(command, *arguments):
    words = [str(one) for one in arguments]
    done = CliRunner().invoke(
        command, words, standalone_mode=False, help_option_names=["-h", "--help"]
    )
    if done.exception is not None:
        raise done.exception
    return done.output, done.return_value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a step of a convolution network, and 24 samples."""
    folder = tmp_path_factory.mktemp("step")
    draw = np.random.default_rng(0)
    x = draw.standard_normal((24, 1, 8, 8)).astype("f4")
    np.savez(folder / "samples.npz", x=x, target=draw.integers(0, 10, 24))
    np.savez(folder / "batch.npz", x=x[:8], target=draw.integers(0, 10, 8))
    said, code = called(
        export,
        f"{NETS}:tiny",
        "--inputs",
        folder / "batch.npz",
        "--train-step",
        "adam:lr=0.01",
        "-o",
        folder / "step.onnx",
    )
    (folder / "said.txt").write_text(said)
    assert code == 0, said
    return folder


def losses(folder, *arguments):
    told = called(
        run,
        folder / "step.onnx",
        "--train",
        "--inputs",
        folder / "samples.npz",
        "--json",
        *arguments,
    )[0]
    return json.loads(told)["losses"]


def test_the_step_agrees_by_operator_and_for_twenty_steps(folder):
    said = (folder / "said.txt").read_text()
    assert "\nAGREE" in said
    assert "trained 20 steps beside torch: losses" in said
    assert "set to training" in said


@pytest.mark.exhaustive
def test_a_batch_norm_that_trains_is_trained(folder, tmp_path):
    said, code = called(
        export,
        f"{NETS}:resnet",
        "--inputs",
        folder / "batch.npz",
        "--train-step",
        "sgd:lr=0.01",
        "-o",
        tmp_path / "step.onnx",
    )
    assert code == 0, said


def test_training_in_the_runtime_is_torchs_training(folder):
    samples = np.load(folder / "samples.npz")
    module = small_nets.tiny()[0].train()
    step = TrainingStep(module, "cross_entropy", Update.of("adam:lr=0.01"), {})
    rows = [np.arange(8 * at, 8 * at + 8) % 24 for at in range(20)]
    batches = [
        {"x": torch.from_numpy(samples["x"][at]), "target": torch.from_numpy(samples["target"][at])}
        for at in rows
    ]
    np.testing.assert_allclose(losses(folder), step.eager_losses(batches), rtol=1e-3)


def test_a_training_that_was_saved_and_resumed_is_the_same(folder, tmp_path):
    whole = losses(folder, "--max-steps", "6")
    first = losses(folder, "--max-steps", "4", "--checkpoint", tmp_path / "state.npz")
    rest = losses(folder, "--max-steps", "2", "--resume", tmp_path / "state.npz")
    assert first + rest == whole


def test_a_checkpoint_of_something_else_is_refused(folder, tmp_path):
    np.savez(
        tmp_path / "other.npz",
        **{"param.conv.weight": np.zeros(3, "f4"), "lockstep.steps": np.array(1)},
    )
    with pytest.raises(LockstepError, match="not a checkpoint of this training"):
        losses(folder, "--resume", tmp_path / "other.npz")
    with pytest.raises(LockstepError, match="not a checkpoint of this training"):
        losses(folder, "--resume", folder / "samples.npz")


@pytest.mark.parametrize(
    "text",
    [
        "sgd:lr=0.1,momentum=0.9,weight_decay=0.01",
        "adam:lr=0.01,eps=1e-6",
        "adamw:lr=0.05,weight_decay=0.1",
    ],
)
def test_an_update_is_torchs(text):
    torch.manual_seed(0)
    update = Update.of(text)
    one = torch.nn.Parameter(torch.randn(4, 5))
    optimizer = update.optimizer([one])
    own, state = {"w": one.detach().clone()}, update.first_state({"w": one.detach()})
    for _ in range(5):
        one.grad = torch.randn(4, 5)
        own, state = update.apply(own, {"w": one.grad}, state)
        optimizer.step()
    torch.testing.assert_close(own["w"], one.detach())


class Words(torch.nn.Module):
    """A recurrent net over words, most of which a batch does not have: their gradients are zero."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(9, 4)
        self.recurrent = torch.nn.LSTM(4, 3, batch_first=True)
        self.scores = torch.nn.Linear(3, 2)

    def forward(self, ids):
        return self.scores(self.recurrent(self.words(ids))[0][:, -1])


def words():
    torch.manual_seed(0)
    return Words(), {"ids": torch.tensor([[1, 2], [2, 1], [3, 1], [1, 1]])}


def test_words_without_a_gradient_stay_numbers_in_an_lstm_that_adamw_trains(tmp_path):
    said, code = called(
        export, f"{__file__}:words", "--train-step", "adamw:lr=0.01", "-o", tmp_path / "step.onnx"
    )
    assert code == 0, said
    assert "trained 20 steps beside torch" in said


@pytest.mark.parametrize("text", ["lion:lr=1", "sgd:rate=1", "adam:lr=fast"])
def test_an_update_that_there_is_not_is_one_sentence(text):
    with pytest.raises(UsageError, match="--train-step"):
        Update.of(text)


def test_what_is_no_step_is_not_trained(folder, tmp_path):
    np.savez(tmp_path / "few.npz", x=np.zeros((3, 1, 8, 8), "f4"), target=np.zeros(3, "i8"))
    with pytest.raises(LockstepError, match="at least the 8 of a batch"):
        called(run, folder / "step.onnx", "--train", "--inputs", tmp_path / "few.npz")
