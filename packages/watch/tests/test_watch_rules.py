"""Rules: each fires on the training that it is for, and none on sound ones."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep.core.errors import UsageError
from lockstep.launch import WrittenStep
from lockstep_watch.chosen_rules import ChosenRule, choose
from lockstep_watch.command import watch
from lockstep_watch.observed import Hit
from lockstep_watch.rules import BUILT_IN
from lockstep_watch.watcher import Watcher

TRAININGS = Path(__file__).parents[3] / "benchmarks" / "watch"
RANKS = {
    "ddp_two_ranks",
    "fsdp2_two_ranks",
    "independent_two_ranks",
    "drifting_replica",
    "trainer",
    "compiled",
}
"""What needs processes of its own, or longer; `python benchmarks/watch` runs it."""


def trainings_of(file: str, name: str) -> dict[str, Any]:
    """The trainings of a file of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TRAININGS)
        importlib.import_module(f"{file}_unseen")  # adds its trainings
        found: dict[str, Any] = vars(importlib.import_module(file))[name]
    return {name: one for name, one in found.items() if name not in RANKS}


SOUND, PLANTED = trainings_of("sound", "SOUND"), trainings_of("faulty", "PLANTED")


def hits_in(
    path: Path,
    train: Callable[[int], None],
    steps: int,
    rules: list[ChosenRule] | None = None,
    notes: list[Hit] | None = None,
) -> list[Hit]:
    """What is told of a training that is recorded and looked at step by step; `notes` gets what may be meant."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trainings of the benchmark may warn
        with lockstep.record(path, steps=f"0:{steps}"):
            train(steps)
    rank = lockstep.open(path).ranks["rank0"]
    watcher = Watcher(choose([]) if rules is None else rules, lambda event: None)
    found = [
        hit
        for number in rank.steps
        for hit in watcher.look(WrittenStep(rank, "rank0", number, None))
    ]
    if notes is not None:
        notes += watcher.watched.notes.values()
    return found


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_fires_nothing(name: str, tmp_path: Path) -> None:
    # Given a sound training
    # When it is watched for 50 steps
    found = hits_in(tmp_path / "rec", SOUND[name], 50)
    # Then no rule fires
    assert [(hit.rule, hit.step, hit.words) for hit in found] == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PLANTED)
def test_what_is_wrong_fires_its_rules_alone(name: str, tmp_path: Path) -> None:
    # Given a training with one thing wrong
    planted = PLANTED[name]
    # When it is watched for 50 steps
    notes: list[Hit] = []
    found = {hit.rule for hit in hits_in(tmp_path / "rec", planted.train, 50, notes=notes)}
    # Then its rules fire, and none but what follows from them
    assert planted.fires <= found <= planted.fires | planted.may_fire
    assert planted.notes <= {hit.rule for hit in notes}


class Half(nn.Module):
    """Scores in half precision, with what is added to them."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.change = nn.Linear(4, 4), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(self.inner(x).half()).float()


def half_training(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[int], None]:
    """A few steps of it."""

    def train(steps: int) -> None:
        model = Half(change)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).softmax(-1).square().mean().backward()
            optimizer.step()

    return train


def to_fill_float8(x: torch.Tensor) -> torch.Tensor:
    """As training in float8 scales what it converts."""
    return (x * (448 / x.abs().amax())).to(torch.float8_e4m3fn)


LEAST = torch.finfo(torch.float16).min
BESIDE_OVERFLOW = {
    "a mask": (lambda x: x.masked_fill(x > 0, LEAST), set()),
    "a mask that is added": (lambda x: x + (x > 0).half() * LEAST, set()),
    "where": (lambda x: torch.where(x > 0, x, LEAST), set()),
    "a clamp": (lambda x: (x * 1e3).clamp(-65504, 65504), set()),
    "a tenth of the range": (lambda x: x * (6e3 / x.detach().abs().amax()), set()),
    "next to overflow": (lambda x: x / x.detach().abs().amax() * 300 * 200, {"low-headroom"}),
    "saturated": (
        lambda x: (x.float() * 1e6).to(torch.float8_e4m3fn).half(), {"saturated-dtype"},
    ),
    "scaled to fill float8": (
        lambda x: to_fill_float8(x.detach().float()).half() / 448 + x, set(),
    ),
    "flushed": (lambda x: (x.float() * 1e-9).half(), {"flushed-to-zero"}),
    "the tail of a softmax": (
        lambda x: (x.float() * 1e3).softmax(-1).half(), set(),
    ),
}  # fmt: skip
OF_DTYPES = ["low-headroom", "saturated-dtype", "flushed-to-zero"]


@pytest.mark.parametrize("what", BESIDE_OVERFLOW)
def test_numbers_at_the_ends_of_a_dtype(what: str, tmp_path: Path) -> None:
    # Given scores in half precision that are masked, scaled or that overflow
    change, fires = BESIDE_OVERFLOW[what]
    # When that is watched by the rules that ask of dtypes
    found = hits_in(tmp_path / "rec", half_training(change), 1, choose([], only=OF_DTYPES))
    # Then they fire on what is at its end and was not put there
    assert {hit.rule for hit in found} == fires


def test_limits_that_are_not_set_are_silent_and_can_be_set(tmp_path: Path) -> None:
    # Given a training
    train = half_training(lambda x: x)
    # When limits are set to two rules that have none
    settings = ["tensor-too-large.rms=0.001", "tensor-too-small.maximum=1e3"]
    both = ["tensor-too-large", "tensor-too-small"]
    silent = hits_in(tmp_path / "silent", train, 1, choose([], only=both))
    found = hits_in(tmp_path / "set", train, 1, choose([], only=both, settings=settings))
    # Then they fire, and did not before
    assert silent == []
    assert {hit.rule for hit in found} == set(both)
    assert any("the rms of result is" in hit.words for hit in found)


def test_a_limit_has_to_be_a_number() -> None:
    # Given a setting that is not set
    # When it is set to a word
    # Then that is refused
    with pytest.raises(UsageError, match="'much' is not a number"):
        choose([], settings=["tensor-too-large.rms=much"])


@pytest.mark.parametrize(("rate", "fires"), [(0.0, {"loss-not-falling"}), (0.05, set())])
def test_a_loss_that_stays_where_it_began(rate: float, fires: set[str], tmp_path: Path) -> None:
    # Given a training that does not learn, or its twin that does
    def train(steps: int) -> None:
        model, x = nn.Linear(4, 1), torch.randn(64, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(steps):
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()

    # When it is watched with a window that is short
    rules = choose([], only=["loss-not-falling"], settings=["loss-not-falling.window=20"])
    found = hits_in(tmp_path / "rec", train, 25, rules)
    # Then that is told where the loss has not fallen
    assert {hit.rule for hit in found} == fires


def test_rules_are_listed_with_what_they_are_for(tmp_path: Path) -> None:
    # Given a rule of one's own beside the built-in ones
    own = tmp_path / "own.py"
    own.write_text(
        "def loud(step, *, limit=0.5, least=None):\n    'The loss is loud.'\n    return []\n"
    )
    # When the rules are listed
    shown = CliRunner().invoke(watch, ["--list-rules", "--rules", str(own)])
    # Then each has what it fires on, its settings, formula, cause, cure and source
    assert shown.exit_code == 0
    assert shown.output.endswith(
        "loud\n  The loss is loud.\n  Settings: limit = 0.5, least = not set.\n"
    )
    assert shown.output.count("\n  Cure: ") == len(BUILT_IN)


def test_gradients_explode_beyond_what_their_loss_accounts_for(tmp_path: Path) -> None:
    # Given a sound training with targets in the ten thousands, and a recurrent net that multiplies what goes back
    # When both are watched for some steps
    rules = choose([], only=["exploding-gradient"])
    raw = hits_in(tmp_path / "raw", SOUND["raw_targets"], 4, rules)
    exploding = hits_in(tmp_path / "exploding", PLANTED["exploding_rnn"].train, 4, rules)
    # Then the gradients of the one are as its unit is, and those of the other are not
    assert raw == []
    assert exploding[0].step == 0
    assert "root of the loss" in exploding[0].words


@pytest.mark.parametrize(("batch", "told"), [(16, "note"), (512, "hit")])
def test_labels_of_two_classes_may_be_those_of_the_common_one(
    batch: int, told: str, tmp_path: Path
) -> None:
    # Given a classifier for what is rare, which has met none of it yet, in few samples or in many
    def train(steps: int) -> None:
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            samples, labels = torch.randn(batch, 8), torch.zeros(batch, 1)
            loss = F.binary_cross_entropy_with_logits(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    notes: list[Hit] = []
    # When it is watched for twelve steps
    found = hits_in(tmp_path / "rec", train, 12, choose([], only=["labels-constant"]), notes)
    # Then that may be meant in 192 labels, and hardly in 6144
    assert [one.rule for one in (notes if told == "note" else found)] == ["labels-constant"]
    assert not (found if told == "note" else notes)


def classifier() -> nn.Sequential:
    """Scores of four classes."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def trained_by(
    objective: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    between: Callable[[nn.Module, int], None] = lambda model, number: None,
    loader: DataLoader[Any] | None = None,
) -> Callable[[int], None]:
    """A training by this objective; `between` is run before each step, and batches are drawn, or the loader's first."""

    def train(steps: int) -> None:
        model = classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(steps):
            between(model, number)
            samples, labels = torch.randn(16, 8), torch.randint(0, 4, (16,))
            if loader is not None:
                samples, labels = next(iter(loader))
            optimizer.zero_grad()
            objective(model(samples), labels).backward()
            optimizer.step()

    return train


def put_back(model: nn.Module, number: int) -> None:
    """Weights of the start, again and again: a checkpoint that nobody writes anew."""
    if number % 5 == 0:
        torch.manual_seed(3)
        model.load_state_dict(classifier().state_dict())


def averaged(model: nn.Module, number: int) -> None:
    """Weights that move on by a hand's step: another state each time."""
    if number % 5 == 0:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.9)


def in_parts(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What is to be forgotten is made worse, beside what is to be kept."""
    kept, forgotten = F.cross_entropy(scores[:12], labels[:12]), scores[12:]
    return kept - 0.3 * F.cross_entropy(forgotten, labels[12:])


SAMPLES = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
PART, WHOLE = DataLoader(SAMPLES, batch_size=16), DataLoader(SAMPLES, batch_size=64)


@pytest.mark.parametrize(
    ("train", "rule"),
    [
        (trained_by(lambda scores, labels: -F.cross_entropy(scores, labels)), "loss-maximised"),
        (trained_by(in_parts), ""),
        (trained_by(lambda scores, labels: F.nll_loss(scores.softmax(1), labels)), "squashed-twice"),
        (trained_by(lambda scores, labels: F.nll_loss(scores.log_softmax(1), labels)), ""),
        (trained_by(F.cross_entropy, put_back), "note: weights-replaced"),
        (trained_by(F.cross_entropy, averaged), ""),
        (trained_by(F.cross_entropy, loader=PART), "note: batch-repeated"),
        (trained_by(F.cross_entropy, loader=WHOLE), ""),
    ],
    ids=[
        "maximised", "forgetting", "probabilities", "log-probabilities", "put-back", "averaged",
        "one-batch", "all-data",
    ],
)  # fmt: skip
def test_a_training_that_cannot_learn_what_it_means_to(
    train: Callable[[int], None], rule: str, tmp_path: Path
) -> None:
    # Given a training that cannot learn, and one like it that can
    notes: list[Hit] = []
    only = ["loss-maximised", "squashed-twice", "weights-replaced", "batch-repeated"]
    # When both are watched from the start
    found = hits_in(tmp_path / "rec", train, 21, choose([], only=only), notes)
    # Then the first is told by one rule, as a note where it may be meant
    told = {*(one.rule for one in found), *(f"note: {one.rule}" for one in notes)}
    assert told == ({rule} if rule else set())


def test_a_network_that_the_optimizer_holds_and_that_runs_without_gradients(tmp_path: Path) -> None:
    # Given an encoder that runs under no_grad, though the optimizer holds it, or a head alone does
    def train(steps: int, *, holds_encoder: bool) -> None:
        encoder, head = nn.Linear(8, 8), nn.Linear(8, 4)
        held = [*encoder.parameters()] if holds_encoder else []
        optimizer = torch.optim.SGD([*held, *head.parameters()], lr=0.1)
        for _ in range(steps):
            with torch.no_grad():
                hidden = encoder(torch.randn(16, 8))
            optimizer.zero_grad()
            F.cross_entropy(head(hidden), torch.randint(0, 4, (16,))).backward()
            optimizer.step()

    # When both are watched
    for holds_encoder in (True, False):
        notes: list[Hit] = []
        rules = choose([], only=["parameter-without-gradient"])
        part = partial(train, holds_encoder=holds_encoder)
        assert not hits_in(tmp_path / f"rec{holds_encoder}", part, 11, rules, notes)
        # Then the first is noted
        assert [one.subject for one in notes] == ["parameters without a name"] * holds_encoder
