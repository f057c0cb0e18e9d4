"""A batch that one training takes whole and the other in parts, whose gradients are accumulated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from made_ranks import made
from torch import nn
from torch.nn.functional import cross_entropy

import lockstep
from lockstep import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.site import CallKind, Phase, Role
from lockstep.unify.one_recording import read_call

STEPS = 3
Save = Literal["sketch", "tensors"]


def trained(path: Path, parts: int, *words: str, save: Save = "tensors") -> Path:
    """Record two of three steps of a small training; `words` are what it does otherwise."""
    torch.manual_seed(0)
    normal = nn.LayerNorm(16, eps=1e-2 if "epsilon" in words else 1e-5)
    model = nn.Sequential(nn.Linear(8, 16), normal, nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    drawn = torch.Generator().manual_seed(1)
    with lockstep.record(path, model=model, steps="0:2", save=save):
        for _ in range(STEPS):
            x, y = torch.randn(8, 8, generator=drawn), torch.randint(0, 4, (8,), generator=drawn)
            if "dealt" in words:
                x, y = torch.cat([x[::2], x[1::2]]), torch.cat([y[::2], y[1::2]])
            if "few labels" in words:
                y[:3] = -100
            if "other sample" in words:
                x[0] = x[1]
            _step(model, optimizer, x, y, parts, words)
    return path


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    parts: int,
    words: tuple[str, ...],
) -> None:
    sizes = [5, 3] if "uneven" in words else [len(x) // parts] * parts
    optimizer.zero_grad()
    total = torch.zeros(())
    for number, (some, labels) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
        if (
            number and "copied" in words
        ):  # as trainers move the parts that they fetched before the step
            some, labels = some.clone(), labels.clone()
        if "summed" in words:
            loss = cross_entropy(model(some), labels, reduction="sum") / len(x)
        else:
            loss = cross_entropy(model(some), labels) / (1 if "undivided" in words else parts)
        if "zeroed" in words:
            optimizer.zero_grad()
        loss.backward()
        total.add_(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def compared(folder: Path, parts: int, *words: str, save: Save = "tensors") -> Comparison:
    whole = tuple(word for word in words if word in ("summed", "few labels"))
    one = trained(folder / "one", 1, *whole, save=save)
    return compare_recordings(one, trained(folder / "parts", parts, *words, save=save))


@pytest.mark.parametrize(
    ("parts", "words"), [(4, ("dealt",)), (2, ("copied",)), (2, ("uneven", "summed"))]
)
def test_parts_of_a_batch_agree_with_the_whole(
    tmp_path: Path, parts: int, words: tuple[str, ...]
) -> None:
    # given a training that takes each batch in parts, in order or not, when it is compared with one that takes it whole
    found = compared(tmp_path, parts, *words)

    # then they agree up to the end, and nothing of them is left out
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    assert found.ends is not None
    first, second = found.ends.final_losses
    assert first is not None
    assert first == pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize(
    ("word", "op"),
    [
        ("undivided", "accumulate_grad"),
        ("zeroed", "accumulate_grad"),
        ("epsilon", "torch.nn.functional.layer_norm"),
        (
            "few labels",
            "torch.nn.functional.cross_entropy",
        ),  # a mean of means over unlike numbers of labels
        ("other sample", "batch"),
    ],
)
def test_what_goes_wrong_in_parts_is_named(tmp_path: Path, word: str, op: str) -> None:
    # given parts whose losses are not divided, or by parts and not by labels, whose gradients are lost, and others
    found = compared(tmp_path, 2, word)

    # then that is the origin
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op == op


def test_without_whole_tensors_nothing_is_put_together(tmp_path: Path) -> None:
    # given recordings that cannot prove that the samples are the same, then they are compared as they are
    found = compared(tmp_path, 2, save="sketch")
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op == "batch"


# --- loaders that fetch ahead


def _fetching(parts: list[np.ndarray], ahead: list[np.ndarray], scale: float = 1) -> list[ReadCall]:
    """Calls of a model on parts of a batch, before each of which the samples of a later one are picked and stacked."""
    held = ReadTensor(Role.INPUT, "args.0", np.arange(24, dtype="f4").reshape(8, 3))
    every = ReadTensor(Role.OUTPUT, "args.0 of torch.Tensor.__getitem__", held.value)
    calls = []
    for number, (rows, later) in enumerate(zip(parts, ahead, strict=True)):
        if not number:
            calls.append(ReadCall(0, "", "batch", [every], kind=CallKind.DATA, phase=Phase.DATA))
        for row in later:
            picked = ReadTensor(Role.OUTPUT, "result", row)
            calls.append(ReadCall(0, "", "torch.Tensor.__getitem__", [held, picked]))
        picked = [ReadTensor(Role.INPUT, f"args.0.{place}", row) for place, row in enumerate(later)]
        stacked = ReadTensor(Role.OUTPUT, "result", later)
        calls.append(ReadCall(0, "", "torch.stack", [*picked, stacked]))
        given = ReadTensor(Role.OUTPUT, "args.0 of Model", rows)
        calls.append(ReadCall(0, "", "batch", [given], kind=CallKind.DATA, phase=Phase.DATA))
        ends = [ReadTensor(Role.INPUT, "args.0", rows), ReadTensor(Role.OUTPUT, "result", rows * 2)]
        top = len(calls)
        inner = [ends[0], ReadTensor(Role.OUTPUT, "result", rows * np.float32(2 * scale))]
        calls.append(ReadCall(0, "", "Model", ends, kind=CallKind.MODULE))
        calls.append(ReadCall(0, "fc", "torch.mul", inner, parent=top))
    return calls


@pytest.mark.parametrize(("scale", "verdict"), [(1, Verdict.AGREE), (1.01, Verdict.DIVERGED)])
def test_what_fetches_a_later_batch_is_left_out(
    tmp_path: Path, scale: float, verdict: Verdict
) -> None:
    # given two ranks, and one, whose loaders pick the samples of a later batch before each part, each its own
    rows = np.arange(24, dtype="f4").reshape(8, 3)
    later = rows + 100
    one = made(tmp_path / "one", _fetching([rows[:4], rows[4:]], [later[:4], later[4:]]))
    many = made(
        tmp_path / "many",
        _fetching([rows[:2], rows[4:6]], [later[:2], later[4:6]]),
        _fetching([rows[2:4], rows[6:]], [later[6:], later[2:4]], scale),
    )
    # then the samples do not count as means of the ranks; a slip in the model does
    found = compare_recordings(one, many)
    assert found.verdict is verdict
    assert any("calls that fetch a later batch" in note for note in found.notes)
    assert {origin.op for origin in found.origins} <= {"torch.mul"}


def test_a_batch_that_several_parts_have_counts_each_time(tmp_path: Path) -> None:
    # given a batch that is read for two parts, and a module with an operator in it
    calls = _fetching([np.ones((1, 3), "f4")], [np.ones((1, 3), "f4")])
    batch, *_, top, inner = made(tmp_path / "one", calls).ranks["rank0"].calls(0)
    numbers: dict[tuple[str, int], int] = {}
    read = [read_call(call, [], numbers) for call in (batch, batch, top, inner)]
    # then the operator's parent is the third of what was read
    assert read[-1].parent == 2
