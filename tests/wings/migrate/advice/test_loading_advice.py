"""Advice on loaders and losses: the last batch, class numbers."""

from __future__ import annotations

import pytest
import torch
from advising import advise
from torch.utils.data import DataLoader, TensorDataset

SCRIPT = """
    import torch
    import torch.nn as nn
    from torch.utils.data import DataLoader

    train_loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=0{more})
    criterion = nn.CrossEntropyLoss()
    device = torch.device("cpu")
    losses = []
    for epoch in range(2):
        for i, (images, target) in enumerate(train_loader):
            images = images.to(device{images})
            target = target.to(device{target})
            loss = criterion(model(images), target)
            loss.backward()
            losses.append(loss.detach())
"""


def script(more: str = "", images: str = "", target: str = "") -> str:
    return SCRIPT.format(more=more, images=images, target=target)


# -- the last batch


def test_a_training_loader_is_advised_to_drop_its_last_batch() -> None:
    (row,) = advise(script()).of("drop-last")
    assert row.outcome.value == "listed"
    assert row.replacement == "drop_last=True"
    assert "up to batch_size - 1 samples of each epoch are left out" in row.reason
    assert "porting guide" in row.reason


def test_dropping_the_last_batch_does_what_the_advice_says() -> None:
    # given ten samples in batches of four
    data = TensorDataset(torch.arange(10.0))
    advised = advise(
        """
        from torch.utils.data import DataLoader

        train_loader = DataLoader(
            data,
            batch_size=4,
        )
        batches = [batch for batch, in train_loader]
        """,
        apply=True,
    )
    # then the batches that are left are the same bit by bit, and all of one shape
    original = [batch for (batch,) in DataLoader(data, batch_size=4)]
    written = advised.run(data=data)["batches"]
    assert [batch.tolist() for batch in written] == [batch.tolist() for batch in original[:2]]
    assert "batch_size=4, drop_last=True,\n" in advised.text


@pytest.mark.parametrize(
    "loader",
    [
        "val_loader = DataLoader(data, batch_size=4)",
        "train_loader = DataLoader(data, batch_size=4, drop_last=False)",
        "train_loader = DataLoader(data, 4, True, None, None, 0, None, False, True)",
        "train_loader = DataLoader(data, batch_sampler=sampler)",
        "train_loader = DataLoader(data)",
        "train_loader = DataLoader(data, batch_size=1)",
        "train_loader = DataLoader(data, batch_size=4, **options)",
        "train_loader = DataLoader(*arguments)",
        "eval_train_loader = DataLoader(data, batch_size=4)",
        "train_loader = mine.DataLoader(data, batch_size=4)",
    ],
)
def test_other_loaders_are_left_alone(loader: str) -> None:
    text = f"import mine\nfrom torch.utils.data import DataLoader\n{loader}\n"
    assert advise(text, apply=True).rows == ()


def test_a_loader_of_any_name_is_a_training_loader_where_gradients_are_computed() -> None:
    assert "drop-last" in advise(script().replace("train_loader", "batches")).rules


@pytest.mark.parametrize("target", ["neutral", "xpu", "hpu", "mps"])
def test_no_other_device_asks_for_whole_batches(target: str) -> None:
    assert "drop-last" not in advise(script(), target).rules


# -- copies and class numbers: before, the batches were followed from the loader to the device


def test_copies_of_batches_are_left_as_they_are() -> None:
    text = script(", pin_memory=True", target=", non_blocking=True")
    advised = advise(text, apply=True)
    assert set(advised.rules) == {"drop-last", "int32-targets"}
    assert "images.to(device)" in advised.text
    assert "target.to(device, non_blocking=True)" in advised.text


def test_losses_over_classes_are_listed_with_what_their_targets_may_be() -> None:
    (row,) = advise(script(), apply=True).of("int32-targets")
    assert (row.before, row.outcome.value) == ("nn.CrossEntropyLoss()", "listed")
    assert row.replacement == "target.to(torch.int32)"
    assert "not for targets that index or gather as well" in row.reason
    assert "int32-targets" not in advise(script(), "neutral").rules
    # for a CPU would refuse
    with pytest.raises(RuntimeError, match="dtype"):
        torch.nn.functional.cross_entropy(torch.ones(1, 2), torch.zeros(1, dtype=torch.int32))


@pytest.mark.parametrize("loss", ["nn.MSELoss()", "mine.CrossEntropyLoss()"])
def test_other_losses_are_left_alone(loss: str) -> None:
    text = script().replace("nn.CrossEntropyLoss()", loss)
    assert "int32-targets" not in advise(text).rules
