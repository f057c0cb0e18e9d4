"""Other data is said to be other data, by the name of the argument, and no layer is accused of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Kind, Origin, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.screen import headline

STEPS, PARTS, ROWS, WIDTH = 2, 2, 16, 40
WORDS, LENGTH = 17, 9


def refilled(mistake: str) -> None:
    """A loader that fills one NumPy array for all micro-batches; the mistake is a row of the second."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random, buffer = np.random.default_rng(1), np.zeros((ROWS, WIDTH), np.float32)
    targets = torch.randint(3, (ROWS,))
    for _ in range(STEPS):
        optimizer.zero_grad()
        for part in range(PARTS):
            buffer[...] = random.standard_normal(buffer.shape, np.float32)
            if mistake and part == 1:
                buffer[3] *= 1.5
            batch = torch.from_numpy(buffer)
            (functional.cross_entropy(model(batch), targets) / PARTS).backward()
        optimizer.step()


class Reader(nn.Module):
    """A layer of attention that is called as those of transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = (
            nn.Embedding(WORDS, 16),
            nn.LayerNorm(16),
            nn.Linear(16, WORDS),
        )
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(
        self, *, input_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        mask = attention_mask[:, None, :].bool()
        mixed = functional.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x), attn_mask=mask
        )
        logits = self.head(self.norm(x + self.out(mixed)))
        return {
            "loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "logits": logits,
        }


def read(mistake: str) -> None:
    """Batches are dicts of token ids, mask and labels; the mistake is in the argument of that name."""
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        ids = torch.randint(WORDS, (4, LENGTH))
        mask = torch.ones_like(ids)
        mask[:2, 6:] = 0
        labels = ids.roll(-1, 1).masked_fill(mask == 0, -100)
        if mistake == "attention_mask":
            mask = mask.roll(1, 1)
        if mistake == "labels":
            labels[0, 0] = (labels[0, 0] + 1) % WORDS
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()


TRAININGS: dict[str, Callable[[str], None]] = {"refilled": refilled, "read": read}


@cache
def recorded(training: str, mistake: str = "", again: bool = False) -> Path:
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    torch.manual_seed(0)
    with lockstep.record(path, steps=f"0:{STEPS}"):
        TRAININGS[training](mistake)
    return path


def compared(training: str, mistake: str = "") -> Comparison:
    return lockstep.compare_recordings(recorded(training), recorded(training, mistake, again=True))


def only_origin(found: Comparison) -> Origin:
    """The one origin, which is what both kinds of test are about."""
    origin, *others = found.origins
    assert (found.verdict, origin.kind, origin.phase, others) == (
        Verdict.DIVERGED,
        Kind.SETUP,
        Phase.DATA,
        [],
    )
    return origin


def test_another_micro_batch_in_a_buffer_that_is_filled_again_is_other_data() -> None:
    # Given a loader whose second micro-batch is another one, in the memory of the first
    found = compared("refilled", "other row")
    # Then the batch is named, and the layer that gets it is not
    origin = only_origin(found)
    assert (origin.step, origin.tensor) == (0, "args.0 of torch.nn.Sequential")
    assert origin.reason.startswith("the batch (args.0 of torch.nn.Sequential) does not agree")
    assert headline(found).startswith("DIVERGED at step 0, data: args.0 of torch.nn.Sequential")
    assert "Linear" not in headline(found) + origin.reason


@pytest.mark.parametrize("argument", ["attention_mask", "labels"])
def test_what_a_model_is_given_by_name_is_named(argument: str) -> None:
    # Given a mask that is shifted by one token, or one label that is another
    found = compared("read", argument)
    # Then that argument is the origin, and neither the attention nor the loss
    origin = only_origin(found)
    assert origin.tensor == f"kwargs.{argument} of test_batches.Reader"
    assert "whole numbers differ" in origin.reason
    assert headline(found).startswith(
        f"DIVERGED at step 0, data: kwargs.{argument} of test_batches.Reader"
    )


@pytest.mark.parametrize("training", TRAININGS)
def test_the_same_data_agree(training: str) -> None:
    found = compared(training)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())
