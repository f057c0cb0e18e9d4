"""Advice on training loops that wait for the device in every step."""

from __future__ import annotations

import pytest
from advising import advise

LOOP = """
    import torch

    def train(model, batches, optimizer, scaler):
        total = 0.0
        for step, (x, y) in enumerate(batches):
            loss = model(x, y)
            loss.backward()
            {statement}
"""


def loop(statement: str) -> str:
    return LOOP.format(statement=statement.replace("\n", "\n            "))


@pytest.mark.parametrize(
    "statement",
    [
        "total += loss.item()",
        "total += float(loss)",
        "history.append(loss.detach().cpu().numpy())",
        "print(loss)",
        'print(f"{step}: {loss:.3f}")',
        'print("%d: %f" % (step, loss))',
        'print("{}".format(loss))',
    ],
)
@pytest.mark.parametrize("target", ["npu", "neutral", "xpu", "hpu", "mps"])
def test_a_step_that_waits_is_listed(statement: str, target: str) -> None:
    (row,) = advise(loop(statement), target, apply=True).rows
    assert (row.rule, row.outcome.value) == ("advice/synchronising-read", "listed")
    assert row.line == 9
    assert "loss.detach()" in row.replacement


@pytest.mark.parametrize(
    "statement",
    [
        # now and then
        "if step % 100 == 0:\n    print(loss.item())",
        # nothing is read
        "total += loss.detach()",
        "print(step)",
        "print(loss.shape)",
        "for key, value in loss.items():\n    pass",
        # only defined, not run
        "read = lambda: loss.item()",
        "def read():\n    return loss.item()",
    ],
)
def test_a_step_that_does_not_wait_is_left_alone(statement: str) -> None:
    assert advise(loop(statement)).rows == ()


def test_reading_outside_of_training_is_left_alone() -> None:
    text = loop("total += loss.item()").replace("loss.backward()", "pass")
    assert advise(text).rows == ()
    # behind the loop
    text = loop("pass") + "    print(loss.item())\n"
    assert advise(text).rows == ()


def test_one_piece_of_advice_a_loop() -> None:
    text = loop("a = loss.item()\nb = x.cpu()\nc = y.tolist()")
    (row,) = advise(text).rows
    assert row.reason.endswith("; also in line 10, 11")


def test_scaled_losses_are_losses() -> None:
    text = loop("total += float(loss)").replace("loss.backward()", "scaler.scale(loss).backward()")
    assert advise(text).rules == ["synchronising-read"]
