"""Advice on loaders: the last batch, copies from pinned memory, class numbers."""

from __future__ import annotations

from typing import Any

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
    text = script().replace("train_loader", "batches")
    assert "drop-last" in advise(text).rules
    # and no other device asks for it
    for target in ("neutral", "xpu", "hpu", "mps"):
        assert "drop-last" not in advise(text, target).rules


# -- copies


def test_copies_of_pinned_batches_need_not_wait() -> None:
    advised = advise(script(", pin_memory=True", target=", non_blocking=True"), "neutral")
    (row,) = advised.of("pinned-copy")
    assert row.before == "images.to(device)"
    assert row.replacement == "non_blocking=True"


@pytest.mark.parametrize(
    ("call", "npu", "neutral"),
    [
        (
            "images.cuda()",
            "images.npu(non_blocking=True)",
            "images.to(accelerator(), non_blocking=True)",
        ),
        (
            "images.cuda(0)",
            "images.npu(0, non_blocking=True)",
            "images.to(accelerator(0), non_blocking=True)",
        ),
        (
            'images.to("cuda")',
            'images.to("npu", non_blocking=True)',
            "images.to(accelerator(), non_blocking=True)",
        ),
        (
            "images.to(device=device)",
            "images.to(device=device, non_blocking=True)",
            "images.to(device=device, non_blocking=True)",
        ),
    ],
)
def test_the_keyword_joins_what_other_rules_write(call: str, npu: str, neutral: str) -> None:
    text = script(", pin_memory=True").replace("images.to(device)", call)
    assert f"images = {npu}\n" in advise(text, "npu", apply=True).text
    assert f"images = {neutral}\n" in advise(text, "neutral", apply=True).text


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")  # torch's own, on a CPU
def test_a_training_gives_the_same_bits() -> None:
    text = script(", pin_memory=True")
    written = advise(text, "neutral", apply=True)
    assert written.text.count("non_blocking=True") == 2
    original = advise(text, "neutral")
    one, two = (_trained(advised) for advised in (original, written))
    assert [loss.item() for loss in one["losses"]] == [loss.item() for loss in two["losses"]]
    for before, after in zip(one["model"].parameters(), two["model"].parameters(), strict=True):
        assert torch.equal(before.grad, after.grad)


def _trained(advised: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(12, 5), torch.randint(0, 3, (12,)))
    names: dict[str, Any] = advised.run(data=data, model=torch.nn.Linear(5, 3))
    return names


@pytest.mark.parametrize(
    "change",
    [
        # the loader pins nothing, or it cannot be seen whether it does
        (", pin_memory=True", ""),
        (", pin_memory=True", ", pin_memory=pinned"),
        # a dtype, not a device
        ("images.to(device)", "images.to(torch.float16)"),
        ("images.to(device)", "images.to(input_type)"),
        # to the host
        ("images.to(device)", 'images.to("cpu")'),
        # what is copied does not come from the loader
        ("images.to(device)", "weights.to(device)"),
        # it is said already
        ("images.to(device)", "images.to(device, non_blocking=False)"),
    ],
)
def test_other_copies_are_left_alone(change: tuple[str, str]) -> None:
    text = script(", pin_memory=True", target=", non_blocking=True")
    assert change[0] in text
    assert "pinned-copy" not in advise(text.replace(*change)).rules


def test_what_a_function_of_the_projects_own_collates_is_not_written() -> None:
    # given batches whose class may know no such keyword
    text = script(", pin_memory=True, collate_fn=collate")
    advised = advise(text, "neutral", apply=True)
    assert {row.outcome.value for row in advised.of("pinned-copy")} == {"listed"}
    assert "non_blocking" not in advised.text


def test_copies_that_do_not_wait_need_pinned_memory() -> None:
    text = script(images=", non_blocking=True", target=", non_blocking=True")
    (row,) = advise(text, apply=True).of("unpinned-copy")
    assert row.outcome.value == "listed"
    assert row.replacement == "pin_memory=True"
    assert "oldest guide asked for pin_memory=False" in row.reason
    assert "also in line 12, 13" in row.reason
    pinned = script(", pin_memory=True", ", non_blocking=True", ", non_blocking=True")
    assert advise(pinned).of("unpinned-copy") == []


# -- class numbers


def test_class_numbers_are_advised_to_be_int32() -> None:
    (row,) = advise(script()).of("int32-targets")
    assert row.before == "target.to(device)"
    assert row.replacement == "target.to(torch.int32)"
    assert "the dtype changes from int64 to int32" in row.reason
    assert "int32-targets" not in advise(script(), "neutral").rules


def test_class_numbers_are_converted_before_they_are_copied() -> None:
    text = script().replace("target.to(device)", 'target.to("cuda:0")')
    advised = advise(text, apply=True)
    assert 'target = target.to(torch.int32).to("npu:0")\n' in advised.text


def test_class_numbers_stay_where_the_device_may_be_a_cpu() -> None:
    # given a variable for the device
    advised = advise(script(), apply=True)
    (row,) = advised.of("int32-targets")
    assert row.outcome.value == "listed"
    assert "int32" not in advised.text
    # then because a CPU would refuse
    with pytest.raises(RuntimeError, match="dtype"):
        torch.nn.functional.cross_entropy(torch.ones(1, 2), torch.zeros(1, dtype=torch.int32))


def test_int32_holds_every_class_number() -> None:
    # given the largest number that the written form can meet
    numbers = torch.tensor([0, 1, 999, 2**31 - 1])
    assert torch.equal(numbers.to(torch.int32).to(torch.int64), numbers)


def test_a_loss_that_a_function_takes_is_known_by_its_name() -> None:
    advised = advise(
        """
        import torch.nn as nn
        from torch.utils.data import DataLoader

        def train(train_loader, model, criterion):
            for images, target in train_loader:
                target = target.cuda(non_blocking=True)
                loss = criterion(model(images), target)
                loss.backward()

        train_loader = DataLoader(data, 4)
        criterion = nn.CrossEntropyLoss().cuda()
        """,
        apply=True,
    )
    assert "import torch\n" in advised.text
    assert "target = target.to(torch.int32).npu(non_blocking=True)\n" in advised.text


@pytest.mark.parametrize(
    "change",
    [
        ("nn.CrossEntropyLoss()", "nn.MSELoss()"),
        ("nn.CrossEntropyLoss()", "mine.CrossEntropyLoss()"),
        # int32 is no index
        ("losses.append(loss.detach())", "table[target] += 1"),
        ("losses.append(loss.detach())", "F.one_hot(target, 3)"),
        ("losses.append(loss.detach())", "outputs.gather(1, target)"),
        # no copy to the device
        ("target.to(device)", "target.to(torch.int64)"),
    ],
)
def test_other_targets_are_left_alone(change: tuple[str, str]) -> None:
    text = script()
    assert change[0] in text
    assert "int32-targets" not in advise(text.replace(*change)).rules
